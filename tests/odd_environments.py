"""Environments that are quick, and some that misbehave, for the recorder; their frames say where the agent is."""

import os
import time

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import Autoreset


class Corridor(gymnasium.Env):
    """The agent walks left or right in a corridor; with bad seeds (one in three) something goes wrong on the way."""

    metadata = {"render_modes": ["rgb_array"]}
    PIXELS = spaces.Box(0, 255, (16, 24, 3), np.uint8)

    def __init__(self, fault="", bad=3, actions="discrete", observes="pixels", slow=0.0, poses="", render_mode=None):
        self.fault, self.bad, self.observes, self.slow, self.render_mode = fault, bad, observes, slow, render_mode
        self.poses = poses
        self.action_space = {
            "discrete": spaces.Discrete(2, start=5),
            "several": spaces.MultiDiscrete([2, 3]),
            "vector": spaces.Box(np.array([-2, -np.inf], np.float32), np.array([2, np.inf], np.float32)),
            "parts": spaces.Dict({"turn": spaces.Discrete(3), "drive": spaces.Box(0, 1, (1,), np.float32)}),
            "text": spaces.Text(3),
        }[actions]
        grey = spaces.Box(0, 255, (16, 24), np.uint8)
        self.observation_space = {
            "pixels": self.PIXELS,
            "first": spaces.Box(0, 255, (3, 16, 24), np.uint8),
            "grey": grey,
            "floats": spaces.Box(0, 1, (16, 24, 3), np.float32),
            "bright floats": spaces.Box(0, 255, (16, 24, 3), np.float32),
            "wrong floats": spaces.Box(0, 1, (16, 24, 3), np.float32),
            "dict": spaces.Dict({"camera": self.PIXELS, "speed": spaces.Box(0, 1, (2,), np.float32)}),
            "two": spaces.Dict({"camera": self.PIXELS, "depth": grey}),
            "nothing": spaces.Box(0, 1, (4,), np.float32),
        }[observes]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.is_bad, self.time = seed is not None and self.fault and seed % self.bad == self.bad - 1, 0
        self.x, self.colour = int(self.np_random.integers(24)), self.np_random.integers(50, 200, 3)
        if self.is_bad and self.fault == "reset":
            raise OSError("no such\n level")
        return self.observe(), {"pose": self.pose(), "place": f"corridor {seed}"}

    def step(self, action):
        self.time += 1
        time.sleep(self.slow)
        sideways = int(action) - 5 if isinstance(self.action_space, spaces.Discrete) else self.time % 2
        self.x = (self.x + 2 * sideways - 1) % 24
        over = self.is_bad and self.time == 2
        if over and self.fault == "step":
            raise ZeroDivisionError("division by zero")
        if over and self.fault == "exit":
            os._exit(7)
        if over and self.fault == "crash":
            os.kill(os.getpid(), 11)
        if over and self.fault == "hang":
            time.sleep(1000)
        ends = self.is_bad and (self.fault == "end" or (self.fault == "late end" and self.time == 4))
        return self.observe(), 0.0, bool(ends), False, {"pose": self.pose()}

    def pose(self):
        if self.poses == "named":
            return {"x": self.x, "y": 0.0}
        late = self.is_bad and self.time == 2
        return {"pose": (self.x, np.nan), "few": (self.x,)}.get(self.fault if late else "", (self.x, 0.0))

    def picture(self):
        picture = np.full((16, 24, 3), 20, np.uint8)
        picture[:, self.x] = self.colour
        if self.is_bad and self.time == 2:
            changes = {"shape": picture[1:], "dtype": picture.astype(np.int32), "none": None}
            return changes.get(self.fault, picture)
        return picture

    def observe(self):
        picture = self.picture()
        return {
            "pixels": lambda: picture,
            "first": lambda: picture.transpose(2, 0, 1),
            "grey": lambda: picture[..., 0],
            "floats": lambda: (picture / 255).astype(np.float32),
            "bright floats": lambda: picture.astype(np.float32),
            "wrong floats": lambda: picture.astype(np.float32),
            "dict": lambda: {"camera": picture, "speed": np.zeros(2, np.float32)},
            "two": lambda: {"camera": picture, "depth": picture[..., 0]},
            "nothing": lambda: np.zeros(4, np.float32),
        }[self.observes]()

    def render(self):
        return self.picture() if self.render_mode else None


class Blind(Corridor):
    """Nothing to see, and nothing is rendered."""

    metadata = {"render_modes": []}

    def __init__(self):
        super().__init__(observes="nothing")


def restarting(**settings):
    """After an episode the next step ignores its action and starts another one."""
    return Autoreset(Corridor(**settings))


def dies(**settings):
    """Ends the process that makes it."""
    os._exit(3)


def to_the_right(observation, rng):
    return 6


def out_of_bounds(observation, rng):
    return [7.0, -7.0]


def clumsy(observation, rng):
    return "left"


def where(env):
    return env.x, 1.0, 0.5


for name, entry in {"Corridor": Corridor, "Blind": Blind, "Restarting": restarting, "Dies": dies}.items():
    gymnasium.register(f"odd/{name}-v0", entry_point=entry)
