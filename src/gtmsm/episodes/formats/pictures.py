"""Pictures as frames: files, and bytes inside other files."""

import io
import math
import warnings
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from gtmsm.config import require
from gtmsm.files import MOST_PIXELS, PICTURES, open_picture, refusing


def of_file(path: Path) -> UInt8[np.ndarray, "height width channel"]:
    """A PNG or JPEG."""
    with open_picture(path) as image:
        return _pixels(image)


def of_bytes(content: bytes) -> UInt8[np.ndarray, "height width channel"]:
    """A PNG or JPEG that lies inside another file."""
    with warnings.catch_warnings(), refusing("a picture in it cannot be read", "expected PNG or JPEG"):
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(content), formats=PICTURES) as image:
            require(math.prod(image.size) <= MOST_PIXELS, f"a picture of {image.size} pixels; make it smaller")
            return _pixels(image)


def _pixels(image: Image.Image) -> UInt8[np.ndarray, "height width channel"]:
    """Grey where the picture is, else colours."""
    if image.mode in ("1", "L", "LA"):
        return np.asarray(image.convert("L"))[..., None]
    return np.asarray(image.convert("RGB"))
