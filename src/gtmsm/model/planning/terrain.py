"""A map of the ground made from memory: where an agent can go, and how far each place is from a goal.

Positions lie in a plane, which is divided into squares. If the motion has walls, all ground that they leave open is
open, except where the agent bumped into something. If it has none, only ground near visited places is open. Distances
are measured around barred ground.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from scipy.ndimage import distance_transform_edt
from skimage.graph import MCP_Geometric
from torch import Tensor

from gtmsm.config import config, require, require_whole
from gtmsm.model.memory import Memory
from gtmsm.model.motion import Motion
from gtmsm.model.planning.gait import Gait, gait
from gtmsm.model.planning.obstacles import Obstacles, Walked, stopped

if TYPE_CHECKING:
    from gtmsm.model.gtmsm import WorldModel

FINE = 4
"""Squares per length of the shortest step; for agents with momentum, whose steps are short, per margin."""
MOST = 192
"""Maximum number of squares along a side of the map; larger ground has larger squares."""
DETOUR = 4.0
"""Additional cost, in steps, of a step at the edge of known ground: something may be in the way there."""


@config
class PlanConfig:
    """The size of the search, and what counts as reached, open and known."""

    candidates: int = 1024
    """Number of sequences of actions in the population."""
    horizon: int = 64
    """Maximum number of steps of a plan."""
    rounds: int = 5
    """Number of times that the population is unrolled; after each, the best sequences are kept and varied."""
    elite: int = 64
    """Number of sequences that are kept after each round."""
    near: float = 0.5
    """The goal counts as reached within this distance, in steps. With a heading: three times this distance, and twice
    as many of the largest turns."""
    margin: float = 0.6
    """Distance from visited places, in steps, within which ground counts as open if the motion has no walls; five times
    as far for agents with momentum, whose steps are short."""
    beam: int = 0
    """Width of a beam search, whose result is one of the sequences that the search begins with: for narrow ground, on
    which random sequences hardly ever stay. 0: no beam search."""
    least_known: float = 0.5
    """Minimum probability that the goal picture was seen in this memory; below it, the plan is empty and says so."""

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        for name in ("candidates", "horizon", "rounds", "elite"):
            require_whole(name, getattr(self, name), most=10**6)
        require_whole("beam", self.beam, least=0, most=10**6)
        require(self.elite <= self.candidates, f"elite is {self.elite}; give at most candidates, {self.candidates}")
        require(self.near > 0, f"near is {self.near}; give a distance above 0")
        require(self.margin > 0, f"margin is {self.margin}; give a distance above 0")
        require(0 <= self.least_known <= 1, f"least_known is {self.least_known}; give a probability from 0 to 1")


@dataclass(frozen=True)
class Terrain:
    """A map of squares: which of them are open, and what a step in each costs."""

    motion: Motion
    pace: Gait
    near: float
    """Distance from a goal within which it counts as reached."""
    near_turn: float
    """The same for headings, in radians."""
    margin: float
    """Distance from visited places within which ground is open if the motion has no walls."""
    visited: Float[Tensor, "n 2"]
    origin: Float[Tensor, "2"]
    pitch: float
    """Side of a square."""
    far: Float[np.ndarray, "rows columns"]
    """Distance to visited places."""
    barred: Bool[Tensor, "squares"]
    price: Float[Tensor, "squares"]
    """Cost of a step in each square: 1, or more far from visited places if the motion has no walls."""
    exact: Obstacles | None = None
    """The obstacles, if they are smaller than squares: then they bar ground within open squares, too."""

    @classmethod
    @torch.no_grad()
    def of(
        cls, model: "WorldModel", memory: Memory, walked: Walked | None, settings: PlanConfig, choices: Tensor
    ) -> "Terrain":
        """Map visited places and obstacles, for an agent that has these actions to choose from."""
        motion = model.motion
        require(motion.space.positions == 2, "planning needs positions in a plane, and this motion has others")
        pace = gait(motion, choices)
        visited = (memory.place.mean[0, :, :2] if walked is None else walked.visited(memory)).detach()
        near = settings.near * (3 * pace.stride if pace.turn else pace.shortest)
        margin = settings.margin * pace.stride * (5 if pace.coast else 1)
        known = visited.cpu().double().numpy()
        pad = margin + 3 * pace.stride
        low, high = known.min(0) - pad, known.max(0) + pad
        pitch = max((margin if pace.coast else pace.shortest) / FINE, float((high - low).max()) / MOST)
        shape = tuple(int(n) for n in np.ceil((high - low) / pitch) + 1)
        elsewhere = np.ones(shape, bool)
        elsewhere[tuple(np.round((known - low) / pitch).astype(int).T)] = False
        far = distance_transform_edt(elsewhere) * pitch
        axes = [low[i] + pitch * np.arange(shape[i]) for i in range(2)]
        is_open = far <= margin
        squares = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
        if motion.walls:
            is_open = motion.is_open(torch.as_tensor(squares).to(visited)).cpu().numpy()
        obstacles = None if walked is None else Obstacles.of(motion, memory, walked, pace)
        if obstacles is not None:
            is_open &= ~obstacles.bar(squares, pitch, far)
        risk = np.zeros(shape) if motion.walls else DETOUR * np.square(far.clip(max=margin) / margin)
        barred, price = torch.as_tensor(~is_open.ravel()), torch.as_tensor(1 + risk.ravel()).to(visited)
        turn, low = 2 * settings.near * pace.turn, visited.new_tensor(low)
        barred, exact = barred.to(visited.device), obstacles if obstacles and pitch > obstacles.reach else None
        return cls(motion, pace, near, turn, margin, visited, low, pitch, far, barred, price, exact)

    def squares(self, position: Float[Tensor, "*n 2"]) -> Int[Tensor, "*n"]:
        """Index of the square of each position; outside of the map, of the nearest square."""
        rows, columns = self.far.shape
        row, column = ((position - self.origin) / self.pitch).round_().nan_to_num_().unbind(-1)
        # Whole numbers stay floats until the last step, which is faster.
        return torch.add(column.clamp_(0, columns - 1), row.clamp_(0, rows - 1), alpha=columns).long()

    def closed(self, position: Float[Tensor, "*n 2"], square: Int[Tensor, "*n"]) -> Bool[Tensor, "*n"]:
        """Whether ground is barred at positions, given their `squares`."""
        closed = looked_up(self.barred, square)
        return closed if self.exact is None else closed | self.exact.at(position)

    def steps_to(self, goal: Float[Tensor, "D"]) -> Float[Tensor, "squares"]:
        """The least cost from each square to a goal, around barred ground, in steps of the longest length."""
        rows, columns = self.far.shape
        barred = self.barred.view(rows, columns).cpu().numpy()
        price = self.price.view(rows, columns).double().cpu().numpy()
        square = int(self.squares(goal[:2]))
        end = square // columns, square % columns
        price = np.where(barred, -1.0, price)
        price[end] = 1
        steps = MCP_Geometric(price).find_costs([end])[0] * self.pitch / self.pace.stride
        reached = np.isfinite(steps)
        # An agent on barred ground is led back: the cost there grows with the distance to visited places.
        steps = np.where(reached, steps, steps[reached].max() + 1 + self.far / self.pace.stride)
        return torch.as_tensor(steps.ravel()).to(self.origin)

    def rest(self, states: Float[Tensor, "*n S"]) -> Float[Tensor, "*n 2"]:
        """Where an agent comes to rest if it does nothing more."""
        if not self.pace.coast:
            return states[..., :2]
        x, y, heading, ahead, left = states[..., :5].unbind(-1)
        c, s = heading.cos().mul_(self.pace.coast), heading.sin().mul_(self.pace.coast)
        x, y = torch.addcmul(x, c, ahead).addcmul_(s, left, value=-1), torch.addcmul(y, s, ahead).addcmul_(c, left)
        return torch.stack([x, y]).movedim(0, -1)  # axis by axis in memory, which is faster

    def step(self, state: Float[Tensor, "n S"], a: Float[Tensor, "n A"]) -> Float[Tensor, "n S"]:
        """A step of the learned motion; one from open to barred ground is not made, and ends all momentum."""
        after = self.motion.step(state, a)
        now, before = (self.closed(xy, self.squares(xy)) for xy in (after[:, :2], state[:, :2]))
        return stopped(self.motion, state, after, now & ~before)

    def there(self, states: Float[Tensor, "*n S"], goal: Float[Tensor, "*n D"]) -> Bool[Tensor, "*n"]:
        """Whether agents come to rest at the goal, with its heading."""
        there = (self.rest(states) - goal[..., :2]).norm(dim=-1) <= self.near
        if self.pace.turn:
            there &= turns(states[..., 2] - goal[..., 2]) <= self.near_turn
        return there


def looked_up(table: Shaped[Tensor, "squares"], at: Int[Tensor, "*n"]) -> Shaped[Tensor, "*n"]:
    """`table[at]`, faster."""
    return table.index_select(0, at.reshape(-1)).view(at.shape)


def turns(difference: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """The absolute angle, wrapped to [0, pi]."""
    return ((difference + math.pi).remainder(2 * math.pi) - math.pi).abs()
