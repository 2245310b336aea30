"""A memory that grows: places and codes of one agent, searched by an index."""

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.config import require
from gtmsm.errors import InputError
from gtmsm.model.long_memory.checks import ALWAYS, check_columns, check_finite, columns_of
from gtmsm.model.long_memory.index import GridIndex, TreeIndex
from gtmsm.model.long_memory.rows import Rows
from gtmsm.model.memory import Bank, Distance, Memory, Neighbours
from gtmsm.tensors import Belief, Gaussian

Kind: TypeAlias = Literal["tree", "grid"]
Vector: TypeAlias = np.ndarray | Sequence[float]


class LongMemory(Memory):
    """A `Memory` of a single agent for 10^3 to 10^7 entries: a store, not a value.

    `write` appends in place and returns the memory itself, so that `memory = memory.write(later)` works for both kinds.
    Neighbours, codes and places returned before do not change. Entries keep no graph: gradients flow to queries only.
    `nearest`, `retrieve`, `place_at` and `code_at` take about the same time at any length; `place`, `code`, `digest`
    and `variance` copy all of memory into tensors, which must not be written to.

    Neighbours are those of a stable sort of all distances in float64: of entries equally far the earlier comes first.
    """

    def __init__(self, *, index: Kind | None = None, buffer: int = 4096, ratio: int = 16) -> None:
        """An empty memory, by default with a tree on a CPU and a grid on a GPU; `buffer` and `ratio` as in `Index`."""
        require(buffer >= 1, f"buffer is {buffer}; give at least 1")
        require(ratio >= 2, f"ratio is {ratio}; each tree is larger than the next: give at least 2")
        require(index in (None, "tree", "grid"), f'index is {index}; give "tree", "grid" or None')
        self._kind, self._buffer, self._ratio = index, buffer, ratio
        self._rows: Rows | None = None
        self._index: TreeIndex | GridIndex | None = None

    # A store changes, equals nothing but itself, and is true even if it is empty.
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
    def of(cls, memory: Memory, *, index: Kind | None = None, buffer: int = 4096, ratio: int = 16) -> "LongMemory":
        """A long memory that begins with these entries."""
        return cls(index=index, buffer=buffer, ratio=ratio).write(memory)

    @property
    def batch(self) -> int:
        """A long memory belongs to one agent."""
        return 1

    @property
    def nbytes(self) -> int:
        """Bytes held: entries, capacity for the next ones, and the index."""
        return sum(part.nbytes for part in (self._rows, self._index) if part is not None)

    @property
    def place(self) -> Belief:  # type: ignore[override]
        """Keys, all of them."""
        mean = self._column("place")
        return Belief(torch.zeros(1, 0, 0) if mean is None else mean, self._column("covariance"))

    @property
    def code(self) -> Gaussian:  # type: ignore[override]
        """Values, all of them."""
        mean, log_var = self._column("mean"), self._column("log_var")
        if mean is None or log_var is None:
            return Gaussian(torch.zeros(1, 0, 0), torch.zeros(1, 0, 0))
        return Gaussian(mean, log_var)

    @property
    def digest(self) -> Float[Tensor, "1 n tokens width"] | None:  # type: ignore[override]
        """Digests of the prior, of all entries."""
        return self._column("digest")

    @property
    def variance(self) -> Float[Tensor, "1 n G"] | None:  # type: ignore[override]
        """Variances of the poses of all entries."""
        return self._column("variance")

    def write(self, later: Memory) -> "LongMemory":
        """Append the entries of `later`; columns that either lacks (digests, say) are dropped."""
        if not isinstance(later, Memory):
            raise InputError(f"got a {type(later).__name__} to write; give a Memory, as memorise returns")
        columns = columns_of(later)
        if not len(later):
            return self
        check_columns(self._rows, columns)
        rows = self._rows or self._begin(columns)
        for name in set(rows.names) - columns.keys():
            rows.drop(name)
        rows.append({name: columns[name] for name in rows.names})
        return self

    def insert(self, place: Vector, mean: Vector, log_var: Vector) -> None:
        """Append one entry from plain numbers: a fast `write` for single steps."""
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
        """The k entries nearest to one place, given as plain numbers, and their squared distances."""
        query = np.array(place, np.float64)[None]
        self._check_query(query, k)
        if not np.isfinite(query).all():
            raise InputError(f"the place asked for is {query[0].tolist()}; give finite numbers")
        if isinstance(self._index, TreeIndex):
            index, distance2 = self._index.search(query, k)
            return index[0], distance2[0]
        assert self._index is not None and self._rows is not None
        found = self._index.search(torch.from_numpy(query).to(self._rows.device), k)
        return found[0][0].cpu().numpy(), found[1][0].cpu().numpy()

    def nearest(self, query: Belief, k: int, distance: Distance = "euclidean") -> Neighbours:
        """The k entries nearest to each query, nearest first unless all are asked for.

        A CPU refuses queries that are not finite. A GPU does not check, which would wait for it, and returns NaN.
        """
        if distance != "euclidean":
            raise InputError(
                f"distance is {distance}, but a long memory is searched by the means of places alone; "
                "use distance euclidean, or a Memory"
            )
        if len(query.mean) != 1:
            raise InputError(
                f"queries of {len(query.mean)} agents, but a long memory is that of 1; ask for one at a time"
            )
        asked = query.mean.detach()[0]
        self._check_query(asked, k, None if self._rows is None else self._rows.device)
        assert self._index is not None
        if not asked.is_cuda:
            check_finite("query", asked)
        if not len(asked) or k == len(self):
            index = torch.arange(k, device=asked.device).expand(len(asked), k)
        elif isinstance(self._index, TreeIndex):
            index = torch.from_numpy(self._index.search(asked.double().numpy(), k)[0])
        else:
            index, _ = self._index.search(asked, k)
        return Neighbours(index[None], (query.mean[:, :, None] - self.place_at(index[None])).square().sum(-1))

    def place_at(self, index: Int[Tensor, "1 *which"]) -> Float[Tensor, "1 *which P"]:
        """Keys of the entries `index`."""
        return self._at("place", index=index)[0]

    def code_at(self, index: Int[Tensor, "1 *which"]) -> Gaussian:
        """Values of the entries `index`."""
        return Gaussian(*self._at("mean", "log_var", index=index))

    def retrieve(self, index: Int[Tensor, "1 time K"]) -> Bank:
        """A flat bank of the codes of the entries `index`, each once; which rows of it they are; the prior's digests.

        On a GPU an entry is in the bank as often as it is in `index`, unless there are digests, which may be large: to
        count entries would wait for the device.
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
        return rows.span(name, 0, len(rows))[None]

    def _begin(self, columns: dict[str, Tensor]) -> Rows:
        """Rows and index for entries like the first ones."""
        kind = self._kind or ("grid" if columns["place"].is_cuda else "tree")
        if kind == "tree" and columns["place"].is_cuda:
            raise InputError("index is tree, but the entries are on a GPU; use grid, or entries on a CPU")
        self._rows = Rows(columns)
        self._index = (TreeIndex if kind == "tree" else GridIndex)(self._rows, self._buffer, self._ratio)
        self._sizes = columns["place"].shape[-1], columns["mean"].shape[-1]
        return self._rows

    def _check_insertion(self, place: Vector, mean: Vector, log_var: Vector) -> None:
        """Refuse an entry that does not fit, naming the reason."""
        assert self._rows is not None
        places, codes = self._sizes
        for name, value, size in (("place", place, places), ("mean", mean, codes), ("log_var", log_var, codes)):
            if len(value) != size:
                raise InputError(f"{name} has {len(value)} numbers; in the entries of this memory it has {size}")
        if not all(map(math.isfinite, place)):
            raise InputError(f"the place is {[float(x) for x in place]}; give finite numbers")
        if more := self._rows.names[len(ALWAYS) :]:
            raise InputError(f"the entries of this memory have {', '.join(more)}, too; write a Memory that has them")

    def _check_query(self, query: Tensor | np.ndarray, k: int, device: torch.device | None = None) -> None:
        """Refuse queries that do not fit, or are not on `device`, and more neighbours than there are."""
        if not 0 < k <= len(self):
            has = f"give 1 to {len(self)}" if len(self) else "write to it first"
            raise InputError(f"asked for {k} neighbours of a memory that holds {len(self)}; {has}")
        if query.ndim != 2 or query.shape[-1] != self._sizes[0]:
            raise InputError(
                f"queries have {query.shape[-1]} coordinates; the places of this memory have {self._sizes[0]}"
            )
        if device is not None and query.device != device:
            raise InputError(f"queries are on {query.device} but this memory is on {device}; move one of them")
