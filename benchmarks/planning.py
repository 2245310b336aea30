"""How often planning reaches a goal picture in places memorised once, beside controls, and how long a plan takes.

    python benchmarks/planning.py image-walk           # or obstacles, rooms, time
    python benchmarks/planning.py rooms --trials 200 --seed 3000
    python benchmarks/planning.py rooms --new          # goals are new pictures
    python benchmarks/planning.py rooms --pictures --seed 1000    # where new pictures are found, and strange ones
    python benchmarks/planning.py rooms --trials 52 --seed 3100 --rows 3100.json  # a part of many journeys
    python benchmarks/planning.py rooms --pool 3000.json 3100.json                # all parts in one table

Places are held-out images (built in) or rooms that nothing was trained on. An agent memorises 256 steps of its walker
and comes to rest. A goal is a picture that it saw on that walk, from a place where it is not now (in rooms: a fifth of
the room's width away or more). Four goals a place. `gtmsm/evaluation/arrival.py` says what counts as there.
With --new the picture was never seen: in rooms it is taken from up to 0.2 wall heights and 10 degrees beside such a
place, and on images, where a cell has one view only, it is 10% darker and has noise of 5%. What counts as there is
where the new picture was taken.
Settings were chosen with other seeds: of images tables are of seed 2000, of rooms of seed 3000.
"""

import argparse
import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from gtmsm.data.record import one_hot
from gtmsm.evaluation.arrival import arrival_in, spl
from gtmsm.explore import Explorer, TravelConfig, travel
from gtmsm.model.planning import PlanConfig
from gtmsm.model.planning.goal import find_goal
from gtmsm.run import Run
from gtmsm.worlds.rooms import draw_rooms

WEIGHTS = Path(__file__).parent.parent / "weights"
WORLDS = {"image-walk": "image-walk-celeba", "obstacles": "obstacles-celeba", "rooms": "walk-strong"}
MEMORISED, GOALS = 256, 4


class Place:
    """A world with one agent that has memorised it; `back` puts it to where it was then."""

    def __init__(self, setting, world, model, seed):
        self.world, self.arrival = world, arrival_in(world)
        generator = torch.Generator().manual_seed(seed)
        world.reset(1, generator)
        actions = setting.walker(world, MEMORISED, generator)[0].tolist() + [-1] * self.arrival.rests
        self.explorer, self.frames, self.poses = Explorer(model), [], []
        self.frames = [self.act(action) for action in actions]
        if model.landmarks is None:  # in one call, which comes to the same
            done = one_hot(torch.tensor([actions]), model.action_size)
            self.explorer = Explorer(model, *model.memorise(torch.stack(self.frames)[None], done))
        else:
            for frame, action in zip(self.frames, actions, strict=True):
                self.explorer.step(frame, None if action < 0 else action)
        self.end = world.pose[:1].clone()
        self.solid = world.solid.clone() if hasattr(world, "solid") else None

    def act(self, action, look=True):
        self.world.step(torch.tensor([action]))
        self.poses.append(self.world.pose[0].clone())
        return self.world.look()[0] if look else None

    def new_picture(self, pose, chance):
        """A picture that was never seen, from about there, and where it was taken."""
        if self.solid is not None:
            frame = self.frames[next(t for t, other in enumerate(self.poses) if torch.equal(other, pose))]
            noise = torch.from_numpy(chance.normal(0, 0.05, frame.shape)).to(frame)
            return (0.9 * frame + noise).clamp(0, 1), pose
        angle, turn = chance.uniform(0, 2 * np.pi), np.radians(chance.uniform(-10, 10))
        away = chance.uniform(0.05, 0.2)
        beside = pose + pose.new_tensor([away * np.cos(angle), away * np.sin(angle), turn])
        self.world.place(self.world.where, beside[None])
        return self.world.look()[0], beside

    def back(self):
        if self.solid is None:
            self.world.place(self.world.where, self.end)
        else:
            self.world.place(self.world.image, self.end.long(), self.solid)
        self.poses = [self.world.pose[0].clone()]
        return self.explorer.fork()


def planned(place, explorer, picture, settings, seed):
    return travel(explorer, picture, place.act, settings, seed).arrived


def random(place, explorer, picture, settings, seed, goal):
    """Random actions, each held for a while; it is told when it is there."""
    chance = np.random.default_rng(seed)
    left = settings.steps
    while left > 0:
        action = int(chance.integers(len(place.world.action_names)))
        for _ in range(min(left, 1 + chance.poisson(3))):
            place.act(action, look=False)
            left -= 1
            if place.arrival.there(goal):
                return True
    return False


