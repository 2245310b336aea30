"""Split episodes into those for training, for validation and for the test, by whole places or whole episodes."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Int64

from gtmsm.config import require

HoldOut: TypeAlias = Literal["places", "episodes"]
Numbers: TypeAlias = Int64[np.ndarray, "_"]
FEW = 10
"""Minimum number of different places to hold out places; with fewer, episodes are held out."""
WATCHED, TESTED = 0.8, 0.9
"""Names are hashed into the unit interval; those from these values on are for validation, and for the test."""


@dataclass(frozen=True)
class Split:
    """Numbers of the episodes in each part, and how many different places or episodes each part has."""

    train: Numbers
    watch: Numbers
    test: Numbers
    counts: tuple[int, int, int]


def hold_out_by(places: Sequence[str]) -> HoldOut:
    """Whole places if there are enough of them, else episodes."""
    return "places" if len(set(places)) >= FEW else "episodes"


def split(places: Sequence[str], seeds: Iterable[int], by: HoldOut) -> Split:
    """Split into about 80, 10 and 10%, by a hash of each name.

    When a store grows, episodes that were trained on are never tested on: hashes of names are fixed, those from 0.8 on
    are never trained on, and if there are none of these, the two highest are held out.
    """
    names = list(places) if by == "places" else [f"{place}/{seed}" for place, seed in zip(places, seeds, strict=True)]
    if by == "episodes" and len(set(names)) < len(names):  # no seeds were recorded
        names = [f"{name}/{i}" for i, name in enumerate(names)]
    hashes = {name: _hash(name) for name in names}
    ranked = sorted(hashes, key=lambda name: hashes[name])
    require(len(ranked) >= 3, f"there are {len(ranked)} {by}; to train, watch and test takes at least 3")
    tested = {name for name in ranked if hashes[name] >= TESTED} or {ranked[-1]}
    rest = [name for name in ranked if name not in tested]
    watched = {name for name in rest if hashes[name] >= WATCHED} or {rest[-1]}
    trained = set(rest) - watched
    require(bool(trained), f"all {len(ranked)} {by} would be held out; record more of them")
    parts = trained, watched, tested
    train, watch, test = (np.array([i for i, name in enumerate(names) if name in part], np.int64) for part in parts)
    return Split(train, watch, test, (len(trained), len(watched), len(tested)))


def _hash(name: str) -> float:
    """A hash from 0 to 1, the same on every machine."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") / 2**56
