"""Entries of a memory as columns, and the checks of a long memory."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.config import require
from gtmsm.errors import InputError, shown
from gtmsm.model.long_memory.rows import LARGEST, Rows
from gtmsm.model.memory import require_entries

Vector: TypeAlias = np.ndarray | Sequence[float]

ALWAYS = ("place", "mean", "log_var")
"""Columns of every entry: its place and its code."""
PLAIN = (torch.float16, torch.float32, torch.float64)
"""Types of these columns: NumPy writes single entries, and has no bfloat16."""


def columns_of(later: Any, rows: Rows | None) -> dict[str, Tensor]:
    """The columns of a memory of one agent, detached; refuses columns that do not fit `rows`."""
    like = {} if rows is None else {name: rows.like(name)[None] for name in rows.names}
    whole = require_entries(later, like)
    require(later.batch == 1, f"got {later.batch} memories, but a long memory is that of 1 agent; write one at a time")
    columns = {name: column.detach()[0] for name, column in whole.items()}
    for name, column in columns.items():
        kinds = [like[name].dtype] if name in like else PLAIN if name in ALWAYS else [column.dtype]
        if column.dtype not in kinds:
            known = " or ".join(str(kind).removeprefix("torch.") for kind in kinds)
            raise InputError(f"{name} is {column.dtype}, but a long memory holds {known} here; convert it")
        check_finite(name, column)
    return columns


def check_entry(rows: Rows | None, place: Any, mean: Any, log_var: Any) -> None:
    """Refuse a single entry that does not fit, naming the reason."""
    numbers = {
        "place": _numbers("place", place),
        "mean": _numbers("mean", mean),
        "log_var": _numbers("log_var", log_var),
    }
    places, codes = rows.sizes if rows else (len(numbers["place"]), len(numbers["mean"]))
    for name, given in numbers.items():
        if len(given) != (size := places if name == "place" else codes):
            raise InputError(f"{name} has {len(given)} numbers; in the entries of this memory it has {size}")
        limit = min(torch.finfo(rows.like(name).dtype if rows else torch.float32).max, LARGEST)
        if not all(abs(x) <= limit for x in given):
            raise InputError(f"the {name} is {shown(given)}; give finite numbers up to {limit:.2g}")
    if rows and (more := rows.names[len(ALWAYS) :]):
        raise InputError(f"the entries of this memory have {', '.join(more)}, too; write a Memory that has them")


def _numbers(name: str, vector: Any) -> list[float]:
    """The vector as Python numbers; refuses anything else."""
    try:
        return [float(x + 0.0) for x in vector]  # x + 0.0 refuses strings, which float accepts
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"the {name} is {shown(vector)}; give a list of finite numbers") from None


def check_finite(what: str, values: Float[Tensor, "n *size"]) -> None:
    """Refuse numbers that are not finite, or whose square would not be, naming the first row that has one."""
    limit = min(torch.finfo(values.dtype).max, LARGEST)
    if values.numel() and not float(torch.linalg.vector_norm(values, torch.inf)) <= limit:
        row = int((~(values.abs() <= limit)).flatten(1).any(-1).nonzero()[0, 0])
        raise InputError(f"{what} {row} is {shown(values[row].tolist())}; give finite numbers up to {limit:.2g}")
