"""Shared by the readers: convert rows to steps, scale frames to those of a kind, check sizes before allocating.

Other formats have rows: row t is an observation and the action that followed it. In an `Episode`, frame t is what
action t led to, so row t's action goes with row t + 1's frame. The first frame and the last action have no partner and
are left out.
"""

import fcntl
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from gtmsm.config import require, require_whole
from gtmsm.episodes.episode import LONGEST_SIDE, MOST_NUMBERS, Episode, Kind
from gtmsm.episodes.pictures import resized
from gtmsm.errors import InputError, shortened, shown
from gtmsm.files import TEMPORARY, require_folder, sync

MOST_BYTES = 2**31
"""Maximum bytes of frames and actions of an episode, which is held in memory while it is converted."""
MOST_ROWS = 2**28
"""Maximum rows of a recording: a hundred days at 30 frames per second."""
MOST_EPISODES = 10_000_000
INFLATED = 1_100
"""How many times larger than the file its arrays may be: no more than deflate can compress."""
BLOCK = 2**24
"""Bytes of frames that are read at a time."""


def library(name: str, extra: str = "own") -> Any:
    """Import an optional package, or raise an error that says how to install it."""
    try:
        return import_module(name)
    except ImportError:
        raise InputError(f"this format needs {name.partition('.')[0]}; pip install 'gtmsm[{extra}]'") from None


@contextmanager
def about(source: object) -> Iterator[None]:
    """Make errors inside the block name the file and the place in it, once."""
    try:
        yield
    except InputError as problem:
        known = isinstance(source, Path) and str(problem).startswith((str(source), f"{source.parent}{os.sep}"))
        raise InputError(str(problem) if known else f"{source}: {problem}") from None


def frame_shape(stored: tuple[int, ...], size: int | None) -> tuple[int, int, int]:
    """Height, width and channels of stored frames after they are scaled to `size`."""
    shape = (*stored, 1) if len(stored) == 2 else tuple(stored)
    fits = len(shape) == 3 and shape[2] in (1, 3, 4) and all(1 <= side <= LONGEST_SIDE for side in shape)
    expected = f"height, width (up to {LONGEST_SIDE} pixels), 1 or 3 colours"
    require(fits, f"frames of shape {shown(stored)}; expected {expected}")
    if size is not None:
        require_whole("size", size, 1, LONGEST_SIDE)
    return size or shape[0], size or shape[1], min(shape[2], 3)


