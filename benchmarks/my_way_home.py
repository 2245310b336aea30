"""ViZDoom's My Way Home as an environment to record, and as a task: `known_tasks.py my-way-home`.

    cd benchmarks; gtmsm record my_way_home:MyWayHome-v0 --out home

Its own map, starts, vest and limit of 2,100 tics. Ours are the picture (no weapon, no crosshair, a camera that does not
swing; 32x32 pixels) and the actions: those of `gtmsm/Doom-v0`, four tics each, at the speed of the task's own buttons
ahead and sideways, and slower than these when turning.
"""

import math
import os

import gymnasium
import numpy as np
import vizdoom
from PIL import Image
from scipy.ndimage import distance_transform_edt
from skimage.graph import MCP_Geometric

from gtmsm.worlds.doom import PUSH, TICS, TURN_STEPS, set_view_and_keys
from gtmsm.worlds.doom_maze import UNIT
from gtmsm.worlds.maze_explorer import FORWARD, TURNS, VEERS
from gtmsm.worlds.physics import ACTIONS, KEYS

LIMIT = 2_100 // TICS
"""Steps of an episode."""
GRAIN = 4
"""Units of the engine to a square of the map on which walkers find their ways."""
AWAY = 72
"""Units that a walker keeps away from the vest: an episode ends there."""
BODY, BESIDE, AHEAD = 0.14, 0.22, 0.3
"""Cells: half of the agent, what it had better keep away from walls, and how far ahead it looks on its way."""
TURN, WIDE = 2 * math.pi / TURN_STEPS, 0.6
"""Radians of a turn, and up to which it walks while it turns."""


class Ground:
    """Where the map can be walked on, in cells as of `gtmsm/Doom-v0`."""

    def __init__(self, sectors, vest):
        walls = [line for sector in sectors for line in sector.lines if line.is_blocking]
        ends = np.array([(line.x1, line.y1, line.x2, line.y2) for line in walls])
        self.low = ends.reshape(-1, 2).min(0) - GRAIN
        count = np.ceil((ends.reshape(-1, 2).max(0) + GRAIN - self.low) / GRAIN).astype(int)
        x, y = (self.low[i] + GRAIN * (np.arange(count[i]) + 0.5) for i in range(2))
        inside = np.zeros(count, bool)
        for x1, y1, x2, y2 in ends:  # within an odd number of walls, as seen from the right
            if x1 == x2:
                inside ^= (x < x1)[:, None] & ((y > min(y1, y2)) & (y < max(y1, y2)))[None]
        self.far, self.vest = distance_transform_edt(inside) * GRAIN / UNIT, vest / UNIT
        apart = np.stack(np.meshgrid(x, y, indexing="ij"), -1) - vest
        self.price = np.where(inside, 1 + 8 * (self.far < BESIDE) + 100 * (self.far < BODY), -1.0)
        self.kept_away = np.where(np.hypot(*apart.T).T > AWAY, self.price, -1.0)

    def square(self, point):
        """The number of the square of a point."""
        return tuple(np.floor((np.asarray(point) * UNIT - self.low) / GRAIN).astype(int))

    def way(self, here, there, vest=False):
        """Points from here to there, away from walls and, unless it is wanted, from the vest; none: no way."""
        price = (self.price if vest else self.kept_away).copy()
        price[self.square(here)] = 1
        end = self.square(there)
        if price[end] < 0:
            return []
        paths = MCP_Geometric(price)
        costs, _ = paths.find_costs([self.square(here)], [end])
        found = paths.traceback(end) if np.isfinite(costs[end]) else []
        return [(np.array(one) + 0.5) * GRAIN / UNIT + self.low / UNIT for one in found]

    def draw(self, rng):
        """Some point of the map that is not beside a wall or the vest."""
        i, j = rng.choice(np.argwhere((self.kept_away > 0) & (self.far > BESIDE)))
        return (np.array([i, j]) + 0.5) * GRAIN / UNIT + self.low / UNIT


