"""Pictures to walk on: photographs that come with scikit-image, a `.npz`, or a folder."""

import hashlib
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from PIL import Image, ImageOps
from torch import Tensor

from gtmsm.config import require
from gtmsm.errors import InputError

BUILTIN = "builtin"

TRAIN_PHOTOGRAPHS = (
    "astronaut.png",
    "chelsea.png",
    "coins.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "retina.jpg",
    "rocket.jpg",
)
TEST_PHOTOGRAPHS = ("camera.png", "coffee.png")
TRAIN_VIEWS, TEST_VIEWS = 4000, 500
LARGEST_VIEW = 128

ZOOMS = (1.5, 1.8, 2.1, 2.5, 3.0, 3.5, 4.2, 5.0)
"""How many views fit along the short side of a photograph."""
CANDIDATES = 3
"""Views cut for every view kept."""
FLAT = 12.0
"""A view whose flattest quarter has less contrast than this (of 255) is rejected."""

PICTURES = (".png", ".jpg", ".jpeg")
HOLD_OUT = 10
"""Every tenth picture of a folder is a test picture."""


@dataclass(frozen=True)
class ImageSet:
    """Square images to learn from, and others to be tested on."""

    train: UInt8[Tensor, "n 3 size size"]
    test: UInt8[Tensor, "m 3 size size"]
    name: str
    fingerprint: str
    """SHA-256 of the bytes of train, then test: equal fingerprints, equal pixels."""


def load_images(source: str | Path, size: int) -> ImageSet:
    """Images of `size` pixels from "builtin", a `.npz` with train and test, or a folder of pictures."""
    require(size >= 1, f"size is {size}; an image has at least 1 pixel")
    if str(source) == BUILTIN:
        return _builtin(size)
    path = Path(source).expanduser()
    if path.is_dir():
        train, test = _from_folder(path, size)
    elif path.is_file():
        train, test = _from_npz(path, size)
    else:
        raise InputError(
            f'images "{source}": no such file or folder; give "{BUILTIN}", a .npz with train and test, '
            "or a folder of .png or .jpg pictures"
        )
    return _image_set(train, test, path.name)


def _image_set(train: UInt8[Tensor, "n 3 s s"], test: UInt8[Tensor, "m 3 s s"], name: str) -> ImageSet:
    """Sign the pixels."""
    digest = hashlib.sha256()
    for images in (train, test):
        digest.update(images.numpy().tobytes())
    return ImageSet(train, test, name, digest.hexdigest())


def _require_enough(train: int, test: int, source: Path, fix: str) -> None:
    """Fewer images than this cannot be split into what is learned and what is asked."""
    require(
        train >= 2 and test >= 1,
        f"{source}: gives {train} training and {test} test images; at least 2 and 1 are needed: {fix}",
    )


# ---- views of the photographs inside the scikit-image wheel


@lru_cache(maxsize=2)
def _builtin(size: int) -> ImageSet:
    """Views cut at random but always the same; no photograph serves both training and test."""
    require(
        size <= LARGEST_VIEW,
        f"size is {size}; the built-in photographs are sharp up to {LARGEST_VIEW}: give your own pictures",
    )
    generator = torch.Generator().manual_seed(0)
    train = _views(TRAIN_PHOTOGRAPHS, TRAIN_VIEWS, size, generator)
    test = _views(TEST_PHOTOGRAPHS, TEST_VIEWS, size, generator)
    return _image_set(train, test, BUILTIN)


def _views(
    photographs: Sequence[str], count: int, size: int, generator: torch.Generator
) -> UInt8[Tensor, "count 3 size size"]:
    """Views of all the photographs, shuffled; flat ones only where there are no others."""
    each = -(-CANDIDATES * count // len(photographs))
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
            f'images "{BUILTIN}": the installed scikit-image has no {name}; '
            "pip install --force-reinstall scikit-image, or give a .npz or a folder of pictures"
        )
    return Image.open(path).convert("RGB")


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


# ---- a .npz of the user's own


