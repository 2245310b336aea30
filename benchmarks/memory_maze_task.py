"""Memory Maze 9x9 as published: 4 steps a second, 1,000 steps, 1 for each touch of the asked target; see known_tasks.py

First an agent that knows the maze walks around until all three targets were seen, 500 steps at most, and the model
memorises. Then the model alone decides: it plans to where it believes the asked target to be, and plans again after
every few steps. Where that is was worked out from pictures: the three colours are known beforehand, and so are the lens
and how large a target is. A target that is seen beside its place corrects the pose, and one that is in view is walked
to straight away. Rewards are counted, nothing else.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from guesses import Guesses

from gtmsm.explore import Explorer
from gtmsm.model.planning import PlanConfig
from gtmsm.tensors import Belief
from gtmsm.worlds.maze_explorer import FINE
from gtmsm.worlds.memory_maze import NAMES, MemoryMazeEnv

STEPS, WALKED, EVERY = 1_000, 500, 4
PIXELS, RADIUS = 32, 0.3
"""Side of a picture, and half of a target's width in cells."""
FOCAL = PIXELS / 2 / math.tan(math.radians(40))
"""Of a lens of 80 degrees, in pixels."""
HORIZON = 14
"""Row of a picture above which there is never a target, but there are walls of its colour."""
NARROWEST, SURE = 5, 3
"""Pixels of a target that is looked at (narrower ones are walls often), and sightings that settle where one is."""
STILL, SLOW = 1.0, 2.0
"""Mean differences of two pictures, of 255: below the first a push has led nowhere; twice below the second, it had
better turn aside."""
MISTAKEN = 1.0
"""Cells up to which something of a target's colour beside its place is taken for it."""
GUESSES = 128
"""Of where the agent is."""
FAR_OFF = 0.5
"""From walked ground, in the model's units of which a step is 0.2: farther away, nothing is known of the ground."""
SETTINGS = PlanConfig(horizon=48, near=0.25, candidates=256, rounds=4, margin=0.3)


def sighting(frame, colour):
    """A target in a picture: how far ahead and to the left it is, in cells, and how wide it looks; None: none there."""
    pixels = frame.astype(float)
    like = pixels @ colour / np.maximum(np.linalg.norm(pixels, axis=2) * np.linalg.norm(colour), 1.0)
    match = (like > 0.99) & (pixels.max(2) > 50)
    columns = match[HORIZON:].any(0) & ~match[:HORIZON].any(0)
    found = np.flatnonzero(columns)
    if len(found) < NARROWEST or found[0] == 0 or found[-1] == PIXELS - 1 or found[-1] - found[0] + 1 != len(found):
        return None
    width, middle = len(found), (found[0] + found[-1] + 1) / 2
    far = RADIUS / math.sin(math.atan(width / 2 / FOCAL))
    bearing = math.atan((PIXELS / 2 - middle) / FOCAL)
    return far * math.cos(bearing), far * math.sin(bearing), width


@dataclass
class Targets:
    """Where sightings put the targets, in the model's frame, in cells."""

    points: dict[tuple[float, ...], list[tuple[float, float, float]]] = field(default_factory=dict)
    best: dict[tuple[float, ...], tuple[float, float, float]] = field(default_factory=dict)
    """From where each looked largest, and how large."""

    def see(self, frame, pose, colours):
        """Note what is seen from a pose."""
        for colour in colours:
            if (seen := sighting(frame, np.array(colour))) is not None:
                ahead, left, width = seen
                c, s = math.cos(pose[2]), math.sin(pose[2])
                point = np.array([pose[0] + c * ahead - s * left, pose[1] + s * ahead + c * left])
                self.points.setdefault(colour, []).append((*point, width**2))
                self.best[colour] = max(self.best.get(colour, (0, 0, 0)), (pose[0], pose[1], width), key=lambda x: x[2])

    def place(self, colour):
        """The weighted median of all sightings; None where there are few."""
        if len(self.points.get(colour, [])) < SURE:
            return None
        x, y, weight = np.array(self.points[colour]).T
        return np.array([_median(x, weight), _median(y, weight)])


def _median(values, weights):
    order = np.argsort(values)
    return values[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)]