class Walker:
    """Walks by the true map to one point after the other, and looks around at some of them."""

    def __init__(self, ground):
        self.ground, self.way, self.turns, self.here, self.touches = ground, [], [], None, False

    def to(self, point, pose, vest=False):
        self.way, self.touches = self.ground.way(pose[:2], point, vest), vest

    def explore(self, pose, rng):
        """An action on a walk without an end."""
        if self.turns:
            return self.turns.pop()
        if not self.way:
            self.to(self.ground.draw(rng), pose)
            self.turns = [int(rng.choice(TURNS))] * int(rng.integers(5, TURN_STEPS) * (rng.random() < 0.3))
        return int(rng.integers(len(ACTIONS))) if rng.random() < 0.05 else self.action(pose)

    def action(self, pose):
        """The next action on the way; the points that are behind it are left out."""
        here, heading = pose[:2].astype(float), float(pose[2])
        drift = here - (here if self.here is None else self.here)
        self.here = here
        near = [k for k, point in enumerate(self.way[:60]) if math.dist(point, here + drift) < AHEAD]
        self.way = self.way[max(near, default=0) :]
        if not self.way:
            return FORWARD
        away = self.way[0] - here - drift
        if len(self.way) == 1 and near and not self.touches:
            self.way = []
        off = math.remainder(math.atan2(away[1], away[0]) - heading, 2 * math.pi)
        if abs(off) < TURN:
            return FORWARD
        return (VEERS if abs(off) < WIDE else TURNS)[int(off > 0)]


class MyWayHome(gymnasium.Env):
    """`info["pose"]` is x, y in cells of 128 units and the heading; reaching the vest is worth 1 and ends an episode.

    With `limited` it also ends after the task's 2,100 tics.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 9}
    action_names = ACTIONS

    def __init__(self, pixels=32, limited=False, render_mode=None):
        self.pixels, self.render_mode = pixels, render_mode
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))
        self.observation_space = gymnasium.spaces.Box(0, 255, (pixels, pixels, 3), np.uint8)
        self.game = _start(limited)
        objects, sectors = self.game.get_state().objects, self.game.get_state().sectors
        vest = next(np.array([one.position_x, one.position_y]) for one in objects if one.name == "GreenArmor")
        self.ground = Ground(sectors, vest)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.game.set_seed(int(self.np_random.integers(2**31)) if seed is None else seed)
        self.game.new_episode()
        self.walker = Walker(self.ground)
        self._last = self._look()
        return self._last

    def step(self, action):
        ahead, left, turned = KEYS[ACTIONS[int(action)]] if action >= 0 else (0, 0, 0)
        reward = self.game.make_action([PUSH * ahead, -PUSH * left, -360 / TURN_STEPS / TICS * turned], TICS)
        ended = self.game.is_episode_finished()
        if not ended:  # else there is no picture any more
            self._last = self._look()
        frame, info = self._last
        home = ended and self.game.get_total_reward() > 0
        return frame, float(reward), home, ended and not home, info

    def explore(self, rng):
        """An action of an agent that knows the map, and keeps away from the vest."""
        return self.walker.explore(self.pose(), rng)

    def pose(self):
        names = vizdoom.GameVariable
        x, y, angle = map(self.game.get_game_variable, (names.POSITION_X, names.POSITION_Y, names.ANGLE))
        return np.array([x / UNIT, y / UNIT, math.radians(angle)], np.float32)

    def _look(self):
        screen = Image.fromarray(self.game.get_state().screen_buffer)
        frame = np.array(screen.resize((self.pixels, self.pixels), Image.Resampling.BOX))
        return frame, {"pose": self.pose(), "place": "my way home"}

    def render(self):
        return None if self.render_mode is None else self.game.get_state().screen_buffer

    def close(self):
        self.game.close()


def _start(limited):
    game = vizdoom.DoomGame()
    game.load_config(os.path.join(vizdoom.scenarios_path, "my_way_home.cfg"))
    set_view_and_keys(game)
    game.set_objects_info_enabled(True)
    game.set_sectors_info_enabled(True)
    if not limited:
        game.set_episode_timeout(0)
    game.init()
    return game


gymnasium.register("MyWayHome-v0", MyWayHome, max_episode_steps=10_000)