def is_picture(shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether these are frames: uint8 (time, height, width) or (time, height, width, colours)."""
    return dtype == np.uint8 and len(shape) in (3, 4) and (len(shape) == 3 or shape[3] in (1, 3, 4))


def require_fits(rows: int, kind: Kind) -> None:
    """Refuse an episode that is too large to be held in memory, before any of it is read."""
    held = rows * (math.prod(kind.frame_shape) + 8 * kind.action_size)
    limit = f"at most {MOST_BYTES / 1e9:.1f} GB fit: cut the episode, or give a smaller --size"
    require(held <= MOST_BYTES, f"an episode of {rows:,} rows takes {held / 1e9:.1f} GB; {limit}")


def gather(blocks: Iterable[np.ndarray], most: int, kind: Kind) -> UInt8[np.ndarray, "time height width channel"]:
    """Join blocks of up to `most` frames, scaled by area to those of `kind`."""
    require_fits(most, kind)
    frames = np.empty((most, *kind.frame_shape), np.uint8)
    filled = 0
    for block in blocks:
        require(filled + len(block) <= most, f"more than {most} frames; expected one for each row")
        frames[filled : filled + len(block)] = _fitted(block, kind.frame_shape)
        filled += len(block)
    return frames[:filled]


def _fitted(block: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """Scale frames to this shape; a pixel is the mean of the area that it covers."""
    block = block[..., None] if block.ndim == 3 else block
    if block.shape[-1] == 4:
        block = block[..., :3]  # without transparency
    require(block.shape[-1] == shape[2], f"frames have {block.shape[-1]} colours; those before had {shape[2]}")
    return resized(block, *shape[:2])


def blocks_of(stored: Any, first: int, last: int) -> Iterator[np.ndarray]:
    """Yield the rows of anything that can be sliced, a block at a time."""
    each = max(1, BLOCK // max(1, int(np.prod(stored.shape[1:]))))
    for start in range(first, last, each):
        yield stored[start : min(last, start + each)]


def episode_of_rows(
    kind: Kind,
    blocks: Iterable[np.ndarray],
    actions: np.ndarray,
    poses: np.ndarray | None = None,
    place: str = "",
    seed: int = 0,
) -> Episode:
    """Make an episode of rows, each an observation (and its pose) and the action that followed, except in the last.

    There is one frame more than there are actions.
    """
    frames = gather(blocks, len(actions) + 1, kind)
    expected = f"{len(actions) + 1}, one before each action and one after the last"
    require(len(frames) == len(actions) + 1, f"{len(frames)} frames and {len(actions)} actions; expected {expected}")
    if poses is None or not kind.pose_size:
        episode = Episode(frames[1:], actions, place=place, seed=seed)
    else:
        require(len(poses) == len(frames), f"{len(poses)} poses for {len(frames)} frames; expected one for each")
        poses = as_floats(poses)
        episode = Episode(frames[1:], actions, poses[1:], poses[0], place, seed)
    episode.require(kind)
    return episode


def rows_of(episode: Episode) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Frames, actions and poses as rows. The first action is left out, since the frame before it was not kept."""
    return episode.frames, episode.actions[1:], episode.poses


def numbered(count: int) -> tuple[str, ...]:
    """Names of actions for which only numbers are known."""
    require(1 <= count <= MOST_NUMBERS, f"{count:,} different actions; expected 1 to {MOST_NUMBERS}")
    return tuple(map(str, range(count)))


def whole(values: np.ndarray) -> bool:
    """Whether these are numbers of discrete actions, or -1 for none; values that are not finite are ignored."""
    known = values[np.isfinite(values)]
    return bool((known == np.floor(known)).all() and (known >= -1).all() and (known < MOST_NUMBERS).all())


def as_actions(values: np.ndarray, kind: Kind) -> Int64[np.ndarray, "time"] | Float32[np.ndarray, "time A"]:
    """Convert stored numbers, of any shape and type, to actions of a kind."""
    require(values.dtype.kind in "biuf", f"actions are {shortened(str(values.dtype))}; expected numbers")
    if not kind.discrete:
        return as_floats(values.reshape(len(values), -1))
    require(values.size == len(values), f"actions of shape {values.shape}; expected a number each")
    flat = values.reshape(len(values))
    known = np.isfinite(flat) & (flat == np.floor(flat)) & (flat >= -1) & (flat < kind.action_size)
    for row in np.flatnonzero(~known)[:1]:
        raise InputError(f"action {flat[row]} in row {row + 1}; expected 0 to {kind.action_size - 1}, or -1 for none")
    return flat.astype(np.int64)


def as_floats(values: np.ndarray) -> Float32[np.ndarray, "..."]:
    """Convert numbers to float32, as in episodes; those that overflow are refused by `Episode.require`."""
    require(values.dtype.kind in "biuf", f"found {shortened(str(values.dtype))}; expected numbers")
    with np.errstate(all="ignore"):
        return values.astype(np.float32)


def require_absent(path: Path) -> None:
    """Refuse a path that exists, or where nothing can be written."""
    require(not path.exists(), f"{path} exists; remove it, or choose another name")
    require_folder(path.parent)


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Yield a path to write a folder or a file to, which is renamed to `path` if the block succeeds.

    It lies in a hidden folder beside `path`. If this process is killed, the next one that writes there removes it.
    """
    require_absent(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _draft(path.parent) as draft:
            yield draft / path.name
            for made in (draft / path.name, *draft.rglob("*")):
                sync(made)
            require_absent(path)
            (draft / path.name).rename(path)
            sync(path.parent)
    except OSError as problem:
        raise InputError(f"could not write {path}: {problem.strerror or problem}") from problem


@contextmanager
def _draft(parent: Path) -> Iterator[Path]:
    """Make a hidden folder, locked while this process lives; those of processes that were killed are removed."""
    for name in os.listdir(parent):
        if re.fullmatch(r"\.gtmsm-[0-9a-f]{8}", name) and (parent / name).is_dir():
            with suppress(OSError), _locked(parent / name):
                shutil.rmtree(parent / name, ignore_errors=True)
    draft = parent / f".gtmsm-{secrets.token_hex(4)}"
    draft.mkdir()
    TEMPORARY.add(draft)
    try:
        with _locked(draft):
            yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        TEMPORARY.discard(draft)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder; raise an OSError if another process has locked it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
