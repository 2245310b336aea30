"""Pictures to walk on: photographs that come with scikit-image, a `.npz`, or a folder."""

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from PIL import Image, ImageOps
from torch import Tensor

from gtmsm.config import require, require_whole
from gtmsm.errors import InputError
from gtmsm.files import MOST_PIXELS, as_path, open_picture, read_arrays
from gtmsm.worlds.photographs import photograph_views

BUILTIN = "builtin"

PICTURES = (".png", ".jpg", ".jpeg")
WATCHED = 16
"""Of so many images to learn from, one is held out for validation."""


@dataclass(frozen=True)
class ImageSet:
    """Square images to learn from, others to look at while learning, and others to be tested on."""

    train: UInt8[Tensor, "n 3 size size"]
    validation: UInt8[Tensor, "v 3 size size"]
    test: UInt8[Tensor, "m 3 size size"]
    name: str
    fingerprint: str
    """SHA-256 of the bytes of all images in the order given, then of the test's: equal fingerprints, equal pixels."""


def load_images(source: str | Path, size: int) -> ImageSet:
    """Images of `size` pixels from "builtin", a `.npz` with train and test, or a folder of pictures."""
    require_whole("size", size, most=2_048)
    if str(source) == BUILTIN:
        return _builtin(size)
    path = Path(os.path.expanduser(as_path(source)))  # not that of Path, which refuses a file called "~x"
    if path.is_dir():
        train, test = _from_folder(path, size)
    elif path.exists():
        train, test = _from_npz(path, size)
    else:
        raise InputError(
            f'images "{source}": no such file or folder; give "{BUILTIN}", a .npz with train and test, '
            "or a folder of .png or .jpg pictures"
        )
    return _image_set(train, test, path.name)


def _image_set(given: UInt8[Tensor, "n 3 s s"], test: UInt8[Tensor, "m 3 s s"], name: str) -> ImageSet:
    """Sign the pixels, and hold every sixteenth image given to learn from, or else the last, out for validation."""
    digest = hashlib.sha256()
    for images in (given, test):
        digest.update(images.numpy().tobytes())
    watched = torch.arange(len(given)) % WATCHED == WATCHED - 1
    watched[-1] |= not watched.any()
    train, validation = given[~watched], given[watched]
    known = {image.tobytes() for image in train.numpy()}
    strange = torch.tensor([image.tobytes() not in known for image in validation.numpy()])
    # Two of the built-in views may be the very same.
    validation = validation[strange] if strange.any() else validation
    return ImageSet(train, validation, test, name, digest.hexdigest())


def _require_enough(train: int, test: int, source: Path, fix: str) -> None:
    """Refuse fewer images than training and testing need."""
    require(
        train >= 2 and test >= 1,
        f"{source}: gives {train} training and {test} test images; at least 2 and 1 are needed: {fix}",
    )


@lru_cache(maxsize=2)
def _builtin(size: int) -> ImageSet:
    """Views of photographs."""
    return _image_set(*photograph_views(size), BUILTIN)


# ---- a .npz of the user's own


def _from_npz(path: Path, size: int) -> tuple[UInt8[Tensor, "n 3 size size"], UInt8[Tensor, "m 3 size size"]]:
    """Arrays `train` and `test`, each uint8 (N, H, W, 3)."""
    if path.suffix.lower() in PICTURES:
        raise InputError(f"{path}: a single picture; give the folder that holds it and others")
    arrays, holds = read_arrays(path, ("train", "test"), "write it anew with numpy.savez(path, train=..., test=...)")
    require(len(arrays) == 2, f"{path}: holds {holds}; expected the keys train and test, as numpy.savez writes them")
    for key, array in arrays.items():
        require(
            array.dtype == np.uint8 and array.ndim == 4 and array.shape[-1] == 3 and 0 not in array.shape[1:],
            f"{path}: {key} is {array.dtype} of shape {array.shape}; expected uint8 of shape (N, H, W, 3)",
        )
    _require_enough(len(arrays["train"]), len(arrays["test"]), path, "save more into the file")
    train, test = (_squared(torch.from_numpy(array), size) for array in arrays.values())
    return train, test


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
    test = paths[9::10] or paths[-1:]
    held_out = set(test)
    train = [path for path in paths if path not in held_out]
    _require_enough(len(train), len(test), folder, f"put 3 or more {' or '.join(PICTURES)} pictures there")
    train_images, test_images = (torch.stack([load_picture(p, size) for p in part]) for part in (train, test))
    return train_images, test_images


def load_picture(source: Path | bytes, size: int, most: int = MOST_PIXELS) -> UInt8[Tensor, "3 size size"]:
    """The central square of one picture, a file or what one holds, as RGB; transparent pixels become white.

    One of more than `most` pixels is refused.
    """
    with open_picture(source, most) as image:
        image.draft(None, (2 * size, 2 * size))  # a JPEG can be read smaller, and much faster
        square = ImageOps.fit(_opaque(ImageOps.exif_transpose(image)), (size, size), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def read_picture(path: Path) -> UInt8[Tensor, "3 height width"]:
    """One picture, pixel by pixel as it is."""
    with open_picture(path) as image:
        upright = _opaque(ImageOps.exif_transpose(image))
    return torch.from_numpy(np.array(upright)).permute(2, 0, 1)


def _opaque(image: Image.Image) -> Image.Image:
    """As RGB, from grey of 8 or 16 bits, palettes, CMYK, and with transparency over white."""
    if image.mode.startswith("I"):  # Pillow would cut 16 bits off at 255 instead of scaling them
        image = Image.fromarray((np.array(image) // 257).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")
