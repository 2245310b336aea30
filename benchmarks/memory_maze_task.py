"""Memory Maze 9x9 as published: 4 steps a second, 1,000 steps, 1 for each touch of the asked target; see known_tasks.py

The agent is led by an agent that knows the maze until it has seen all targets; then it plans to the asked one, on
ground that it memorised (memory_maze_memory.py) or that rules see in pictures (memory_maze_ground.py). Where targets
are is worked out from pictures (memory_maze_sights.py). Poses follow the learned motion, as guesses that are weighed by
memorised views or by rules, and by targets. Nothing is learned from rewards, but a touch tells that the target is here.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from guesses import GuessConfig, Guesses
from memory_maze_ground import Seen
from memory_maze_memory import Memorised
from memory_maze_sights import PIXELS, Targets, small, things

from gtmsm.explore import Explorer
from gtmsm.model.planning import PlanConfig, Walked
from gtmsm.tensors import Belief
from gtmsm.worlds.maze_explorer import FINE
from gtmsm.worlds.memory_maze import NAMES, MemoryMazeEnv

STEPS, EVERY = 1_000, 2
GUESSES = 512
"""Of where the agent is."""
GUESS = GuessConfig(rough=(0.0015, 0.0007, 0.0012), again=0.5, swerve=0.1, anew=0.0, elsewhere=5.0, sharp=0.0)
"""As little noise as the motion has errors, where nothing is in the way."""
MOVES, HELD = 0.15, 0.3
"""Length of a planned step that should move the agent, in the model's units, and the share of it below which something
is in the way."""
LED = 0.002
"""Probability of a bump at each step as long as it is led."""
BACK = 40
"""Of its last steps are ground, so that it finds back where it left the ground."""
SETTINGS = PlanConfig(horizon=30, near=0.4, candidates=64, rounds=2, elite=32, beam=64)
"""In the model's units a stride is 0.33: 0.3 cells from the target count as there."""
ROWS = {
    "planning, by the model's memory": (False, False),
    "by the model's memory, true poses": (False, True),
    "planning, ground by rules": (True, False),
    "ground by rules, true poses": (True, True),
}
"""Whether ground is seen by rules, and whether true poses are given."""