def _from_npz(path: Path, size: int) -> tuple[UInt8[Tensor, "n 3 size size"], UInt8[Tensor, "m 3 size size"]]:
    """Arrays `train` and `test`, each uint8 (N, H, W, 3)."""
    if path.suffix.lower() in PICTURES:
        raise InputError(f"{path}: a single picture; give the folder that holds it and others")
    arrays = _read_npz(path)
    for key, array in arrays.items():
        require(
            array.dtype == np.uint8 and array.ndim == 4 and array.shape[-1] == 3 and 0 not in array.shape[1:],
            f"{path}: {key} is {array.dtype} of shape {array.shape}; expected uint8 of shape (N, H, W, 3)",
        )
    _require_enough(len(arrays["train"]), len(arrays["test"]), path, "save more into the file")
    train, test = (_squared(torch.from_numpy(array), size) for array in arrays.values())
    return train, test


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    """`train` and `test` of an archive, never unpickled."""
    keys = ("train", "test")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            found = list(getattr(archive, "files", ()))
            if set(keys) <= set(found):
                return {key: archive[key] for key in keys}
    except (OSError, ValueError, EOFError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error):
        raise InputError(
            f"{path}: not a readable .npz of plain arrays (damaged, or another kind of file?); "
            "write it anew with numpy.savez(path, train=..., test=...)"
        ) from None
    holds = ", ".join(found) or "nothing by name"
    raise InputError(f"{path}: holds {holds}; expected the keys train and test, as numpy.savez writes them")


def _squared(images: UInt8[Tensor, "n h w 3"], size: int) -> UInt8[Tensor, "n 3 size size"]:
    """The central square of each image at the size asked for, a thousand at a time to spare memory."""
    height, width = images.shape[1:3]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = images[:, top : top + side, left : left + side].permute(0, 3, 1, 2)
    if side == size:
        return square.contiguous()
    resized = [
        F.interpolate(part.float(), (size, size), mode="bicubic", antialias=True).round().clamp(0, 255).byte()
        for part in square.split(1000)
    ]
    return torch.cat(resized)


# ---- a folder of pictures


def _from_folder(folder: Path, size: int) -> tuple[UInt8[Tensor, "n 3 size size"], UInt8[Tensor, "m 3 size size"]]:
    """The pictures in the order of their names; every tenth, or else the last, is held out."""
    paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in PICTURES and not p.name.startswith("."))
    test = paths[HOLD_OUT - 1 :: HOLD_OUT] or paths[-1:]
    held_out = set(test)
    train = [path for path in paths if path not in held_out]
    _require_enough(len(train), len(test), folder, f"put 3 or more {' or '.join(PICTURES)} pictures there")
    train_images, test_images = (torch.stack([load_picture(p, size) for p in part]) for part in (train, test))
    return train_images, test_images


def load_picture(path: Path, size: int) -> UInt8[Tensor, "3 size size"]:
    """The central square of one picture, whatever its colours; what is transparent becomes white."""
    with _opened(path) as image:
        image.draft(None, (2 * size, 2 * size))  # a JPEG can be read smaller, and much faster
        square = ImageOps.fit(_opaque(ImageOps.exif_transpose(image)), (size, size), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def read_picture(path: Path) -> UInt8[Tensor, "3 height width"]:
    """One picture, pixel by pixel as it is."""
    with _opened(path) as image:
        upright = _opaque(ImageOps.exif_transpose(image))
    return torch.from_numpy(np.array(upright)).permute(2, 0, 1)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """A picture to read from; what cannot be read is refused in one line."""
    try:
        with Image.open(path) as image:
            yield image
    except FileNotFoundError:
        raise InputError(f"{path}: no such picture") from None
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError):
        raise InputError(f"{path}: cannot be read as a PNG or JPEG picture; repair it or leave it out") from None


def _opaque(image: Image.Image) -> Image.Image:
    """As RGB, from grey of 8 or 16 bits, palettes, CMYK, and with transparency over white."""
    if image.mode.startswith("I"):  # Pillow would cut 16 bits off at 255 instead of scaling them
        image = Image.fromarray((np.array(image) // 257).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")