def straight(place, explorer, picture, settings, seed):
    """As the crow flies: on images the step that leads nearest to the goal, in rooms turn, walk, and turn."""
    model = explorer.model
    goal = find_goal(model, explorer.memory.snapshot(), picture).pose
    choices = torch.eye(model.action_size)
    # Without landmarks, what it sees changes nothing.
    state = explorer.here.mean if model.landmarks is None else None
    for _ in range(settings.steps):
        here = explorer.here.mean if state is None else state
        away = goal[:2] - here[0, :2]
        if len(goal) == 2:
            ends = model.motion.step(here.expand(len(choices), -1), choices)
            far = (ends - goal).norm(dim=-1)
            if float(away.norm()) <= float(far.min()) + 1e-3:
                return True
            action = int(far.argmin())
        else:
            names = place.world.action_names
            walks = float(away.norm()) > 0.25
            wanted = torch.atan2(away[1], away[0]) if walks else goal[2]
            off = float((wanted - here[0, 2] + np.pi) % (2 * np.pi) - np.pi)
            if abs(off) < 0.09 and not walks:
                return True
            action = (
                names.index("forward") if abs(off) < 0.09 else names.index(f"turn {'left' if off > 0 else 'right'}")
            )
        if state is None:
            explorer.step(place.act(action), action)
        else:
            place.act(action, look=False)
            state = model.motion.step(state, choices[action : action + 1])
    return False


def opened(name, seed):
    """Shipped weights on one thread: their setting, the model, and places that nothing was learned from."""
    torch.set_num_threads(1)
    run, rooms = Run.open(WEIGHTS / WORLDS[name]), name == "rooms"
    setting = run.set_up(torch.device("cpu"), images=None if rooms else "builtin")
    world = draw_rooms(run.experiment.world, 64, seed) if rooms else setting.test_world
    return setting, run.load_model(torch.device("cpu")), world


@torch.no_grad()
def measure(name, trials, seed, policies, new=False, file=None):
    setting, model, world = opened(name, seed)
    rows, solved = {policy: [] for policy in policies}, []
    chance = np.random.default_rng(seed)
    for number in range(-(-trials // GOALS)):
        place = Place(setting, world, model, seed + number)
        truth = list(place.poses)
        solved += [place.arrival.there(goal) for goal in truth[:MEMORISED]]
        for _ in range(GOALS):
            place.back()
            fair = [t for t in range(MEMORISED) if place.arrival.fair(truth[t])]
            t = int(chance.choice(fair))
            picture, goal = place.frames[t], truth[t]
            if new:
                place.poses = truth
                picture, goal = place.new_picture(goal, chance)
                place.back()
            shortest = place.arrival.shortest(goal)
            for policy, (walk, settings) in policies.items():
                explorer = place.back()
                extra = {"goal": goal} if walk is random else {}
                begun = time.perf_counter()
                arrived = walk(place, explorer, picture, settings, number, **extra)
                taken = time.perf_counter() - begun
                if walk is not random:
                    for _ in range(place.arrival.rests):
                        place.act(-1, look=False)
                    success = place.arrival.there(goal)
                else:
                    success = arrived
                length = place.arrival.length(torch.stack(place.poses))
                rows[policy].append((success, spl(success, shortest, length), shortest, length, arrived, taken))
        so_far = (f"{who} {np.mean([row[0] for row in outcomes]):.1%}" for who, outcomes in rows.items())
        print(f"{number + 1} places: {', '.join(so_far)}", flush=True)
        if file is not None:  # after each place, so that nothing is lost
            file.write_text(json.dumps({"rows": rows, "solved": solved}))
    report(name, rows, solved)


@torch.no_grad()
def find_pictures(name, seed, places=10, each=6):
    """How often new pictures are believed, and at the right place; and views of five other places, four of each."""
    rooms, (setting, model, world) = name == "rooms", opened(name, seed)
    chance, least, known = np.random.default_rng(seed), PlanConfig().least_known, []
    believed, right, strange = [], [], []
    for number in range(places):
        place = Place(setting, world, model, seed + number)
        truth, memory, pictures = list(place.poses), place.explorer.memory.snapshot(), []
        for _ in range(each):
            place.back()
            fair = [t for t in range(MEMORISED) if place.arrival.fair(truth[t])]
            place.poses = truth
            pictures.append(place.new_picture(truth[int(chance.choice(fair))], chance))
        known.append((memory, place.frames))
        entries = model.motion.pose_at(memory.place.mean[0])
        for picture, pose in pictures:
            found = find_goal(model, memory, picture)
            away = truth[int((entries - found.pose).norm(dim=-1).argmin())] - pose
            believed.append(found.known >= least)
            right.append(float(away[:2].norm()) <= (0.4 if rooms else 0.5))
    for i, (memory, _) in enumerate(known):
        for j in range(1, 6):
            views = known[(i + j) % places][1]
            strange += [find_goal(model, memory, views[t]).known >= least for t in (20, 80, 140, 200)]
    sure = np.mean(np.array(right)[believed])
    print(
        f"{name}: of {len(right)} new pictures {np.mean(believed):.1%} are believed, {sure:.1%} of these rightly; ",
        end="",
    )
    print(f"of {len(strange)} strange ones {np.mean(strange):.1%} are believed")


def pool(name, files):
    """The table of several parts."""
    parts = [json.loads(file.read_text()) for file in files]
    rows = {who: sum((part["rows"][who] for part in parts), []) for who in parts[0]["rows"]}
    report(name, rows, sum((part["solved"] for part in parts), []))


def time_plans(seed, settings, often=20):
    """Milliseconds of a plan, and of one unroll of its population; the least of several, each goal's median."""
    for name in WORLDS:
        run = Run.open(WEIGHTS / WORLDS[name])
        setting = run.set_up(torch.device("cpu"), images=None if name == "rooms" else "builtin")
        model = run.load_model(torch.device("cpu"))
        world = draw_rooms(run.experiment.world, 4, seed) if name == "rooms" else setting.test_world
        place = Place(setting, world, model, seed)
        table = torch.eye(model.action_size)
        many = table[torch.randint(model.action_size, (settings.candidates, settings.horizon))]
        unroll = clock(lambda: model.motion.unroll(model.motion.start(len(many)), many), often)  # noqa: B023
        goals = place.frames[:MEMORISED:51]
        found = [clock(partial(place.explorer.plan, goal, settings), often) for goal in goals]
        # No way is ever good enough: all rounds of all sequences to the last step.
        whole = clock(partial(place.explorer.plan, goals[0], replace(settings, near=1e-9)), often)
        print(f"{name}: {np.median(found):.0f} ms a plan, {whole:.0f} where none arrives; one unroll {unroll:.1f}")


def clock(work, often):
    work()
    taken = []
    for _ in range(often):
        begun = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - begun))
    return min(taken)


