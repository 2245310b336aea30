"""TwoRoom: walk 1,500 steps through both rooms, then to a target that is shown as a picture; see known_tasks.py.

Success is the engine's own: at some step the agent is within 16 pixels of the target, whereupon it ends the episode.
Targets are the engine's own draws, but for those inside walls, where no agent can be seen; the agent starts where its
walk ended, and has 50 steps. It goes to the place whose memorised view is most like the picture. Where the episode goes
on there, that was another place: it goes to the most similar view farther than 16 pixels from where it has been.
"""

from dataclasses import replace

import numpy as np
import torch
from two_room import MOVES, NAMES, SIDE, TwoRoom

from gtmsm.data.record import one_hot
from gtmsm.explore import Explorer, TravelConfig, travel
from gtmsm.model.planning import PlanConfig
from gtmsm.model.planning.goal import difference

MEMORISED, RECENT, STEPS, REACH = 1_500, 32, 50, 16.0
CROP, EDGE = 128, 21
# Open ground reaches 1.5 steps, 10 pixels, beyond visited places: less than half of the wall with the agent's radius.
SETTINGS = TravelConfig(steps=STEPS, plan=PlanConfig(margin=1.5, least_known=0.0))


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

    def planned(self, learned, crop, goal=None, last=MEMORISED + 1, places=STEPS):
        """Whether it gets there, with at most so many places to try; `goal` tells the place instead of a picture."""
        self.back()
        explorer = self.explorer(learned, crop, last)
        memory = explorer.memory.snapshot()
        known, begun, left, tried = memory.place.mean[0], len(explorer.path[0]), STEPS, []
        picture = torch.from_numpy(self.env.view(self.target.numpy(), crop)).permute(2, 0, 1)[None, None] / 255
        unlike = difference(memory.code, learned.model.vae.encode(picture))[0]
        while left and not self.reached and len(tried) < places:
            been = torch.cat([explorer.path[0, begun:, :2], *tried])
            if len(been):
                unlike[torch.cdist(known, been).amin(1) < REACH / learned.unit] = torch.inf
            tried.append((known[unlike.argmin()] if goal is None else goal)[None])
            settings = replace(SETTINGS, steps=left)
            left -= len(travel(explorer, tried[-1][0], lambda action: self.act(action, crop), settings).choices)
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


def play(runs, seeds):
    """The outcomes of each episode; see known_tasks.py."""
    full, cropped = runs
    env = TwoRoom()
    env.reset(seed=0)
    axis = [np.arange(22, 101, 4), np.arange(124, 203, 4)]
    places = np.array([(x, y) for x in np.concatenate(axis) for y in range(22, 203, 4)], np.float32)
    views = np.stack([env.view(place, CROP) for place in places]).astype(float)
    for seed in seeds:
        trial = Trial(env, seed)
        target = cropped.pose(trial.target.numpy(), trial.here[0])
        outcomes = {
            "planning, full view": trial.planned(full, 0),
            "the same, one place tried": trial.planned(full, 0, places=1),
            "planning, cropped view": trial.planned(cropped, CROP),
            "the same, one place tried ": trial.planned(cropped, CROP, places=1),
            f"cropped view, the last {RECENT} steps remembered": trial.planned(cropped, CROP, last=RECENT),
            "cropped view, told where the target is": trial.planned(cropped, CROP, target, places=1),
            "random": trial.random(np.random.default_rng(seed)),
            "a script that knows rooms and target": trial.expert(),
            "solved at the start": trial.solved,
        }
        kinds = []
        if not look_alike(env, trial.target, places, views):
            kinds.append("targets whose cropped picture no other place shows")
        if (trial.here[-1][0] < SIDE / 2) != (float(trial.target[0]) < SIDE / 2):
            kinds.append("targets in the other room")
        outcomes = {who: float(reached) for who, reached in outcomes.items()}
        yield {"seed": seed, "outcomes": outcomes, "kinds": kinds, "besides": {}}
