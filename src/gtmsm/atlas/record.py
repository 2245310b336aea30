"""A line of the log: written once, never changed, checked by a hash."""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from safetensors.torch import load, save

from gtmsm.config import require
from gtmsm.errors import InputError, shown
from gtmsm.files import parse_json, refusing
from gtmsm.model.memory import Memory
from gtmsm.tensors import FLOATS

Kind: TypeAlias = Literal["chunk", "meeting", "prune"]

CHUNK, LARGEST = 1_000, 2**22
"""Maximum number of entries of a chunk, and of their bytes: entries with digests are large."""
NAME = re.compile(r"\w[\w .:/@+-]{0,99}")
COLUMNS = {"place": 2, "mean": 2, "log_var": 2, "covariance": 3, "digest": 3, "variance": 2, "slips": 2}
"""Columns of entries, and the number of axes of each."""


def require_name(what: str, name: object) -> None:
    """Refuse invalid names: people read and type them."""
    fits = isinstance(name, str) and NAME.fullmatch(name) is not None
    require(fits, f"the {what} is {shown(name)}; give a name of up to 100 letters, digits, spaces or .:/@+-_")


@dataclass(frozen=True)
class Record:
    """A line of the log of a world."""

    seq: int
    """Its number: 1, 2, 3 ... in every world, in the order in which lines became visible."""
    kind: Kind
    agent: str
    first: int | None
    """Of a chunk: number of entries that the agent had written before. None for a chunk that pruning wrote."""
    entries: int
    time: float
    """When it was added, in seconds since 1970."""
    hash: bytes
    body: bytes

    def require_whole(self, world: str, weights: str | None, source: str) -> None:
        """Refuse a line whose hash does not fit."""
        if self.hash != digest_of(
            world, weights, self.kind, self.agent, self.first, self.entries, self.time, self.body
        ):
            raise InputError(
                f"{source}: line {self.seq} of world {world} ({self.kind} of agent {self.agent}) has a wrong hash: it "
                "was changed or damaged; restore the atlas from a copy"
            )

    def memory(self, weights: str | None, source: str) -> Memory:
        """The entries of a chunk."""
        where = f"{source}: chunk {self.seq}"
        with refusing(f"{where} cannot be read", "restore the atlas from a copy"):
            columns = load(self.body)
        for name, axes in COLUMNS.items():
            column = columns.get(name)
            if column is None and name not in ("place", "mean", "log_var"):
                continue
            sizes = None if column is None or column.dtype not in FLOATS else (column.dim(), len(column))
            if sizes != (axes, self.entries):
                raise InputError(f"{where}: {name} is {shown(column)}; expected floats of {self.entries} entries")
        return Memory.of_columns({name: column[None] for name, column in columns.items()}, weights)

    def said(self, source: str) -> dict[str, Any]:
        """The content of a meeting or a pruning."""
        return parse_json(self.body, f"{source}: line {self.seq}", "restore the atlas from a copy")


def digest_of(
    world: str, weights: str | None, kind: Kind, agent: str, first: int | None, entries: int, time: float, body: bytes
) -> bytes:
    """SHA-256 of the whole line except its number."""
    digest = hashlib.sha256(json.dumps([world, weights, kind, agent, first, entries, time.hex()]).encode())
    digest.update(body)
    return digest.digest()


@dataclass(frozen=True)
class Draft:
    """A line to be written."""

    kind: Kind
    agent: str
    first: int | None
    entries: int
    time: float
    body: bytes
    codes: np.ndarray | None = None
    """Of a chunk: the codes by which a server finds entries."""

    def hash(self, world: str, weights: str | None) -> bytes:
        """As `Record.hash`."""
        return digest_of(world, weights, self.kind, self.agent, self.first, self.entries, self.time, self.body)

    @staticmethod
    def saying(kind: Kind, agent: str, said: dict[str, Any], time: float) -> "Draft":
        """A line whose content is a dictionary."""
        return Draft(kind, agent, None, 0, time, json.dumps(said).encode())


def chunks_of(memory: Memory, agent: str, first: int | None, time: float) -> Iterator[Draft]:
    """Split the memory of one agent into chunks; `first` is None for entries that pruning has left."""
    columns = {name: column[0].detach().cpu() for name, column in memory.columns.items()}
    each = sum(column.element_size() * column[0].numel() for column in columns.values() if len(column))
    most = max(1, min(CHUNK, LARGEST // max(1, each)))
    for start in range(0, len(memory), most):
        # A copy of each: safetensors refuses tensors that share memory.
        part = {name: column[start : start + most].contiguous().clone() for name, column in columns.items()}
        size, codes = len(part["mean"]), part["mean"].to(torch.float32).numpy()
        yield Draft("chunk", agent, None if first is None else first + start, size, time, save(part), codes)


@dataclass(frozen=True)
class World:
    """A world, which has a log of its own."""

    name: str
    weights: str | None
    """Fingerprint of the model that made its entries."""
    seq: int
    """The number of its last line."""


@dataclass(frozen=True)
class Hit:
    """An entry found by its code."""

    world: str
    agent: str
    seq: int
    row: int
    """Index of the entry in its chunk."""
    distance: float

    def __post_init__(self) -> None:
        assert math.isfinite(self.distance)
