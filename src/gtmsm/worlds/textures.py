"""What walls, floors and ceilings look like: DeepMind Lab's own textures, or drawn ones of the same softness."""

import colorsys
import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from PIL import Image
from torch import Tensor

from gtmsm.config import require_choice
from gtmsm.errors import InputError
from gtmsm.files import open_picture
from gtmsm.worlds.lab import import_labmaze

Source = Literal["auto", "lab", "procedural"]

SIDE = 32
"""Texels along a side."""
FINE = 4 * SIDE
"""Side at which textures are drawn, before they are averaged down."""
TINTS = 4
"""Variants of every texture; the first is the texture itself."""
WALLS, FLOORS = 32, 28
"""Drawn textures; as many as DeepMind Lab has."""


@dataclass(frozen=True)
class Textures:
    """A bank of square textures, and which of them suit what."""

    bank: UInt8[Tensor, "n 32 32 3"]
    walls: Int64[Tensor, "walls"]
    """Indices into the bank; the variants of one texture are neighbours."""
    floors: Int64[Tensor, "floors"]
    ceilings: Int64[Tensor, "ceilings"]
    name: str
    """Where they come from: "lab" or "procedural"."""
    fingerprint: str
    """SHA-256 of the bytes of the bank: equal fingerprints, equal texels."""


def load_textures(source: Source = "auto") -> Textures:
    """DeepMind Lab's ("lab", from the package labmaze), drawn ones ("procedural"), or Lab's where they are ("auto")."""
    require_choice("textures", source, get_args(Source))
    if source == "procedural":
        return _procedural()
    try:
        labmaze = import_labmaze(f'textures "{source}"')
    except InputError as problem:
        if source == "lab":
            raise InputError(f'{problem}, or choose "procedural"') from None
        _say_once()
        return _procedural()
    return _lab(labmaze)


@lru_cache(maxsize=1)
def _say_once() -> None:
    """Once per process, on the terminal."""
    print(
        'gtmsm: drawing textures, since DeepMind Lab\'s cannot be loaded; for those: pip install "gtmsm[lab]"',
        file=sys.stderr,
    )


def _textures(walls: Float[Tensor, "w 32 32 3"], floors: Float[Tensor, "f 32 32 3"], name: str) -> Textures:
    """Tint them, whitewash some for the ceilings, and sign the texels."""
    generator = torch.Generator().manual_seed(0)
    ceilings = floors + 0.55 * (1 - floors)  # towards white
    parts = [_tinted(walls, generator), _tinted(floors, generator), ceilings]
    bank = (255 * torch.cat(parts)).round().clamp(0, 255).byte()
    first, second, third = torch.arange(len(bank)).split([len(part) for part in parts])
    return Textures(bank, first, second, third, name, hashlib.sha256(bank.numpy().tobytes()).hexdigest())


def _tinted(textures: Float[Tensor, "n 32 32 3"], generator: torch.Generator) -> Float[Tensor, "m 32 32 3"]:
    """Each as it is, then under light of other colours."""
    low, high = 0.7, 1.15  # gains of a channel
    gains = low + (high - low) * torch.rand(len(textures), TINTS, 1, 1, 3, generator=generator)
    gains[:, 0] = 1
    return (gains * textures[:, None]).flatten(0, 1)


# ---- DeepMind Lab's


@lru_cache(maxsize=1)
def _lab(labmaze: ModuleType) -> Textures:
    """Every wall and floor of every style, averaged down."""
    assets = labmaze.assets
    walls, floors = (
        torch.stack([_averaged(Path(path)) for style in assets.MAZE_STYLES for path in paths_of(style).values()])
        for paths_of in (assets.get_wall_texture_paths, assets.get_floor_texture_paths)
    )
    return _textures(walls, floors, "lab")


def _averaged(path: Path) -> Float[Tensor, "32 32 3"]:
    """A large texture made small; where it is shiny (alpha) is left out."""
    with open_picture(path) as image:
        colours = image.convert("RGBA").convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
    return torch.from_numpy(np.array(colours)).float() / 255


# ---- drawn ones: a relief in [-1, 1] over the unit square, which repeats without a seam, times a colour

Relief = Float[Tensor, "FINE FINE"]


@lru_cache(maxsize=1)
def _procedural() -> Textures:
    """Patterns in turn, each with colours of its own; always the same."""
    generator = torch.Generator().manual_seed(1)
    walls = [_painted(_WALLS[i % len(_WALLS)](generator), i, generator) for i in range(WALLS)]
    floors = [_painted(_FLOORS[i % len(_FLOORS)](generator), WALLS + i, generator) for i in range(FLOORS)]
    return _textures(torch.stack(walls), torch.stack(floors), "procedural")


