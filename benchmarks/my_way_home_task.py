"""My Way Home: walk once through the map, then from anywhere to the vest; see known_tasks.py.

The walk is led by a script that knows the map: it turns around once in each room and corridor, and ends at the vest. So
the model has memorised where that is, and nothing else of the task. An episode is the task's own: one of its starts,
any heading, 2,100 tics. The agent is not told where it is: it looks around, and weighs guesses by what it would see.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from guesses import Guesses
from my_way_home import LIMIT, MyWayHome, Walker

from gtmsm.data.record import one_hot
from gtmsm.model.planning import PlanConfig
from gtmsm.tensors import Belief
from gtmsm.worlds.doom_maze import UNIT
from gtmsm.worlds.physics import ACTIONS

EVERY, LOOK, GLANCE, SURE = 4, 41, 8, 0.6
"""Steps between plans; the most that are spent on looking around, at first and between plans; share of guesses that
must agree."""
LEFT, GUESSES = ACTIONS.index("turn left"), 256
AHEAD = [number for number, name in enumerate(ACTIONS) if name.startswith("forward")]
SETTINGS = PlanConfig(horizon=48, candidates=256, rounds=4, margin=0.3, near=0.35)


def survey(env, seed):
    """Frames, actions and true poses of a walk through all of the map that ends at the vest."""
    frame, info = env.reset(seed=seed)
    frames, actions, poses = [frame], [-1], [info["pose"]]
    corners = [[(at[0], at[1]) for line in one.lines for at in ((line.x1, line.y1), (line.x2, line.y2))]
               for one in env.game.get_state().sectors]  # fmt: skip
    spots = [(np.min(one, 0) + np.max(one, 0)) / 2 / UNIT for one in corners]
    spots = [spot for spot in spots if env.ground.way(env.pose()[:2], spot)]

    def act(action):
        frame, _, home, _, info = env.step(action)
        frames.append(frame), actions.append(action), poses.append(info["pose"])
        return home

    while spots:
        spots.sort(key=lambda spot: len(env.ground.way(env.pose()[:2], spot)))
        walk_to(env, spots.pop(0), act)
        for _ in range(LOOK):
            act(LEFT)
    walk_to(env, env.ground.vest, act, vest=True)
    return np.stack(frames), actions, np.stack(poses)


def walk_to(env, spot, act, vest=False, most=LIMIT):
    """Until it is there or, with `vest`, home."""
    walker = Walker(env.ground)
    for step in range(most):
        if not walker.way or step % 10 == 0:
            walker.to(spot, env.pose(), vest)
        if act(walker.action(env.pose())) or (not vest and math.dist(env.pose()[:2], spot) < 0.25):
            return


class Journeys:
    """A memory of the map, and agents that look for the vest by it."""

    def __init__(self, learned, env, seed):
        self.learned, self.env, self.model = learned, env, learned.model
        frames, actions, poses = survey(env, seed)
        x = torch.from_numpy(frames).permute(0, 3, 1, 2)[None] / 255
        a = one_hot(torch.tensor([actions]), len(ACTIONS))
        a[:, 0] = 0
        memory = self.model.memorise(x, a)[0]
        self.start, self.steps, motion = poses[0], len(frames) - 1, self.model.motion
        true = torch.stack([learned.pose(pose, poses[0]) for pose in poses])
        self.memories = memory, replace(memory, place=Belief(motion.place(true)[None]))
        self.off = learned.unit * (motion.pose_at(memory.place.mean[0]) - true)[:, :2].norm(dim=-1)

    def play(self, seed, true=False):
        """Steps until home, or None; and how far off it believed to be, in cells, at each step.

        With `true` it is told its pose in every step, on the walk that it memorised, too.
        """
        env, model, memory = self.env, self.model, self.memories[true]
        goal = memory.place.mean[0, -1, :2]
        frame, info = env.reset(seed=seed)
        guesses, chance = Guesses(model, memory, GUESSES, seed), torch.Generator().manual_seed(seed)
        guesses.step(self._seen(frame), None)
        queue, looked, most, offs, rng, before = [], 0, LOOK, [], np.random.default_rng(seed), model.motion.start(1)
        for step in range(LIMIT):
            state, share = guesses.best()
            if true:
                state, share = model.motion.settle(before, self.learned.pose(info["pose"], self.start)[None]), 1.0
            where = self.learned.pose(info["pose"], self.start)
            offs.append(self.learned.unit * float((state[0, :2] - where[:2]).norm()))
            if share < SURE and looked < most:
                queue, looked = [LEFT], looked + 1
            elif not queue:
                looked, most = 0, GLANCE
                plan = model.plan(memory, Belief(state), goal, settings=SETTINGS, generator=chance)
                queue = list(plan.choices[:EVERY])
                if not queue:  # it believes to be there, and is not
                    queue = [int(rng.choice(AHEAD))] * 3
            action = queue.pop(0)
            before = model.motion.step(state, one_hot(torch.tensor([action]), len(ACTIONS)))
            frame, _, home, late, info = env.step(action)
            if home or late:
                return (step + 1 if home else None), offs
            if not true:
                guesses.step(self._seen(frame), one_hot(torch.tensor([action]), len(ACTIONS)))
        return None, offs

    def _seen(self, frame):
        return torch.from_numpy(frame).permute(2, 0, 1) / 255


def at_random(env, seed, held):
    """Steps until home of random actions, each held for 1 + Poisson(`held`) steps, or None."""
    env.reset(seed=seed)
    rng, left, action = np.random.default_rng(seed), 0, 0
    for step in range(LIMIT):
        if left == 0:
            action, left = int(rng.integers(len(ACTIONS))), 1 + int(rng.poisson(held))
        left -= 1
        *_, home, late, _ = env.step(action)
        if home or late:
            return step + 1 if home else None
    return None


def by_script(env, seed):
    """Steps until home of a script that knows the map and where it is, or None."""
    env.reset(seed=seed)
    done = []

    def act(action):
        done.append(env.step(action)[2])
        return done[-1]

    walk_to(env, env.ground.vest, act, vest=True)
    return len(done) if done and done[-1] else None


WALK = 1
"""Seed of the walk that is memorised, once for all episodes."""


def play(runs, seeds):
    """The outcomes of each episode; see known_tasks.py."""
    walked, limited = MyWayHome(), MyWayHome(limited=True)
    journeys = Journeys(runs[0], walked, WALK)
    walked.close()
    journeys.env = limited
    off = journeys.off
    print(f"memorised {journeys.steps} steps; cells off at its end {off[-1]:.2f}, at most {off.max():.2f}")
    for seed in seeds:
        steps, besides = {}, {}
        steps["planning"], off = journeys.play(seed)
        steps["planning, true poses"], _ = journeys.play(seed, true=True)
        steps["random"] = at_random(limited, seed, 0.0)
        steps["random, actions held for 4 steps"] = at_random(limited, seed, 3.0)
        steps["a script that knows the map"] = by_script(limited, seed)
        besides = {f"{who}: steps where it succeeds": count for who, count in steps.items()}
        besides["cells off, median of an episode"] = float(np.median(off))
        outcomes = {who: float(count is not None) for who, count in steps.items()}
        yield {"seed": seed, "outcomes": outcomes, "kinds": [], "besides": besides}
