"""A memory that grows: the places and codes of one agent's life, searched by an index."""

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.config import require
from gtmsm.errors import InputError
from gtmsm.model.long_memory.grid_index import GridIndex
from gtmsm.model.long_memory.rows import Rows
from gtmsm.model.long_memory.tree_index import TreeIndex
from gtmsm.model.memory import Distance, Memory, Neighbours, measure
from gtmsm.tensors import Belief, Gaussian

Index: TypeAlias = Literal["tree", "grid"]
Vector: TypeAlias = np.ndarray | Sequence[float]
ALWAYS = ("place", "mean", "log_var")
"""What every entry has: its place and its code."""
PLAIN = (torch.float16, torch.float32, torch.float64)
"""What these may be of: NumPy writes single entries, and knows no bfloat16."""


class LongMemory(Memory):
    """A `Memory` of a single agent for 10^3 to 10^7 entries: a store, not a value.

    `write` appends in place and returns the memory itself, so that `memory = memory.write(later)` does for both kinds.
    What was handed out before, neighbours, codes and places, stays as it was. Nothing of a graph is kept: gradients
    flow to queries, not to entries. `nearest`, `retrieve`, `place_at` and `code_at` cost next to nothing at any
    length; `place`, `code`, `digest` and `variance` put all of memory into tensors, to look at and not to write to.

    Neighbours are those of a search through all entries in float64; of entries equally far the earlier comes first.
    """

    def __init__(self, *, index: Index | None = None, buffer: int = 4096, ratio: int = 16) -> None:
        """`index`: a tree on CPUs, a grid on GPUs, unless told otherwise.

        `buffer`: how many of the newest entries are searched one by one; `ratio`: how much larger each tree or grid is
        than the next (see `TreeIndex`).
        """
        require(buffer >= 1, f"buffer is {buffer}; give at least 1")
        require(ratio >= 2, f"ratio is {ratio}; each tree is larger than the next: give at least 2")
        require(index in (None, "tree", "grid"), f'index is {index}; give "tree", "grid" or None')
        self._kind, self._buffer, self._ratio = index, buffer, ratio
        self._rows: Rows | None = None
        self._index: TreeIndex | GridIndex | None = None

    # A store is changed, is itself and nothing else, and is there even when it is empty.
    __setattr__ = object.__setattr__
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return 0 if self._rows is None else len(self._rows)

    def __repr__(self) -> str:
        return f"LongMemory({len(self)} entries, {self.nbytes / 2**20:.3g} MiB)"

    @classmethod
    def of(cls, memory: Memory, *, index: Index | None = None, buffer: int = 4096, ratio: int = 16) -> "LongMemory":
        """A long memory that begins with these entries."""
        return cls(index=index, buffer=buffer, ratio=ratio).write(memory)

    @property
    def batch(self) -> int:
        """A long memory is that of one agent."""
        return 1

    @property
    def nbytes(self) -> int:
        """Bytes held: entries, room for the next ones, and the index."""
        return sum(part.nbytes for part in (self._rows, self._index) if part is not None)

    @property
    def place(self) -> Belief:  # type: ignore[override]
        """Keys, all of them."""
        covariance = self._column("covariance")
        mean = self._column("place")
        return Belief(torch.zeros(1, 0, 0) if mean is None else mean, covariance)

    @property
    def code(self) -> Gaussian:  # type: ignore[override]
        """Values, all of them."""
        mean, log_var = self._column("mean"), self._column("log_var")
        if mean is None or log_var is None:
            return Gaussian(torch.zeros(1, 0, 0), torch.zeros(1, 0, 0))
        return Gaussian(mean, log_var)

    @property
    def digest(self) -> Float[Tensor, "1 n tokens width"] | None:  # type: ignore[override]
        """What the prior made of all entries."""
        return self._column("digest")

    @property
    def variance(self) -> Float[Tensor, "1 n G"] | None:  # type: ignore[override]
        """How sure the poses of all entries are."""
        return self._column("variance")

    def write(self, later: Memory) -> "LongMemory":
        """Append the entries of `later`; what either lacks (digests, say) nothing is known of from now on."""
        if not isinstance(later, Memory):
            raise InputError(f"got a {type(later).__name__} to write; give a Memory, as memorise returns")
        columns = _columns(later)
        if not len(later):
            return self
        _check_columns(self._rows, columns)
        rows = self._rows or self._begin(columns)
        for name in set(rows.names) - columns.keys():
            rows.drop(name)
        rows.append({name: columns[name] for name in rows.names})
        return self

    def insert(self, place: Vector, mean: Vector, log_var: Vector) -> None:
        """Append one entry from plain numbers: `write` for those who come step by step and cannot wait."""
        rows = self._rows
        if rows is None:
            first = (np.asarray(value, np.float32)[None, None] for value in (place, mean, log_var))
            where, *code = map(torch.tensor, first)
            self.write(Memory(Belief(where), Gaussian(*code)))
            return
        places, codes = self._sizes
        fits = len(place) == places and len(mean) == len(log_var) == codes and rows.width == len(ALWAYS)
        if not fits or not math.isfinite(sum(place)):
            self._check_insertion(place, mean, log_var)
        rows.append_one(place, mean, log_var)

    def find(self, place: Vector, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Of one place, as plain numbers: its k nearest entries and their squared distances, without gradients."""
        query = np.array(place, np.float64)[None]
        self._check_query(query.shape, k)
        if not np.isfinite(query).all():
            raise InputError(f"the place asked for is {query[0].tolist()}; give finite numbers")
        if isinstance(self._index, TreeIndex):
            index, distance2 = self._index.search(query, k)
            return index[0], distance2[0]
        assert self._index is not None and self._rows is not None
        found = self._index.search(torch.from_numpy(query).to(self._rows.device), k)
        return found[0][0].cpu().numpy(), found[1][0].cpu().numpy()

    def nearest(self, query: Belief, k: int, distance: Distance = "euclidean") -> Neighbours:
        """The k entries nearest to each query, nearest first unless all are wanted.

        Queries that are not finite are refused, on a CPU: a GPU, which would have to be waited for, says NaN.
        """
        if distance != "euclidean":
            raise InputError(
                f"distance is {distance}, but a long memory is searched by the means of places alone; "
                "use distance euclidean, or a Memory"
            )
        self._check_query(tuple(query.mean.shape[1:]), k, query.mean)
        assert self._rows is not None
        asked = query.mean.detach()[0]
        if not asked.is_cuda and not torch.isfinite(asked).all():
            bad = (~torch.isfinite(asked).all(-1)).nonzero()[0, 0]
            raise InputError(f"query {int(bad)} is {asked[bad].tolist()}; give places of finite numbers")
        if not len(asked):
            index = torch.empty(1, 0, k, dtype=torch.int64, device=asked.device)
        elif k == len(self):
            index = torch.arange(k, device=asked.device).expand(1, len(asked), k)
        elif isinstance(self._index, TreeIndex):
            index = torch.from_numpy(self._index.search(asked.double().numpy(), k)[0])[None]
        else:
            assert self._index is not None
            index = self._index.search(asked, k)[0][None]
        if (places := self._rows.whole("place")) is not None:
            return measure(places[None], query.mean, index)
        return Neighbours(index, (query.mean[:, :, None] - self.place_at(index)).square().sum(-1))

    def place_at(self, index: Int[Tensor, "1 *which"]) -> Float[Tensor, "1 *which P"]:
        """Keys of the entries `index`."""
        return self._at("place", index=index)[0]

    def code_at(self, index: Int[Tensor, "1 *which"]) -> Gaussian:
        """Values of the entries `index`."""
        return Gaussian(*self._at("mean", "log_var", index=index))

    def retrieve(
        self, index: Int[Tensor, "1 time K"]
    ) -> tuple[Gaussian, Int[Tensor, "1 time K"], Float[Tensor, "rows tokens width"] | None]:
        """Codes of the entries `index`, each once, in a flat bank; which rows of it they are; the prior's digests.

        A GPU would have to be waited for to say how many that are: there, without digests, which may be large, each is
        taken as often as it is found.
        """
        keeps = self._rows is not None and "digest" in self._rows.names
        if index.is_cuda and not keeps:
            needed, row = index.flatten(), torch.arange(index.numel(), device=index.device).view(index.shape)
        else:
            needed, row = index.unique(return_inverse=True)
        mean, log_var, *digest = self._at("mean", "log_var", *["digest"] * keeps, index=needed)
        return Gaussian(mean, log_var), row, digest[0] if digest else None

    def _at(self, *names: str, index: Tensor) -> list[Tensor]:
        if self._rows is None:
            raise InputError("this memory is empty; write to it before it is read")
        return self._rows.at(names, index)

    def _column(self, name: str) -> Tensor | None:
        rows = self._rows
        if rows is None or name not in rows.names:
            return None
        whole = rows.span(name, 0, len(rows))
        return whole[None]

    def _begin(self, columns: dict[str, Tensor]) -> Rows:
        """The first entries say what all others look like."""
        kind = self._kind or ("grid" if columns["place"].is_cuda else "tree")
        if kind == "tree" and columns["place"].is_cuda:
            raise InputError("index is tree, but the entries are on a GPU; use grid, or entries on a CPU")
        self._rows = Rows(columns)
        self._index = (TreeIndex if kind == "tree" else GridIndex)(self._rows, self._buffer, self._ratio)
        self._sizes = columns["place"].shape[-1], columns["mean"].shape[-1]
        return self._rows

    def _check_insertion(self, place: Vector, mean: Vector, log_var: Vector) -> None:
        """Say what is wrong with an entry, if anything is."""
        assert self._rows is not None
        places, codes = self._sizes
        for name, value, size in (("place", place, places), ("mean", mean, codes), ("log_var", log_var, codes)):
            if len(value) != size:
                raise InputError(f"{name} has {len(value)} numbers; in the entries of this memory it has {size}")
        if not all(map(math.isfinite, place)):
            raise InputError(f"the place is {[float(x) for x in place]}; give finite numbers")
        if more := self._rows.names[len(ALWAYS) :]:
            raise InputError(f"the entries of this memory have {', '.join(more)}, too; write a Memory that has them")

    def _check_query(self, shape: tuple[int, ...], k: int, query: Tensor | None = None) -> None:
        """Refuse what cannot be looked for."""
        if not 0 < k <= len(self):
            has = f"give 1 to {len(self)}" if len(self) else "write to it first"
            raise InputError(f"asked for {k} neighbours of a memory that holds {len(self)}; {has}")
        assert self._rows is not None
        place = self._rows.like("place")
        if query is not None and len(query) != 1:
            raise InputError(f"queries of {len(query)} agents, but a long memory is that of 1; ask for one at a time")
        if len(shape) != 2 or shape[-1] != place.shape[-1]:
            raise InputError(f"queries have {shape[-1]} coordinates; the places of this memory have {place.shape[-1]}")
        if query is not None and query.device != place.device:
            raise InputError(f"queries are on {query.device} but this memory is on {place.device}; move one of them")


def _columns(memory: Memory) -> dict[str, Tensor]:
    """The entries of a single agent as columns of rows, and nothing of how they came about."""
    if memory.batch != 1:
        raise InputError(f"got {memory.batch} memories, but a long memory is that of 1 agent; write one at a time")
    columns = {
        "place": memory.place.mean, "mean": memory.code.mean, "log_var": memory.code.log_var,
        "covariance": memory.place.covariance, "digest": memory.digest, "variance": memory.variance,
    }  # fmt: skip
    return {name: column.detach()[0] for name, column in columns.items() if column is not None}


def _check_columns(rows: Rows | None, columns: dict[str, Tensor]) -> None:
    """Refuse entries unlike those there are, and places that are nowhere."""
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
    if not torch.isfinite(columns["place"]).all():
        bad = (~torch.isfinite(columns["place"]).all(-1)).nonzero()[0, 0]
        raise InputError(f"place {int(bad)} is {columns['place'][bad].tolist()}; give finite numbers")
