"""Walks that leave a place A and come back to it: loops A-B-A, and returns after any number of steps elsewhere.

They fix which steps are memorised and which predicted; on images they never push against a wall.

| walker | memorised | predicted |
|---|---|---|
| `LoopWalker` | looks around at A, walks to B | walks back, by the same way or another, looks around at A |
| `ReturnWalker` | looks around at A, leaves until nothing of it is in view, wanders | walks back, looks around |
| `SpinReturnWalker` | the same by turning on the spot | turns back |
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from gtmsm.config import require, require_whole
from gtmsm.errors import InputError
from gtmsm.worlds.image_walk import MOVES, ImageWalk
from gtmsm.worlds.slip import unwrapped
from gtmsm.worlds.walkers import action_named
from gtmsm.worlds.world import World, drawn

UP, DOWN, LEFT, RIGHT, STAY = range(5)
LOOK = (STAY, UP, RIGHT, DOWN, DOWN, LEFT, LEFT, UP, UP, RIGHT, DOWN, STAY)
"""Around the eight cells beside A, and back to its middle."""
CLEAR = 4
"""Cells from the middle of A from where on nothing is in view that was looked at: views of 8 pixels, 3 apart."""
BACK = 20
"""Steps that every way back is given; who is there sooner waits."""
FAR, LEAST = 16, 7
"""Steps from A to B, and the least of them along each axis."""
TURNS = 0.25
"""Probability to turn, at each step of wandering."""


@runtime_checkable
class Returning(Protocol):
    """A walker whose walks have a shape of their own."""

    tau: int
    """Steps to memorise."""
    horizon: int
    """Steps to predict."""
    skip: int
    """Predicted steps before all are at A."""

    def __call__(self, world: World, steps: int, generator: torch.Generator) -> Int64[Tensor, "n steps"]:
        """See `Walker`; of tau + horizon steps."""


class LoopWalker:
    """From A, the middle of an image, to B and back."""

    skip = 0

    def __init__(self, other_way: bool = False) -> None:
        """Back by the very same cells, or around the other corner."""
        self.other_way = other_way
        self.tau, self.horizon = len(LOOK) + FAR, FAR + len(LOOK)

    def __call__(self, world: World, steps: int, generator: torch.Generator) -> Int64[Tensor, "n steps"]:
        """Along one axis, then along the other."""
        n, device = _agents(self, world, steps, FAR - LEAST), world.device
        chance = drawn(2, (3, n, 1), generator, device)
        rows = LEAST + drawn(FAR - 2 * LEAST + 1, (n, 1), generator, device)
        vertical, horizontal, rows_first = UP + chance[0], LEFT + chance[1], chance[2].bool()
        first = torch.where(rows_first, rows, FAR - rows)
        begins, goes_on = (torch.where(rows_first, a, b) for a, b in ((vertical, horizontal), (horizontal, vertical)))
        there = torch.where(torch.arange(FAR, device=device) < first, begins, goes_on)
        undone = there ^ 1
        return torch.cat([_look(n, device), there, undone if self.other_way else undone.flip(1), _look(n, device)], 1)


class ReturnWalker:
    """Away from A, the middle of an image, and back."""

    skip = BACK

    def __init__(self, away: int) -> None:
        """Wander for so many steps where nothing of A is in view."""
        require_whole("steps away", away, least=0, most=100_000)
        self.away = away
        self.tau, self.horizon = len(LOOK) + CLEAR + away, BACK + len(LOOK)

    def __call__(self, world: World, steps: int, generator: torch.Generator) -> Int64[Tensor, "n steps"]:
        """Straight out, about, and straight back."""
        n, device = _agents(self, world, steps, CLEAR + 1), world.device
        out = drawn(4, (n, 1), generator, device)
        moves = torch.tensor(MOVES, device=device)
        cell, actions = world.pose.long() + CLEAR * moves[out[:, 0]], [_look(n, device), out.expand(n, CLEAR)]
        inner, heading = unwrapped(world), out[:, 0]
        assert isinstance(inner, ImageWalk)
        for _ in range(self.away):
            heading = _wander(cell, heading, inner.config.cells, generator)
            cell = cell + moves[heading]
            actions.append(heading[:, None])
        home = _straight(world.pose.long() - cell, drawn(2, (n, 1), generator, device).bool())
        return torch.cat([*actions, home, _look(n, device)], dim=1)


class SpinReturnWalker:
    """Turned away from where an agent looks first, and back."""

    sweep, out, far = 8, 20, 26
    """Turns to look around; turns after which nothing of that is in view (80 degrees, 41 to a full turn), and up to
    where it wanders."""
    skip = BACK

    def __init__(self, away: int) -> None:
        """Wander for so many turns."""
        require_whole("steps away", away, least=0, most=100_000)
        self.away = away
        self.tau, self.horizon = self.out + away, BACK + self.sweep

    def __call__(self, world: World, steps: int, generator: torch.Generator) -> Int64[Tensor, "n steps"]:
        """Headings are counted in turns from the first."""
        n, device = _agents(self, world, steps, 0), world.device
        left, right = (action_named(world, name) for name in ("turn left", "turn right"))
        now, way = torch.full((n,), self.out), torch.ones(n, dtype=torch.long)
        turns = [torch.ones(n, self.out, dtype=torch.long)]
        for _ in range(self.away):
            turned = torch.rand(n, generator=generator, device=generator.device).cpu() < TURNS
            way = torch.where(turned, -way, way)
            way = torch.where((now + way < self.out) | (now + way > self.far), -way, way)
            now = now + way
            turns.append(way[:, None])
        way = -torch.ones_like(way)
        for _ in range(self.horizon):  # once it looks at A again, to and fro
            back_at_a = (now <= self.sweep) & (now + way > self.sweep)
            way = torch.where(back_at_a, -way, torch.where(now + way < 1, -way, way))
            now = now + way
            turns.append(way[:, None])
        mirrored = 1 - 2 * drawn(2, (n, 1), generator, torch.device("cpu"))
        return torch.where(torch.cat(turns, dim=1) * mirrored > 0, left, right).to(device)


def _agents(walker: Returning, world: World, steps: int, reach: int) -> int:
    """How many agents; refuses another number of steps, and images on which nobody can go so far from the middle."""
    asked = walker.tau + walker.horizon
    require(steps == asked, f"this walk has {walker.tau} + {walker.horizon} steps; {steps} were asked for")
    if not reach:
        return world.agents
    inner = unwrapped(world)
    if not isinstance(inner, ImageWalk):
        raise InputError(f"this walk is one over images, not in {type(inner).__name__}; choose another walker")
    cells = inner.config.cells
    wide = cells // 2 >= reach and cells - 1 - cells // 2 >= reach
    require(wide, f"the image has {cells} cells per axis, too few to leave its middle; give a size of 64")
    begins = bool((inner.cell == cells // 2).all()) and not bool(inner.solid.any())
    require(begins, "this walk begins in the middle of an image without obstacles; put the agents there")
    return world.agents


def _look(n: int, device: torch.device) -> Int64[Tensor, "n look"]:
    """Everybody looks around."""
    return torch.tensor(LOOK, device=device).expand(n, -1)


def _wander(
    cell: Int64[Tensor, "n 2"], heading: Int64[Tensor, "n"], cells: int, generator: torch.Generator
) -> Int64[Tensor, "n"]:
    """The next action of agents that stay away from A and never push against a wall: mostly straight on."""
    free = _is_away(cell[:, None] + torch.tensor(MOVES[:4], device=cell.device), cells)
    likely = torch.full(free.shape, TURNS / 3, device=cell.device)
    likely.scatter_(1, heading[:, None], 1 - TURNS)
    chosen = torch.multinomial((likely * free).to(generator.device), 1, generator=generator)[:, 0]
    return chosen.to(cell.device)


def _is_away(cell: Int64[Tensor, "n moves 2"], cells: int) -> Bool[Tensor, "n moves"]:
    """Whether cells are on the image, and nothing of A is in view from them."""
    inside = ((cell >= 0) & (cell < cells)).all(-1)
    return inside & ((cell - cells // 2).abs().amax(-1) >= CLEAR)


def _straight(way: Int64[Tensor, "n 2"], rows_first: Bool[Tensor, "n 1"]) -> Int64[Tensor, "n back"]:
    """BACK steps that lead so many rows and columns further, one axis after the other, and wait at the end."""
    down, right = way.split(1, dim=1)
    vertical, horizontal = torch.where(down > 0, DOWN, UP), torch.where(right > 0, RIGHT, LEFT)
    rows, columns = down.abs(), right.abs()
    first = torch.where(rows_first, rows, columns)
    begins, goes_on = (torch.where(rows_first, a, b) for a, b in ((vertical, horizontal), (horizontal, vertical)))
    step = torch.arange(BACK, device=way.device)
    return torch.where(step < first, begins, torch.where(step < rows + columns, goes_on, STAY))
