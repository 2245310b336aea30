"""Entries of a memory as columns, and what a long memory refuses."""

from collections.abc import Sequence
from reprlib import repr as shortened
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.errors import InputError
from gtmsm.model.long_memory.rows import FEW, LARGEST, Rows
from gtmsm.model.memory import Memory

Vector: TypeAlias = np.ndarray | Sequence[float]

ALWAYS = ("place", "mean", "log_var")
"""Columns of every entry: its place and its code."""
PLAIN = (torch.float16, torch.float32, torch.float64)
"""Their types: NumPy writes single entries, and has no bfloat16."""


def columns_of(memory: Memory) -> dict[str, Tensor]:
    """The entries of a memory of one agent by columns, without their graph."""
    if memory.batch != 1:
        raise InputError(f"got {memory.batch} memories, but a long memory is that of 1 agent; write one at a time")
    columns = {
        "place": memory.place.mean, "mean": memory.code.mean, "log_var": memory.code.log_var,
        "covariance": memory.place.covariance, "digest": memory.digest, "variance": memory.variance,
    }  # fmt: skip
    return {name: column.detach()[0] for name, column in columns.items() if column is not None}


def check_columns(rows: Rows | None, columns: dict[str, Tensor]) -> None:
    """Refuse entries unlike those there are, and numbers that are not finite."""
    for name, column in columns.items():
        if len(column) != len(columns["place"]):
            raise InputError(f"{len(columns['place'])} places but {len(column)} rows of {name}; give as many of each")
        if (name in ALWAYS and column.dtype not in PLAIN) or not column.is_floating_point():
            raise InputError(
                f"{name} is {column.dtype}, but a long memory holds float16, float32 or float64; give {name}.float()"
            )
        like = rows.like(name) if rows is not None and name in rows.names else column
        if column.device != like.device:
            raise InputError(f"{name} is on {column.device} but this memory is on {like.device}; move one of them")
        if column.shape[1:] != like.shape[1:] or column.dtype != like.dtype:
            raise InputError(
                f"{name} is {column.dtype} of size {tuple(column.shape[1:])}; the entries of this memory have "
                f"{like.dtype} of size {tuple(like.shape[1:])}"
            )
        check_finite(name, column)


def check_entry(rows: Rows | None, place: Vector, mean: Vector, log_var: Vector) -> None:
    """Refuse a single entry that does not fit, naming the reason."""
    places, codes = rows.sizes if rows else (len(place), len(mean))
    for name, value, size in (("place", place, places), ("mean", mean, codes), ("log_var", log_var, codes)):
        if len(value) != size:
            raise InputError(f"{name} has {len(value)} numbers; in the entries of this memory it has {size}")
        limit = min(torch.finfo(rows.like(name).dtype if rows else torch.float32).max, LARGEST)
        if not all(abs(float(x)) <= limit for x in value):
            given = shortened([float(x) for x in value])
            raise InputError(f"the {name} is {given}; give finite numbers up to {limit:.2g}")
    if rows and (more := rows.names[len(ALWAYS) :]):
        raise InputError(f"the entries of this memory have {', '.join(more)}, too; write a Memory that has them")


def check_finite(what: str, values: Float[Tensor, "n *size"]) -> None:
    """Refuse numbers that are not finite, or whose square would not be, naming the first row that has one."""
    limit = min(torch.finfo(values.dtype).max, LARGEST)
    if values.numel() and not float(torch.linalg.vector_norm(values, torch.inf)) <= limit:
        row = int((~(values.abs() <= limit)).flatten(1).any(-1).nonzero()[0, 0])
        raise InputError(f"{what} {row} is {shortened(values[row].tolist())}; give finite numbers up to {limit:.2g}")


def check_which(index: object, held: int) -> None:
    """Refuse entries that are not there; a GPU is not waited for, and stops by itself."""
    if not isinstance(index, Tensor) or index.dtype not in (torch.int32, torch.int64):
        kind = getattr(index, "dtype", type(index).__name__)
        raise InputError(f"asked for entries by a {kind}; give a tensor of int64")
    if not index.is_cuda and index.numel():
        ends = index.flatten().tolist() if index.numel() <= FEW else [int(end) for end in index.aminmax()]
        for end in (min(ends), max(ends)):
            if not 0 <= end < held:
                raise InputError(f"asked for entry {end} of a memory that holds {held}; give 0 to {held - 1}")
