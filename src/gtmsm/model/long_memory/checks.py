"""Entries of a memory as columns, and what a long memory refuses."""

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.errors import InputError
from gtmsm.model.long_memory.rows import Rows
from gtmsm.model.memory import Memory

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
    """Refuse entries unlike those there are, and places that are not finite."""
    for name, column in columns.items():
        if len(column) != len(columns["place"]):
            raise InputError(f"{len(columns['place'])} places but {len(column)} rows of {name}; give as many of each")
        if name in ALWAYS and column.dtype not in PLAIN:
            raise InputError(
                f"{name} is {column.dtype}, but a long memory holds float16, float32 or float64; give {name}.float()"
            )
        if rows is None or name not in rows.names:
            continue
        like = rows.like(name)
        if column.device != like.device:
            raise InputError(f"{name} is on {column.device} but this memory is on {like.device}; move one of them")
        if column.shape[1:] != like.shape[1:] or column.dtype != like.dtype:
            raise InputError(
                f"{name} is {column.dtype} of size {tuple(column.shape[1:])}; the entries of this memory have "
                f"{like.dtype} of size {tuple(like.shape[1:])}"
            )
    check_finite("place", columns["place"])


def check_finite(what: str, places: Float[Tensor, "n P"]) -> None:
    """Refuse places that are not finite, naming the first."""
    if not (finite := torch.isfinite(places)).all():
        row = int((~finite.all(-1)).nonzero()[0, 0])
        raise InputError(f"{what} {row} is {places[row].tolist()}; give finite numbers")
