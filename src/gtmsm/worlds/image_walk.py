"""Section 4.1: agents walk on an image, cell by cell, and see the crop around them; its edges are walls."""

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from gtmsm.config import config, require
from gtmsm.errors import InputError, did_you_mean
from gtmsm.kernels.clamped_walk import clamped_walk
from gtmsm.worlds.world import Walk

Start = Literal["centre", "random"]

ACTIONS = ("up", "down", "left", "right", "stay")
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1), (0, 0))

YELLOW = (1.0, 0.86, 0.0)


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

    def __post_init__(self) -> None:
        """Refuse a grid no agent can walk on."""
        require(self.crop >= 1, f"crop is {self.crop}; an agent sees at least 1 pixel")
        require(
            self.crop <= self.size,
            f"crop is {self.crop}, larger than the image of size {self.size}; make one of them fit",
        )
        require(self.stride >= 1, f"stride is {self.stride}; neighbouring cells are at least 1 pixel apart")
        room = self.size - self.crop
        fix = f"make stride {room} or less, or crop smaller" if room else "make crop smaller"
        require(
            self.cells >= 2,
            f"size {self.size}, crop {self.crop} and stride {self.stride} leave a single cell; "
            f"walking needs 2 or more per axis: {fix}",
        )
        starts = get_args(Start)
        require(self.start in starts, f'start is "{self.start}"; {did_you_mean(str(self.start), starts)}')

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

    def __init__(self, images: UInt8[Tensor, "images channel size size"], config: ImageWalkConfig) -> None:
        """Walk on these images, on their device; one agent stands in the first until `reset`."""
        count, channels, height, width = images.shape
        require(count >= 1, "there is no image to walk on; give at least one")
        require(
            height == width == config.size,
            f"the images are {height}x{width} but size is {config.size}; resize them or set size",
        )
        self.config = config
        self.frame_shape = (channels, config.crop, config.crop)
        self.images = images
        self._crops = _crops(images, config)
        self._moves = torch.tensor(MOVES, device=images.device)
        self.reset(1)

    def reset(self, n: int, generator: torch.Generator | None = None) -> None:
        """Put `n` agents on images drawn with replacement (without a generator: the first `n`, centred)."""
        require(n >= 1, f"asked for {n} agents; a walk needs at least 1")
        device, images, cells = self._crops.device, self._crops.shape[0], self.config.cells
        if generator is None:
            self.image = torch.arange(n, device=device) % images
        else:
            self.image = torch.randint(images, (n,), device=device, generator=generator)
        if generator is None or self.config.start == "centre":
            self.cell = torch.full((n, 2), cells // 2, device=device)
        else:
            self.cell = torch.randint(cells, (n, 2), device=device, generator=generator)

    def place(self, image: Int[Tensor, "n"], cell: Int[Tensor, "n 2"]) -> None:
        """Put agents exactly there; the numbers are looked at, so a device has to be waited for."""
        require(len(image) == len(cell), f"got {len(image)} images but {len(cell)} cells; give one of each")
        _require_within("image", image, self._crops.shape[0])
        _require_within("cell", cell, self.config.cells)
        device = self._crops.device
        self.image, self.cell = image.long().to(device), cell.long().to(device)

    def step(self, action: Int[Tensor, "n"]) -> None:
        """Move one cell, or stay where a wall is in the way."""
        self.cell = (self.cell + self._moves[action]).clamp(0, self.config.cells - 1)

    def walk(self, actions: Int[Tensor, "n time"]) -> Walk:
        """Every step's crop and cell; the agents end where the last action leads."""
        agents, steps = actions.shape
        require(agents == len(self.cell), f"actions are for {agents} agents; this world has {len(self.cell)}")
        require(steps >= 1, "there is no action to walk; give at least one step")
        cells = clamped_walk(self.cell, self._moves[actions], self.config.cells - 1)
        self.cell = cells[:, -1]
        return Walk(frames=self._see(self.image[:, None], cells), poses=cells.float())

    def look(self) -> Float[Tensor, "n channel crop crop"]:
        """The crop under each agent."""
        return self._see(self.image, self.cell)

    def picture(self) -> Float[Tensor, "n channel size size"]:
        """The whole image each agent walks on, for people."""
        return self.images[self.image].float() / 255

    @property
    def agents(self) -> int:
        """How many agents there are."""
        return len(self.cell)

    @property
    def pose(self) -> Float[Tensor, "n 2"]:
        """The cell of each agent."""
        return self.cell.float()

    def _see(
        self, image: Int[Tensor, "*#batch"], cell: Int[Tensor, "*#batch 2"]
    ) -> Float[Tensor, "*batch channel crop crop"]:
        """One gather, in [0, 1]."""
        return self._crops[image, cell[..., 0], cell[..., 1]].float().div_(255)


def draw_windows(
    picture: Float[Tensor, "channel size size"], cells: Int[Tensor, "time 2"], config: ImageWalkConfig, zoom: int
) -> Float[Tensor, "time channel side side"]:
    """The image, enlarged, with what the agent sees at each cell framed in yellow (fig. 2a)."""
    large = picture.repeat_interleave(zoom, 1).repeat_interleave(zoom, 2)
    pixel = torch.arange(large.shape[-1], device=picture.device)
    first = zoom * config.corner(cells)[..., None]
    rim = max(1, zoom // 3)
    last = first + zoom * config.crop
    within = (pixel >= first) & (pixel < last)
    deep = (pixel >= first + rim) & (pixel < last - rim)
    outer, inner = (side[:, 0, :, None] & side[:, 1, None, :] for side in (within, deep))
    yellow = torch.tensor(YELLOW, dtype=picture.dtype, device=picture.device).view(-1, 1, 1)
    return torch.where((outer & ~inner)[:, None], yellow, large)


def _crops(
    images: UInt8[Tensor, "images channel size size"], config: ImageWalkConfig
) -> UInt8[Tensor, "images row column channel crop crop"]:
    """Every crop of every image, as a view: overlapping windows share their pixels."""
    inner = images[:, :, config.margin :, config.margin :]
    windows = inner.unfold(2, config.crop, config.stride).unfold(3, config.crop, config.stride)
    return windows.permute(0, 2, 3, 1, 4, 5)


def _require_within(name: str, index: Int[Tensor, "*any"], count: int) -> None:
    """Refuse an index that would count from the end or fall off it."""
    for wrong in index[(index < 0) | (index >= count)].tolist():
        raise InputError(f"{name} {wrong} does not exist; choose from 0 to {count - 1}")
