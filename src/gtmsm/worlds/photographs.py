"""Views of the photographs inside the scikit-image package: the built-in images."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from gtmsm.config import require
from gtmsm.errors import InputError
from gtmsm.files import open_picture

TRAIN_PHOTOGRAPHS = (
    "astronaut.png", "chelsea.png", "coins.png", "hubble_deep_field.jpg", "ihc.png",
    "motorcycle_left.png", "motorcycle_right.png", "retina.jpg", "rocket.jpg",
)  # fmt: skip
TEST_PHOTOGRAPHS = ("camera.png", "coffee.png")
TRAIN_VIEWS, TEST_VIEWS = 4000, 500
LARGEST_VIEW = 128

ZOOMS = (1.5, 1.8, 2.1, 2.5, 3.0, 3.5, 4.2, 5.0)
"""How many views fit along the short side of a photograph."""
FLAT = 12.0
"""A view whose flattest quarter has less contrast than this (of 255) is rejected."""


def photograph_views(size: int) -> tuple[UInt8[Tensor, "n 3 size size"], UInt8[Tensor, "m 3 size size"]]:
    """Views to train on and to test on, always the same; no photograph serves both."""
    require(
        size <= LARGEST_VIEW,
        f"size is {size}; the built-in photographs are sharp up to {LARGEST_VIEW}: give your own pictures",
    )
    generator = torch.Generator().manual_seed(0)
    train = _views(TRAIN_PHOTOGRAPHS, TRAIN_VIEWS, size, generator)
    return train, _views(TEST_PHOTOGRAPHS, TEST_VIEWS, size, generator)


def _views(
    photographs: Sequence[str], count: int, size: int, generator: torch.Generator
) -> UInt8[Tensor, "count 3 size size"]:
    """Views of all the photographs, shuffled; flat ones only where there are no others."""
    each = -(-3 * count // len(photographs))  # three views for every view kept
    cut = [_views_of(_photograph(name), each, size, generator) for name in photographs]
    flat = torch.cat([_texture(views) < FLAT for views in cut])
    shuffled = torch.randperm(len(flat), generator=generator)
    flat_last = shuffled[flat[shuffled].int().argsort(stable=True)]
    return torch.cat(cut)[flat_last[:count]]


def _photograph(name: str) -> Image.Image:
    """Read straight from the installed package: skimage.data would download what it does not find."""
    spec = find_spec("skimage")
    path = Path(spec.origin if spec and spec.origin else "").parent / "data" / name
    if not path.is_file():
        raise InputError(
            f'images "builtin": the installed scikit-image has no {name}; '
            "pip install --force-reinstall scikit-image, or give a .npz or a folder of pictures"
        )
    with open_picture(path) as photograph:
        return photograph.convert("RGB")


def _views_of(
    photograph: Image.Image, count: int, size: int, generator: torch.Generator
) -> UInt8[Tensor, "count 3 size size"]:
    """Windows at random places and several zooms, half of them mirrored."""
    each = -(-count // len(ZOOMS))
    short = min(photograph.size)
    views = []
    for zoom in ZOOMS:
        scale = max(min(zoom * size, short), size) / short
        width, height = (max(size, round(side * scale)) for side in photograph.size)
        small = torch.from_numpy(np.array(photograph.resize((width, height), Image.Resampling.BICUBIC)))
        top = torch.randint(height - size + 1, (each,), generator=generator)
        left = torch.randint(width - size + 1, (each,), generator=generator)
        windows = small.unfold(0, size, 1).unfold(1, size, 1)[top, left]
        windows[::2] = windows[::2].flip(-1)
        views.append(windows)
    return torch.cat(views)[:count]


def _texture(views: UInt8[Tensor, "n 3 size size"]) -> Float[Tensor, "n"]:
    """Contrast within the flattest quarter of a view: where it is low, places look alike."""
    side = max(1, views.shape[-1] // 4)
    blocks = views.unfold(2, side, side).unfold(3, side, side).float()
    contrast = blocks.var((-2, -1), correction=0).sum(1).flatten(1)
    return contrast.sort(1).values[:, : max(1, contrast.shape[1] // 4)].mean(1).sqrt()
