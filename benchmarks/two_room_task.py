"""TwoRoom: walk 1,500 steps through both rooms, then to a target that is shown as a picture; see known_tasks.py.

Success is the engine's own: at some step the agent is within 16 pixels of the target. Targets are the engine's own
draws, but for those inside walls, where no agent can be seen; the agent starts where its walk ended, and has 50 steps.
"""

import numpy as np
import torch
from two_room import MOVES, NAMES, SIDE, TwoRoom

from gtmsm.data.record import one_hot
from gtmsm.explore import Explorer, TravelConfig, travel
from gtmsm.model.planning import PlanConfig

MEMORISED, RECENT, STEPS, REACH = 1_500, 32, 50, 16.0
CROP, EDGE = 128, 21
# Open ground reaches 1.5 steps, 10 pixels, beyond visited places: less than half of the wall with the agent's radius.
SETTINGS = TravelConfig(steps=STEPS, plan=PlanConfig(margin=1.5, doubt=0.0))


class Trial:
    """One episode: what was seen on the walk in both views, and a target."""

    def __init__(self, env, seed):
        self.env = env
        env.reset(seed=seed)
        rng = np.random.default_rng(seed)
        while not standable(env.rooms, env.rooms.target_position.numpy()):
            env.reset(seed=int(rng.integers(2**31)))
        self.target = env.rooms.target_position.clone()
        here, self.actions = [], [-1]
        here.append(env.rooms.agent_position.numpy().copy())
        for _ in range(MEMORISED):
            self.actions.append(env.explore(rng))
            env.rooms.step(MOVES[self.actions[-1]])
            here.append(env.rooms.agent_position.numpy().copy())
        self.here, self.end = np.array(here), env.rooms.agent_position.clone()
        views = [env.views(position, (0, CROP)) for position in self.here]
        self.views = {crop: np.stack(part) for crop, part in zip((0, CROP), zip(*views, strict=True), strict=True)}
        self.solved = float((self.end - self.target).norm()) < REACH

    def back(self):
        self.env.rooms.agent_position, self.reached = self.end.clone(), self.solved

    def act(self, action, crop):
        vector = MOVES[action] if action >= 0 else np.zeros(2, np.float32)
        self.reached |= self.env.rooms.step(vector)[2]
        return self.env.view(self.env.rooms.agent_position.numpy(), crop)

    def explorer(self, learned, crop, last=MEMORISED + 1):
        """An agent that remembers the last steps of the walk."""
        frames = torch.from_numpy(self.views[crop][-last:]).permute(0, 3, 1, 2)[None] / 255
        actions = one_hot(torch.tensor([self.actions[-last:]]), len(NAMES))
        actions[:, 0] = 0
        return Explorer(learned.model, *learned.model.memorise(frames, actions))

    def planned(self, learned, crop, goal=None, last=MEMORISED + 1):
        self.back()
        picture = self.env.view(self.target.numpy(), crop) if goal is None else goal
        travel(self.explorer(learned, crop, last), picture, lambda action: self.act(action, crop), SETTINGS)
        return self.reached

    def random(self, rng):
        """As stable-worldmodel's random policy: any direction and speed, a new one each step."""
        self.back()
        for _ in range(STEPS):
            self.reached |= self.env.rooms.step(rng.uniform(-1, 1, 2).astype(np.float32))[2]
        return self.reached

    def expert(self):
        """Knows the rooms and the target."""
        self.back()
        self.env._way = self.env.way_to(self.target.numpy())
        rng = np.random.default_rng(0)
        for _ in range(STEPS):
            self.act(self.env.explore(rng), 0)
            if self.reached:
                break
        return self.reached


def standable(rooms, position):
    """Whether an agent can be there: away from the border and the wall."""
    inside = (position >= SIDE - EDGE).any() or (position <= EDGE).any()
    return not inside and rooms._constrain_agent_not_in_wall(position)


def look_alike(env, target, places, views):
    """Whether a place farther away than counts as there shows nearly the same cropped picture as the target."""
    picture = env.view(target.numpy(), CROP).astype(float)
    far = np.linalg.norm(places - target.numpy(), axis=1) > REACH
    return bool((np.abs(views[far] - picture).mean((1, 2, 3)) < 2.0).any())


def two_room(runs, seed, episodes=40, *, report, told):
    full, cropped = runs
    env = TwoRoom()
    env.reset(seed=seed)
    axis = [np.arange(22, 101, 4), np.arange(124, 203, 4)]
    places = np.array([(x, y) for x in np.concatenate(axis) for y in range(22, 203, 4)], np.float32)
    views = np.stack([env.view(place, CROP) for place in places]).astype(float)
    rows = {}
    same, solved, otherwise = [], [], []
    for number in range(episodes):
        trial = Trial(env, seed + number)
        solved.append(trial.solved)
        same.append(look_alike(env, trial.target, places, views))
        outcomes = {
            "planning, full view": trial.planned(full, 0),
            "planning, cropped view": trial.planned(cropped, CROP),
            f"planning, cropped view, {RECENT} steps remembered": trial.planned(cropped, CROP, last=RECENT),
            "planning, cropped view, told the target's place": trial.planned(
                cropped, CROP, cropped.pose(trial.target.numpy(), trial.here[0])
            ),
            "random": trial.random(np.random.default_rng(number)),
            "expert, who knows rooms and target": trial.expert(),
        }
        otherwise.append((trial.here[-1][0] < SIDE / 2) != (float(trial.target[0]) < SIDE / 2))
        for who, reached in outcomes.items():
            rows.setdefault(who, []).append(reached)
        told(rows, number + 1)
    report("TwoRoom, success", rows, True)
    unique = {who: np.array(values)[~np.array(same)] for who, values in rows.items()}
    other = {who: np.array(values)[np.array(otherwise)] for who, values in rows.items()}
    report("of these, targets whose cropped picture no other place shows", unique, True)
    report("of all, targets in the other room", other, True)
    print(f"\nsolved at the start: {100 * np.mean(solved):.1f}%")