def report(name, rows, solved):
    count = len(next(iter(rows.values())))
    print(f"\n{name}: {count} journeys; {100 * np.mean(solved):.1f}% of all pictures seen are solved at the start")
    print("| who | success | SPL | length (shortest) | says it is there |")
    print("|---|---|---|---|---|")
    for policy, outcomes in rows.items():
        success, weighted, shortest, length, arrived, _ = np.array(outcomes, float).T
        print(
            f"| {policy} | {100 * success.mean():.1f}% | {weighted.mean():.2f} | {length.mean():.1f} "
            f"({shortest.mean():.1f}) | {100 * arrived.mean():.1f}% |"
        )
    print("| the true map | 100% | 1 | by definition | |")
    success, weighted, shortest = np.array(next(iter(rows.values())), float).T[:3]
    edges = np.quantile(shortest, [0, 0.25, 0.5, 0.75, 1])
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        within = (shortest >= low) & (shortest <= high)
        share, score = 100 * success[within].mean(), weighted[within].mean()
        print(f"goals {low:.1f} to {high:.1f} away: success {share:.1f}%, SPL {score:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*WORLDS, "time"])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=3000)
    parser.add_argument("--only", action="store_true", help="without controls")
    parser.add_argument("--new", action="store_true", help="goals are pictures that were never seen")
    parser.add_argument("--pictures", action="store_true", help="where pictures are found that were never seen")
    parser.add_argument("--rows", type=Path, help="a file for the outcome of every journey")
    parser.add_argument("--pool", type=Path, nargs="+", help="such files, to be reported together")
    flags = parser.parse_args()
    if flags.what == "time":
        with torch.no_grad():
            time_plans(flags.seed, PlanConfig())
        raise SystemExit
    if flags.pool:
        pool(flags.what, flags.pool)
        raise SystemExit
    if flags.pictures:
        find_pictures(flags.what, flags.seed)
        raise SystemExit
    settings = TravelConfig(steps=256 if flags.what == "rooms" else 64)
    known = {"planning": (planned, settings)}
    if not flags.only:
        known |= {"straight line": (straight, settings), "random": (random, settings)}
    measure(flags.what, flags.trials, flags.seed, known, flags.new, flags.rows)
