"""Section 4.1: agents walk on an image, cell by cell, and see the crop around them; its edges are walls.

Appendix D puts solid rectangles in the way, which frames do not show.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Int64, Shaped, UInt8
from torch import Tensor

from gtmsm.config import config, require
from gtmsm.errors import InputError, shown
from gtmsm.kernels.walks.clamped_walk import clamped_walk
from gtmsm.kernels.walks.crops import crops
from gtmsm.worlds.blocked_walk import Cells, Solid, blocked_walk, draw_rectangles, most_rectangles
from gtmsm.worlds.world import ActionNumbers, Twice, Walk, drawn, one_step, require_reset, require_walk

Start = Literal["centre", "random"]

ACTIONS = ("up", "down", "left", "right", "stay")
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1), (0, 0))


@config
class ImageWalkConfig:
    """An image as a grid of overlapping crops."""

    size: int = 32
    """Side of the image in pixels (section 4.1)."""
    crop: int = 8
    """Side of what the agent sees, in pixels (section 4.1)."""
    stride: int = 3
    """Pixels between neighbouring cells; 3 gives the nine positions per axis of section 4.1."""
    start: Start = "centre"
    """Where walks begin. Walls cannot be told from a shifted start: learning them needs a fixed one."""
    obstacles: int = 0
    """Solid rectangles in every walk, at places of their own (App. D); a rectangle that fits nowhere is left out."""
    obstacle_side: int = 3
    """Longest side of a rectangle in cells; sides are uniform from 1 to this."""

    def __post_init__(self) -> None:
        """Refuse a grid no agent can walk on."""
        require(self.size <= 2_048, f"size is {self.size}; an image to walk on has at most 2048 pixels a side")
        require(self.crop >= 1, f"crop is {self.crop}; an agent sees at least 1 pixel")
        require(
            self.crop <= self.size,
            f"crop is {self.crop}, larger than the image of size {self.size}; make one of them fit",
        )
        require(self.stride >= 1, f"stride is {self.stride}; neighbouring cells are at least 1 pixel apart")
        longest = self.size - self.crop
        fix = f"make stride {longest} or less, or crop smaller" if longest else "make crop smaller"
        require(
            self.cells >= 2,
            f"size {self.size}, crop {self.crop} and stride {self.stride} leave a single cell; "
            f"walking needs 2 or more per axis: {fix}",
        )
        most = most_rectangles(self.cells)
        require(
            0 <= self.obstacles <= most,
            f"obstacles is {self.obstacles}; expected 0 to {most}, as many as {self.cells}x{self.cells} cells can hold",
        )
        require(
            not self.obstacles or 1 <= self.obstacle_side < self.cells,
            f"obstacle_side is {self.obstacle_side}; expected 1 to {self.cells - 1} cells, to leave a way around",
        )

    @property
    def pixels(self) -> int:
        """Side of a frame, as rooms call it."""
        return self.crop

    @property
    def cells(self) -> int:
        """Cells per axis."""
        return (self.size - self.crop) // self.stride + 1

    def corner(self, cell: Shaped[Tensor, "*batch 2"]) -> Shaped[Tensor, "*batch 2"]:
        """Row and column of the first pixel seen from a cell."""
        return self.margin + self.stride * cell

    @property
    def margin(self) -> int:
        """Pixels above and left of the first cell, so that what the grid leaves over is split evenly."""
        return (self.size - self.crop) % self.stride // 2


class ImageWalk:
    """A world of images. A pose is the (row, column) of a cell, counted from the top left."""

    action_names: tuple[str, ...] = ACTIONS
    action_keys: Mapping[str, int] = {name[0]: i for i, name in enumerate(ACTIONS)}
    """A letter for each action, for people."""
    rest: int = ACTIONS.index("stay")
    """The action of doing nothing."""

    image: Int64[Tensor, "n"]
    cell: Int64[Tensor, "n 2"]
    solid: Solid
    blocked: Bool[Tensor, "n time"]
    """Whether an obstacle (not the edge of the image) was in the way, at each step that the agents last walked."""

    def __init__(self, images: UInt8[Tensor, "images channel size size"], config: ImageWalkConfig) -> None:
        """Walk on these images, on their device; one agent stands in the first until `reset`."""
        require(isinstance(config, ImageWalkConfig), f"config is {shown(config)}; give an ImageWalkConfig")
        fits = isinstance(images, Tensor) and images.dim() == 4 and images.dtype == torch.uint8
        require(fits, f"images are {shown(images)}; give a tensor of bytes, (images, channels, size, size)")
        count, channels, height, width = images.shape
        require(count >= 1, "there is no image to walk on; give at least one")
        require(
            height == width == config.size,
            f"the images are {height}x{width} but size is {config.size}; resize them or set size",
        )
        self.config = config
        self.frame_shape = (channels, config.crop, config.crop)
        self.images = images
        self._moves = torch.tensor(MOVES, device=images.device)
        self._centre = torch.tensor(config.cells // 2, device=images.device)
        self._nowhere = torch.zeros((), dtype=torch.bool, device=images.device)
        self.reset(1)

    def reset(self, n: int, generator: torch.Generator | None = None) -> None:
        """Put `n` agents on images drawn with replacement, among obstacles drawn anew.

        Without a generator: the first `n` images in order, the centre cell, no obstacles.
        """
        require_reset(n, generator)
        device, images, cells = self.device, len(self.images), self.config.cells
        cell = self._centre.expand(n, 2)
        if generator is None:
            self._put(torch.arange(n, device=device) % images, cell, None)
            return
        image = drawn(images, (n,), generator, device)
        if self.config.start == "random":
            cell = drawn(cells, (n, 2), generator, device)
        self._put(image, cell, self.draw_obstacles(cell, generator))

    def draw_obstacles(self, cell: Int64[Tensor, "n 2"], generator: torch.Generator) -> Solid | None:
        """Obstacles for agents that start in these cells; None where the config asks for none."""
        config = self.config
        if not config.obstacles:
            return None
        return draw_rectangles(cell, config.cells, config.obstacles, config.obstacle_side, generator)

    def place(self, image: Int[Tensor, "n"], cell: Int[Tensor, "n 2"], solid: Solid | None = None) -> None:
        """Put agents exactly there, among these obstacles or none; checking the numbers waits for the device."""
        fits = isinstance(image, Tensor) and isinstance(cell, Tensor) and image.dim() == 1 and cell.shape[1:] == (2,)
        require(fits, "agents are put by tensors of images, (agents), and cells, (agents, 2)")
        require(len(image) == len(cell), f"got {len(image)} images but {len(cell)} cells; give one of each")
        _require_within("image", image, len(self.images))
        _require_within("cell", cell, self.config.cells)
        device = self.device
        image, cell = image.long().to(device), cell.long().to(device)
        if solid is not None:
            solid, cells = solid.to(device), self.config.cells
            expected = (len(cell), cells, cells)
            require(solid.shape == expected, f"solid is {tuple(solid.shape)}; expected {expected}, a grid per agent")
            for row, column in cell[_at(solid, cell)].tolist():
                raise InputError(f"cell ({row}, {column}) is solid; put the agent into a free one")
        self._put(image, cell, solid)

    def step(self, action: Int[Tensor, "n"], twice: Bool[Tensor, "n"] | None = None) -> None:
        """Move one cell, or stay where a wall or an obstacle is in the way; once more where `twice` says so."""
        self._go(one_step(action), None if twice is None else twice[:, None])

    def walk(self, actions: ActionNumbers, twice: Twice = None) -> Walk:
        """Every step's crop and cell; the agents end where the last action leads."""
        cells = self._go(actions, twice)
        return Walk(self._see(cells), cells)

    def look(self) -> Float[Tensor, "n channel crop crop"]:
        """The crop under each agent."""
        return self._see(self.cell[:, None])[:, 0]

    def picture(self) -> Float[Tensor, "n channel size size"]:
        """The whole image each agent walks on, for people."""
        return self.images[self.image].float() / 255

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self.images.device

    @property
    def agents(self) -> int:
        """How many agents there are."""
        return len(self.cell)

    @property
    def pose(self) -> Float[Tensor, "n 2"]:
        """The cell of each agent."""
        return self.cell.float()

    def _put(self, image: Int64[Tensor, "n"], cell: Int64[Tensor, "n 2"], solid: Solid | None) -> None:
        """Agents there, and what is in their way."""
        cells = self.config.cells
        self.image, self.cell = image, cell
        self._is_open = solid is None
        self.solid = self._nowhere.expand(len(cell), cells, cells) if solid is None else solid
        self.blocked = self._nowhere.expand(len(cell), 0)

    def _go(self, actions: ActionNumbers, twice: Twice = None) -> Cells:
        """The cell after every action."""
        require_walk(actions, self.agents, len(ACTIONS), self.device)
        done = actions
        if twice is not None:  # a second move after each, which mostly leads nowhere
            done = torch.stack([actions, torch.where(twice, actions, self.rest)], 2).flatten(1, 2)
        last = self.config.cells - 1
        if self._is_open:
            cells = clamped_walk(self.cell, done, self._moves, last)
            self.blocked = self._nowhere.expand(actions.shape)
        else:
            moves = self._moves[done]
            cells = blocked_walk(self.cell, moves, self.solid)
            before = torch.cat([self.cell[:, None], cells[:, :-1]], 1)
            blocked = _at(self.solid, (before + moves).clamp(0, last))
            self.blocked = blocked.unflatten(1, actions.shape[1:] + (-1,)).any(-1)
        self.cell = cells[:, -1]
        return cells if twice is None else cells[:, 1::2]

    def _see(self, cells: Cells) -> Float[Tensor, "n time channel crop crop"]:
        """What each agent sees from cells of its image, in [0, 1]."""
        config = self.config
        return crops(self.images, self.image, cells, config.crop, config.stride, config.margin)


def _at(solid: Solid, cell: Int64[Tensor, "n *time 2"]) -> Bool[Tensor, "n *time"]:
    """Whether cells of each agent are solid."""
    flat = cell[..., 0] * solid.shape[-1] + cell[..., 1]
    return solid.flatten(1).gather(1, flat.reshape(len(flat), -1)).view(flat.shape)


def _require_within(name: str, index: Int[Tensor, "*any"], count: int) -> None:
    """Refuse an index that would count from the end or fall off it."""
    require(not index.is_floating_point(), f"{name} is {index.dtype}; give whole numbers")
    for wrong in index[(index < 0) | (index >= count)].tolist():
        raise InputError(f"{name} {wrong} does not exist; choose from 0 to {count - 1}")