def _painted(relief: Relief, index: int, generator: torch.Generator) -> Float[Tensor, "32 32 3"]:
    """A muted colour, darker where the relief is low, under a little unevenness."""
    saturation, value = _between(0.25, 0.7, generator), _between(0.5, 0.85, generator)
    # the golden ratio spreads hues so that neighbours differ
    colour = torch.tensor(colorsys.hsv_to_rgb(index * 0.618034 % 1, saturation, value))
    light = 1 + 0.16 * relief + 0.03 * _waves(6, generator)
    fine = (light[..., None] * colour).clamp(0, 1)
    return F.avg_pool2d(fine.permute(2, 0, 1), FINE // SIDE).permute(1, 2, 0)


def _between(low: float, high: float, generator: torch.Generator) -> float:
    """A number from `low` to `high`."""
    return low + (high - low) * float(torch.rand((), generator=generator))


def _one_of(values: tuple[int, ...], generator: torch.Generator) -> int:
    return values[int(torch.randint(len(values), (), generator=generator))]


def _grid() -> tuple[Relief, Relief]:
    """Row and column in [0, 1) of every fine texel's centre."""
    at = (torch.arange(FINE) + 0.5) / FINE
    return at[:, None].expand(FINE, FINE), at.expand(FINE, FINE)


def _waves(finest: int, generator: torch.Generator) -> Relief:
    """Smooth noise on a torus: waves of whole numbers, of random height and phase."""
    frequency = torch.fft.fftfreq(FINE, 1 / FINE)
    radius = torch.hypot(frequency[:, None], frequency)
    noise = torch.fft.fft2(torch.randn(FINE, FINE, generator=generator))
    smooth = torch.fft.ifft2(noise * ((radius > 0) & (radius <= finest))).real
    return smooth / smooth.std()


def _groove(position: Relief, width: float) -> Relief:
    """From 1 in a groove at whole numbers to 0 away from it, softly."""
    away = (position - position.round()).abs()
    return (1.5 - away / width).clamp(0, 1)


def _stones(rows: int, columns: int, shift: float, generator: torch.Generator) -> Relief:
    """Rectangles of uneven brightness with grooves between them; every other row is shifted by a part of one."""
    y, x = _grid()
    row = (y * rows).floor()
    along = x * columns + shift * (row % 2)
    shade = 1.2 * torch.rand(rows, columns, generator=generator) - 0.4
    stone = shade[row.long(), along.floor().long() % columns]
    groove = torch.maximum(_groove(y * rows, 0.025 * rows), _groove(along, 0.025 * columns))
    return stone * (1 - groove) - 1.1 * groove


def _bricks(generator: torch.Generator) -> Relief:
    return _stones(_one_of((4, 6, 8), generator), _one_of((2, 3, 4), generator), 0.5, generator)


def _tiles(generator: torch.Generator) -> Relief:
    count = _one_of((2, 4, 8), generator)
    return _stones(count, count, 0.0, generator)


def _planks(generator: torch.Generator) -> Relief:
    """Long boards, upright or lying, with a grain."""
    boards = _stones(_one_of((4, 6), generator), 1, 0.5, generator)
    grain = _waves(8, generator)[:, :1]
    planks = boards + 0.15 * grain
    return planks.T if _one_of((0, 1), generator) else planks


def _checks(generator: torch.Generator) -> Relief:
    y, x = _grid()
    count = _one_of((1, 2, 4), generator)
    wave = (2 * torch.pi * count * x).sin() * (2 * torch.pi * count * y).sin()
    return 0.8 * (8 * wave).tanh()


def _stripes(generator: torch.Generator) -> Relief:
    """Upright, lying or slanted; a slant of whole numbers meets itself at the edges."""
    y, x = _grid()
    across, down = ((1, 0), (0, 1), (1, 1), (2, -1))[_one_of((0, 1, 2, 3), generator)]
    wave = (2 * torch.pi * _one_of((2, 3, 4), generator) * (across * x + down * y)).sin()
    return 0.8 * (4 * (wave - 0.2)).tanh()


def _blobs(generator: torch.Generator) -> Relief:
    return (5 * (_waves(_one_of((3, 4, 5), generator), generator) - 0.5)).tanh()


def _weave(generator: torch.Generator) -> Relief:
    """Bands that pass over and under each other."""
    y, x = _grid()
    count = _one_of((2, 3, 4), generator)
    over = ((x * 2 * count).floor() + (y * 2 * count).floor()) % 2
    across, down = ((torch.pi * 2 * count * z).sin().abs() for z in (x, y))
    return 1.2 * torch.where(over > 0, across, down) - 0.7


def _panels(generator: torch.Generator) -> Relief:
    """A frame around a plate with round holes, as on Lab's walls of style 3."""
    y, x = _grid()
    count = _one_of((1, 2, 3), generator)
    cell_x, cell_y = (z * count % 1 for z in (x, y))
    hole = (0.28 - torch.hypot(cell_x - 0.5, cell_y - 0.5)) / 0.04
    frame = _groove(y, 0.05) + _groove(x, 0.02)
    return 0.25 - 0.9 * hole.clamp(0, 1) - frame.clamp(0, 1)


_WALLS: tuple[Callable[[torch.Generator], Relief], ...] = (
    _bricks, _panels, _tiles, _blobs, _planks, _weave, _stripes, _checks,
)  # fmt: skip
_FLOORS: tuple[Callable[[torch.Generator], Relief], ...] = (_tiles, _blobs, _planks, _checks, _bricks, _weave, _stripes)