class Player:
    """An agent that memorises a maze and then looks for targets; in a control it is given true poses."""

    def __init__(self, learned, env, seed, true=False):
        self.learned, self.env, self.seed, self.true, self.model = learned, env, seed, true, learned.model
        self.explorer, self.targets = Explorer(learned.model), Targets()
        self.stuck = 0
        self.rng, self.chance = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        self.log = []

    def begin(self):
        """An episode; a second one is in the same maze, and has the same start."""
        frame, info = self.env.reset(seed=self.seed)
        self.tour, self.start, self.frame = Tour(self.env), info["pose"], frame
        self.state, self.done, self.score, self.off, self.guesses = self.model.motion.start(1), 0, 0.0, [], None
        self.asked = tuple(info["asked"])
        task = self.env._env.task
        self.colours = [tuple(colour) for colour in task._target_colors[: task.n_targets]]
        return frame, info

    def memorise(self, most=WALKED):
        """Be led through the maze until all targets were seen, and memorise; afterwards nothing is memorised."""
        frame, info = self.begin()
        self.take_in(frame, None, info)
        while self.done < most and not all(self.targets.place(colour) is not None for colour in self.colours):
            self.act(self.tour(self.rng))
        self.walked, self.before = self.done, self.score
        self.memory = self.explorer.memory.snapshot()

    def memorise_as(self, other):
        """The same walk as another player's."""
        self.begin()
        for step in other.log[: other.walked + 1]:
            self.take_in(*step)
        self.memory = self.explorer.memory.snapshot()

    def hunt(self):
        """To one target after the other, until the episode is over; returns how many were touched."""
        self.guesses = Guesses(self.model, self.memory, GUESSES, self.seed, self.state)
        while self.done < STEPS:
            place, asked = self.targets.place(self.asked), self.asked
            choices = (self.tour(self.rng),) if place is None else self.towards_target(place)
            for choice in choices:
                if self.done == STEPS or self.act(choice) or self.asked != asked:
                    break
        return self.score

    def act(self, action):
        """Whether this touched the target that was asked for; -1: nothing is done."""
        frame, reward, _, _, info = self.env.step(max(action, 0))
        self.done += 1
        self.score += reward
        self.take_in(frame, max(action, 0), info)
        return reward > 0

    def take_in(self, frame, action, info):
        """Memorise or recognise what is seen, and look for targets."""
        self.log.append((frame, action, info))
        changed = np.abs(frame.astype(float) - self.frame).mean()
        pushed = action is not None and "forward" in NAMES[action]
        self.stuck = self.stuck + 1 if pushed and changed < SLOW else 0
        truth = self.learned.pose(info["pose"], self.start)
        if self.guesses is None:
            self.state = self._memorised(frame, action, changed, truth)
        else:
            done = torch.nn.functional.one_hot(torch.tensor([action]), len(NAMES)).float()
            if self.true:
                self.state = self.model.motion.settle(self.model.motion.step(self.state, done), truth[None])
            else:
                self.guesses.step(torch.from_numpy(frame).permute(2, 0, 1) / 255, done)
                self.state, _ = self.guesses.best()
        self.frame, self.asked = frame, tuple(info["asked"])
        self.off.append(self.learned.unit * float((self.here[:2] - truth[:2]).norm()))
        if self.guesses is None:
            x, y, heading = self.here.tolist()
            self.targets.see(frame, (self.learned.unit * x, self.learned.unit * y, heading), self.colours)

    def _memorised(self, frame, action, changed, truth):
        """Where the explorer is after a step of the walk."""
        before = self.explorer.here.mean.clone()
        self.explorer.step(frame, action)
        state = self.explorer.here.mean.clone()
        if self.true:
            state = self.model.motion.settle(state, truth[None])
        elif self.stuck and changed < STILL:  # nothing moved: something is in the way
            state[:, :2], state[:, 3:5] = before[:, :2], 0.0
        self.explorer.here = Belief(state)
        return state

    @property
    def here(self):
        return self.state[0, :3]

    def towards_target(self, place):
        """The next actions to the target that is asked for, which was seen at `place`.

        A target that is in view is walked to straight away. One that lies beyond the ground that was walked on is
        approached from where it looked largest.
        """
        if self.stuck > 1:  # away from what is in the way
            self.stuck = 0
            return (*[int(self.rng.integers(2, 4))] * int(self.rng.integers(2, 5)), 1, 1)
        if choices := self.in_view(self.asked, place):
            return choices
        ground, unit = self.memory.place.mean[0, :, :2], self.learned.unit
        goal = torch.tensor(place / unit, dtype=torch.float32)
        if float((ground - goal).norm(dim=-1).min()) > FAR_OFF:
            goal = torch.tensor(self.targets.best[self.asked][:2], dtype=torch.float32) / unit
            if float((goal - self.here[:2]).norm()) < FAR_OFF:
                return self.towards(place)
        plan = self.model.plan(self.memory, Belief(self.state), goal, settings=SETTINGS, generator=self.chance)
        return self.towards(place) if set(plan.choices[:EVERY]) <= {-1} else plan.choices[:EVERY]

    def in_view(self, colour, place):
        """The next action towards a target that is in view about where it should be; none where it is not."""
        if (seen := sighting(self.frame, np.array(colour))) is None:
            return ()
        x, y, heading = self.here.tolist()
        c, s, unit = math.cos(heading), math.sin(heading), self.learned.unit
        point = np.array([unit * x + c * seen[0] - s * seen[1], unit * y + s * seen[0] + c * seen[1]])
        return self.towards(point) if np.hypot(*(point - place)) < MISTAKEN else ()

    def towards(self, point):
        """The next action on the straight line to a point."""
        x, y, heading = self.here.tolist()
        away = point - self.learned.unit * np.array([x, y])
        bearing = math.remainder(math.atan2(away[1], away[0]) - heading, 2 * math.pi)
        left = bearing > 0
        return (1 if abs(bearing) < 0.15 else (4 if left else 5) if abs(bearing) < 0.5 else (2 if left else 3),)