class Player:
    """An agent that memorises a maze and looks for targets; `rules` see its ground, in a control poses are `true`."""

    def __init__(self, learned, env, seed, rules=False, true=False):
        self.learned, self.env, self.seed, self.true, self.model = learned, env, seed, true, learned.model
        self.explorer, self.targets = Explorer(learned.model), Targets()
        self.ground = Seen() if rules else Memorised(self.explorer, learned.unit)
        self.chance = torch.Generator().manual_seed(seed)
        self.log, self.steps, self.learning = [], [], True

    def begin(self):
        """An episode; a second one is in the same maze, and has the same start."""
        frame, info = self.env.reset(seed=self.seed)
        self.start, self.state, self.done, self.score, self.off = info["pose"], self.model.motion.start(1), 0, 0.0, []
        self.guesses = Guesses(self.model, self.explorer.memory, GUESSES, self.seed, self.state, GUESS)
        self.asked, self.plan = tuple(info["asked"]), None
        task = self.env._env.task
        self.colours = [tuple(colour) for colour in task._target_colors[: task.n_targets]]
        self.take_in(frame, None, info)

    def memorise(self):
        """Be led by an agent that knows the maze until all targets were seen, and memorise."""
        self.begin()
        tour, rng = Tour(self.env), np.random.default_rng(self.seed)
        while self.done < STEPS and self.learning:
            self.act(tour(rng))
        self.walked = self.done

    def hunt(self):
        """To one target after the other, until the episode is over; returns how many were touched."""
        while self.done < STEPS:
            asked, place = self.asked, self.targets.place(self.asked)
            for choice in self.planned(place) or self.straight(place):
                if self.done == STEPS or self.act(self.careful(choice)) or self.asked != asked:
                    self.plan = None
                    break
        return self.score

    def careful(self, action):
        """The action, unless what is seen speaks against it."""
        return self.ground.careful(action, self.log[-1][0], things(self.log[-1][0], self.colours))

    def act(self, action):
        """Whether this touched the target that was asked for; -1: nothing is done."""
        frame, reward, _, _, info = self.env.step(max(action, 0))
        self.done += 1
        self.score += reward
        self.take_in(frame, max(action, 0), info, self.asked if reward > 0 else None)
        return reward > 0

    def take_in(self, frame, action, info, touched=None):
        """Find out where it is, and memorise what is seen there."""
        self.log.append((frame, action, info, touched))
        truth, before = self.learned.pose(info["pose"], self.start), self.state
        done = None if action is None else torch.eye(len(NAMES))[[action]]
        hidden = things(frame, self.colours)
        if self.true:
            moved = before if done is None else self.model.motion.step(before, done)
            self.state = self.model.motion.settle(moved, truth[None])
        else:
            self.state = self._guessed(frame, done, touched, hidden)
        if done is not None:
            self.steps.append((before[0], done[0], self.state[0]))
            planned = self.model.motion.step(before, done)[0, :2] - before[0, :2]
            made = self.state[0, :2] - before[0, :2]
            if planned.norm() > MOVES and planned @ made < HELD * planned.square().sum():
                self.ground.bump(self.cells)
        self.targets.see(frame, self.cells, self.colours, self.learning)
        self.ground.see(frame, self.cells, hidden)
        if self.learning:
            self.explorer.here = Belief(before)
            self.explorer.step(small(frame), action)
            self.learning = any(self.targets.place(colour) is None for colour in self.colours)
        self.asked = tuple(info["asked"])
        self.off.append(self.learned.unit * float((self.state[0, :2] - truth[:2]).norm()))

    def _guessed(self, frame, done, touched, hidden):
        """Where most guesses are after a step."""
        scale = torch.tensor([self.learned.unit, self.learned.unit, 1.0])

        def also(states):
            poses = states[:, :3] * scale
            return self.targets.likely(frame, poses, touched) + self.ground.likely(frame, poses, hidden)

        def put(states):
            place, ahead, left = implied
            c, s = states[:, 2].cos(), states[:, 2].sin()
            moved = states.clone()
            moved[:, 0] = (place[0] - c * ahead + s * left) / self.learned.unit
            moved[:, 1] = (place[1] - s * ahead - c * left) / self.learned.unit
            return moved

        implied = self.targets.implied(frame, touched)

        def bumps(states):
            return LED if self.learning else self.ground.bumps(states[:, :2] * self.learned.unit, frame)

        picture = torch.from_numpy(small(frame)).permute(2, 0, 1) / 255
        self.guesses.step(picture, done, also, bumps, put if implied else None)
        return self.guesses.best()[0]

    @property
    def cells(self):
        """The pose with x and y in cells."""
        x, y, heading = self.state[0, :3].tolist()
        return self.learned.unit * x, self.learned.unit * y, heading

    def planned(self, place):
        """The next actions to a point in cells; none where it is there, or finds no way."""
        goal = torch.tensor(place / self.learned.unit, dtype=torch.float32)
        memory, here = self.explorer.memory.snapshot(), Belief(self.state)
        settings = replace(SETTINGS, margin=self.ground.margin)
        plan = self.model.plan(memory, here, goal, self.known_ground(), settings, None, self.plan, self.chance)
        self.plan = replace(plan, choices=plan.choices[EVERY:])
        return plan.choices[:EVERY]

    def known_ground(self):
        """What is known of the ground beside memorised places, and the steps that were tried."""
        came = [self.learned.unit * after[:2].numpy() for _, _, after in self.steps[-BACK:]]
        points = np.concatenate([self.ground.points(), self.targets.ground(), np.reshape(came, (-1, 2))])
        seen = torch.tensor(points / self.learned.unit, dtype=torch.float32)
        return Walked(*(torch.stack(part) for part in zip(*self.steps, strict=True)), seen)

    def bearing(self, point):
        """Radians to turn to the left to a point in cells."""
        x, y, heading = self.cells
        return math.remainder(math.atan2(point[1] - y, point[0] - x) - heading, 2 * math.pi)

    def straight(self, point):
        """The next action on the straight line to a point."""
        bearing = self.bearing(point)
        left = bearing > 0
        return (1 if abs(bearing) < 0.15 else (4 if left else 5) if abs(bearing) < 0.5 else (2 if left else 3),)


class Tour:
    """Walks through a maze that it knows, each time to the nearest cell that it has not looked at."""

    def __init__(self, env):
        self.env, self.cells = env, {(FINE * i + 2, FINE * j + 2) for i, j in env._explorer.maze.free}
        self.left, self.goal = self.cells, None

    def __call__(self, rng):
        walker, here = self.env._explorer, self.env._pose()[:2].astype(float)
        self.left = {one for one in self.left if not self.sees(here, (np.array(one) + 0.5) / FINE)} or self.cells
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
        outcomes, besides = {}, {}
        for who, (rules, true) in ROWS.items():
            player = Player(runs[0], env, seed, rules, true)
            player.memorise()
            besides[f"{who}: steps of the walk"] = player.walked
            outcomes[who] = player.hunt()
            if not true:
                besides |= {
                    f"{who}: cells off at the end of the walk": player.off[player.walked],
                    f"{who}: cells off, median of the episode": float(np.median(player.off)),
                    f"{who}: cells off at the end of the episode": player.off[-1],
                }
        outcomes["random"] = at_random(env, seed, np.random.default_rng(seed))
        yield {"seed": seed, "outcomes": outcomes, "kinds": [], "besides": besides}
