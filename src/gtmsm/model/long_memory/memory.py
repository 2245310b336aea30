"""A memory that grows: places and codes of one agent, searched by an index."""

import math
from collections.abc import Sequence
from copy import copy
from threading import RLock
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.config import is_whole, require_choice, require_whole
from gtmsm.errors import InputError, shown
from gtmsm.model.long_memory.checks import (
    ALWAYS,
    Vector,
    check_entry,
    check_finite,
    columns_of,
)
from gtmsm.model.long_memory.index import GridIndex, TreeIndex
from gtmsm.model.long_memory.rows import LARGEST, Rows
from gtmsm.model.memory import (
    Alike,
    Bank,
    Distance,
    Memory,
    Neighbours,
    require_index,
    require_query,
    require_weights_of,
)
from gtmsm.tensors import Belief, Gaussian

Kind: TypeAlias = Literal["tree", "grid"]


class LongMemory(Memory):
    """A `Memory` of a single agent for 10^3 to 10^7 entries: a store, not a value.

    `write` appends in place and returns the memory itself, so that `memory = memory.write(later)` works for both kinds.
    Neighbours, codes and places returned before do not change. Entries keep no graph: gradients flow to queries only.
    `nearest`, `retrieve`, `place_at` and `code_at` take about the same time at any length; `place`, `code`, `digest`
    and `variance` copy all of memory into tensors, which must not be written to.

    Neighbours are those of a stable sort of all distances in float64: of entries equally far the earlier comes first.

    Threads may share it. A `write` or an `insert` is atomic, and visible to all threads once it has returned; writers
    take turns. Each other method sees the memory of one moment between its call and its return. For several results
    from the same moment take a `snapshot`, as `imagine`, `localise`, `follow` and `memorise` do. Copies and pickles are
    snapshots. On a GPU all threads must use the same stream.
    """

    def __init__(self, *, index: Kind | None = None, buffer: int = 4096, ratio: int = 16) -> None:
        """An empty memory, by default with a tree on a CPU and a grid on a GPU; `buffer` and `ratio` as in `Index`."""
        require_whole("buffer", buffer)
        require_whole("ratio", ratio, least=2)
        if index is not None:
            require_choice("index", index, get_args(Kind))
        self._kind, self._buffer, self._ratio = index, buffer, ratio
        self._index: TreeIndex | GridIndex | None = None
        self._weights: str | None = None
        self._writing = RLock()

    # Unlike a value, a store is mutable, equal only to itself, and true even if it is empty.
    __setattr__ = object.__setattr__
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return 0 if self._index is None else len(self._index.rows)

    def __getstate__(self) -> dict[str, Any]:
        """The state of a snapshot, for copies and pickles."""
        index, end = self._now()
        return self.__dict__ | {"_index": None if index is None else index.snapshot(end), "_writing": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"_writing": RLock()})

    def __repr__(self) -> str:
        return f"LongMemory({len(self)} entries, {self.nbytes / 2**20:.3g} MiB)"

    @classmethod
    def of(cls, memory: Memory, *, index: Kind | None = None, buffer: int = 4096, ratio: int = 16) -> "LongMemory":
        """A long memory that begins with the entries of `memory`."""
        return cls(index=index, buffer=buffer, ratio=ratio).write(memory)

    @property
    def batch(self) -> int:
        """1: a long memory belongs to one agent."""
        return 1

    @property
    def nbytes(self) -> int:
        """Bytes held: entries, capacity for the next ones, and the index."""
        index = self._index
        return 0 if index is None else index.rows.nbytes + index.nbytes

    @property
    def place(self) -> Belief:  # type: ignore[override]
        """Keys of all entries."""
        mean, covariance = self._columns("place", "covariance")
        return Belief(torch.zeros(1, 0, 0) if mean is None else mean, covariance)

    @property
    def code(self) -> Gaussian:  # type: ignore[override]
        """Values of all entries."""
        mean, log_var = self._columns("mean", "log_var")
        if mean is None or log_var is None:
            return Gaussian(torch.zeros(1, 0, 0), torch.zeros(1, 0, 0))
        return Gaussian(mean, log_var)

    @property
    def digest(self) -> Float[Tensor, "1 n tokens width"] | None:  # type: ignore[override]
        """The prior's digests of all entries."""
        return self._columns("digest")[0]

    @property
    def variance(self) -> Float[Tensor, "1 n G"] | None:  # type: ignore[override]
        """Variances of the poses of all entries."""
        return self._columns("variance")[0]

    @property
    def slips(self) -> Float[Tensor, "1 n H"] | None:  # type: ignore[override]
        """Statistics of slipped steps after each entry."""
        return self._columns("slips")[0]

    @property
    def weights(self) -> str | None:  # type: ignore[override]
        """Fingerprint of the weights that made it."""
        return self._weights

    @property
    def to_check(self) -> Memory:
        """The first entry: all entries have the same sizes, and were checked when they were written."""
        index, _ = self._now()
        if index is None:
            return Memory(self.place, self.code)
        if index.first is not None and index.first.weights == self.weights:
            return index.first
        names, number = index.rows.names, torch.zeros(1, 1, dtype=torch.int64, device=index.rows.device)
        first = dict(zip(names, index.rows.at(names, number), strict=True))
        index.first = Memory.of_columns(first, self.weights)
        return index.first

    def snapshot(self) -> "LongMemory":
        """This memory as it is now. Entries and index are shared, so that it takes about the same time at any length.

        The snapshot is independent: what is written to one of them later is not in the other.
        """
        return copy(self)

    def index_codes(self) -> "LongMemory":
        """Begin an index of codes, which snapshots share; `alike` begins one by itself when it needs it."""
        if self._index is not None:
            self._index.by_code()
        return self

    def since(self, first: int) -> Memory:
        """The entries from number `first` on, as a memory of their own."""
        index, end = self._now()
        if index is None or not is_whole(first) or not 0 <= first < end:
            raise InputError(f"asked for the entries from {shown(first)} on of a memory that holds {end}")
        rows = index.rows
        return Memory.of_columns({name: rows.span(name, first, end)[None] for name in rows.names}, self.weights)

    def at(self, number: Int[Tensor, "n"]) -> Memory:
        """The entries with these numbers, as a memory of their own."""
        rows = self._rows_with(number[None])
        columns = zip(rows.names, rows.at(rows.names, number[None]), strict=True)
        return Memory.of_columns(dict(columns), self.weights)

    def write(self, later: Memory) -> "LongMemory":
        """Append the entries of `later`; columns that either lacks (digests, say) are dropped."""
        later = later.snapshot() if isinstance(later, Memory) else later  # its columns are read one after the other
        if isinstance(later, LongMemory) and not len(later):
            return self
        with self._writing:
            index, end = self._now()
            columns = columns_of(later, None if index is None else index.rows)
            weights = require_weights_of(later, self.weights)
            if not len(later):
                return self
            if index is None:
                index = self._begin(columns)
            elif lacking := set(index.rows.names) - columns.keys():
                index = index.snapshot(end, lacking)
            index.rows.append({name: columns[name] for name in index.rows.names})
            self._index, self._weights = index, weights
        return self

    def insert(self, place: Vector, mean: Vector, log_var: Vector) -> None:
        """Append one entry from plain numbers: a fast `write` for single steps."""
        with self._writing:
            if self._index is None:
                check_entry(None, place, mean, log_var)
                first = (np.asarray(value, np.float32)[None, None] for value in (place, mean, log_var))
                where, *code = map(torch.tensor, first)
                self.write(Memory(Belief(where), Gaussian(*code)))
                return
            rows = self._index.rows
            places, codes = rows.sizes
            try:
                fits = len(place) == places and len(mean) == len(log_var) == codes and rows.width == len(ALWAYS)
                fits = fits and math.hypot(*_plain(place), *_plain(mean), *_plain(log_var)) < rows.limit
            except (TypeError, OverflowError):
                fits = False
            if not fits:
                check_entry(rows, place, mean, log_var)
            rows.append_one(place, mean, log_var)

    def find(self, place: Vector, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k entries nearest to one place, given as plain numbers, and their squared distances."""
        try:
            query = np.array(place, np.float64)[None]
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"the place asked for is {shown(place)}; give a list of numbers") from None
        index, end = self._for_query(query.shape[1:], k)
        if not (np.abs(query) <= LARGEST).all():
            raise InputError(f"the place asked for is {query[0].tolist()}; give finite numbers up to {LARGEST:g}")
        if isinstance(index, TreeIndex):
            entry, distance2 = index.search(query, k, end)
            return entry[0], distance2[0]
        found = index.search(torch.from_numpy(query).to(index.rows.device), k, end)
        return found[0][0].cpu().numpy(), found[1][0].cpu().numpy()

    def nearest(self, query: Belief, k: int, distance: Distance = "euclidean") -> Neighbours:
        """The k entries nearest to each query, nearest first unless all are asked for.

        Queries on a CPU that are not finite are refused. Those on a GPU are not checked, which would synchronise with
        it; their distances are NaN.
        """
        if distance != "euclidean":
            raise InputError(
                f"distance is {distance}, but a long memory is searched by the means of places alone; "
                "use distance euclidean, or a Memory"
            )
        index, end = self._for_query(None, k)
        require_query(query, index.rows.like("place")[None])
        asked = query.mean.detach()[0]
        if not asked.is_cuda:
            check_finite("query", asked)
        if not len(asked) or k == end:
            entry = torch.arange(k, device=asked.device).expand(len(asked), k)
        elif isinstance(index, TreeIndex):
            entry = torch.from_numpy(index.search(asked.double().numpy(), k, end)[0])
        else:
            entry, _ = index.search(asked, k, end)
        (place,) = index.rows.at(["place"], entry[None])
        return Neighbours(entry[None], (query.mean[:, :, None] - place).square().sum(-1))

    def place_at(self, index: Int[Tensor, "1 *which"]) -> Float[Tensor, "1 *which P"]:
        """Keys of the entries `index`."""
        return self._rows_with(index).at(["place"], index)[0]

    def code_at(self, index: Int[Tensor, "1 *which"]) -> Gaussian:
        """Values of the entries `index`."""
        return Gaussian(*self._rows_with(index).at(["mean", "log_var"], index))

    def retrieve(self, index: Int[Tensor, "1 time K"]) -> Bank:
        """A flat bank of the codes of the entries `index`, each once; their rows in it; and the prior's digests.

        On a GPU an entry is in the bank as often as it is in `index`, unless there are digests, which may be large:
        finding distinct entries would synchronise with the device.
        """
        rows = self._rows_with(index)
        keeps = "digest" in rows.names
        if index.is_cuda and not keeps:
            needed, row = index.flatten(), torch.arange(index.numel(), device=index.device).view(index.shape)
        else:
            needed, row = index.unique(return_inverse=True)
        mean, log_var, *digest = rows.at(["mean", "log_var", *["digest"] * keeps], needed)
        return Gaussian(mean, log_var), row, digest[0] if digest else None

    def alike(self, code: Float[Tensor, "1 time Z"], k: int) -> Alike:
        """The last entry and, for each code, the k entries with the nearest codes, each once; by an index of codes.

        All entries if a search would find about as many. Of entries equally near, the index takes the later: the poses
        of the first views of a place are the least certain, and those of the last are still corrected.
        """
        index, end = self._now()
        asked = code.detach()[0]
        if index is None:
            return super().alike(code, k)
        number = torch.arange(end, device=asked.device)
        if (k := min(k, end)) * len(asked) < end:
            found, end = index.look_alike(asked, k, end)
            number = torch.cat([found.flatten(), number[-1:]]).unique()
        names = [name for name in ("place", "mean", "log_var", "variance", "slips") if name in index.rows.names]
        of = dict(zip(names, index.rows.at(names, number[None]), strict=True))
        code_of = Gaussian(of["mean"], of["log_var"])
        return Alike(number, end, of["place"], code_of, of.get("variance"), of.get("slips"))

    def _now(self) -> tuple[TreeIndex | GridIndex | None, int]:
        """The index and the number of entries to read by it, as of one moment."""
        index = self._index
        if index is None:
            return None, 0
        end = len(index.rows)
        if index.rows.waiting:
            with self._writing:
                index.rows.send()
        return index, end

    def _rows_with(self, which: Int[Tensor, "1 *which"]) -> Rows:
        """The rows as of now; refuses entries `which` that they do not have."""
        index, end = self._now()
        if index is None:
            raise InputError("this memory is empty; write to it before it is read")
        require_index(which, 1, end, index.rows.device)
        return index.rows

    def _columns(self, *names: str) -> list[Tensor | None]:
        """These columns as of one moment; None for those that do not exist."""
        index, end = self._now()
        there = () if index is None else index.rows.names
        return [None if index is None or name not in there else index.rows.span(name, 0, end)[None] for name in names]

    def _begin(self, columns: dict[str, Tensor]) -> TreeIndex | GridIndex:
        """An index for entries like the first ones."""
        kind = self._kind or ("grid" if columns["place"].is_cuda else "tree")
        if kind == "tree" and columns["place"].is_cuda:
            raise InputError("index is tree, but the entries are on a GPU; use grid, or entries on a CPU")
        return (TreeIndex if kind == "tree" else GridIndex)(Rows(columns), self._buffer, self._ratio)

    def _for_query(self, sizes: tuple[int, ...] | None, k: int) -> tuple[TreeIndex | GridIndex, int]:
        """`_now`; refuses k if there are fewer entries, and places whose `sizes` do not fit."""
        index, held = self._now()
        if index is None or not is_whole(k) or not 0 < k <= held:
            has = f"give 1 to {held}" if held else "write to it first"
            raise InputError(f"asked for {shown(k)} neighbours of a memory that holds {held}; {has}")
        places = index.rows.sizes[0]
        if sizes not in (None, (places,)):
            raise InputError(
                f"the place asked for is of shape {sizes}; the places of this memory have {places} numbers"
            )
        return index, held


def _plain(vector: Vector) -> Sequence[float]:
    """The vector as Python numbers, which are faster one by one than those of NumPy."""
    return vector.tolist() if isinstance(vector, np.ndarray) else vector