class Tour:
    """Walks through a maze that it knows, each time to the nearest cell that it has not looked at."""

    def __init__(self, env):
        self.env, self.left = env, {(FINE * i + 2, FINE * j + 2) for i, j in env._explorer.maze.free}
        self.goal = None

    def __call__(self, rng):
        walker, here = self.env._explorer, self.env._pose()[:2].astype(float)
        self.left = {one for one in self.left if not self.sees(here, (np.array(one) + 0.5) / FINE)}
        if self.goal not in self.left or not walker._way or walker._goal != self.goal:
            reached = walker._reached(here)
            ways = [(reached[one][1], one) for one in self.left if one in reached]
            if ways:
                self.goal = min(ways)[1]
                walker._goals, walker._goal, walker._age = [self.goal], self.goal, 0
                walker._way = walker._way_to(self.goal, here, reached)
        return self.env.explore(rng)

    def sees(self, here, point):
        """Whether a cell is so near, and in view, that a target there would be recognised."""
        away = point - here
        far, off = np.hypot(*away), math.remainder(math.atan2(away[1], away[0]) - self.env._pose()[2], 2 * math.pi)
        return far < 0.8 or (far < 2.2 and abs(off) < 0.6 and self.env._explorer._sees(here, point))


def at_random(env, seed, rng):
    """The return of an episode of random actions."""
    env.reset(seed=seed)
    return sum(env.step(int(rng.integers(len(NAMES))))[1] for _ in range(STEPS))


def play(runs, seeds):
    """The outcomes of each episode; see known_tasks.py."""
    env = MemoryMazeEnv(frequency=4, rewards=True, pixels=PIXELS)
    for seed in seeds:
        outcomes, player, told = {}, Player(runs[0], env, seed), Player(runs[0], env, seed, true=True)
        player.memorise()
        besides = {"steps of the walk": player.walked, "cells off at its end": player.off[-1]}
        outcomes["planning, the walk is part of the episode"] = player.hunt()
        outcomes["of these, on the walk"] = player.before
        told.memorise_as(player)
        for who, one in (("planning", player), ("planning, true poses", told)):
            one.begin()
            outcomes[f"{who}, the walk came before"] = one.hunt()
        besides["cells off, median of an episode"] = float(np.median(player.off))
        outcomes["random"] = at_random(env, seed, np.random.default_rng(seed))
        yield {"seed": seed, "outcomes": outcomes, "kinds": [], "besides": besides}
