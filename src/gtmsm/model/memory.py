"""The differentiable neural dictionary (section 3.3): keys are places, values sufficient statistics of codes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import mse_loss

from gtmsm.config import is_whole, require, require_choice
from gtmsm.errors import InputError, shown
from gtmsm.kernels.search.nearest import nearest_k
from gtmsm.tensors import FLOATS, Belief, Codes, EntryIndex, Gaussian, PerEntry, are_finite, gather, have_values

Distance: TypeAlias = Literal["euclidean", "kl"]

FEW = 64
"""Number of indices up to which checking them one by one is faster."""

Bank: TypeAlias = tuple[Gaussian, EntryIndex, Float[Tensor, "rows tokens width"] | None]
"""A flat bank of codes, the requested rows of it, and the prior's digest of each row."""


@dataclass(frozen=True)
class Neighbours:
    """The K entries nearest to each query (nearest first, unless K is all of them)."""

    index: EntryIndex
    """Indices of the entries in the memory."""
    distance2: PerEntry
    """Squared distances, with gradients; for the KL distance, divergences."""


@dataclass(frozen=True)
class Alike:
    """Entries of a memory whose codes are similar to given ones, in the order of the memory."""

    number: Int[Tensor, "n"]
    """Numbers of the entries in the memory."""
    held: int
    """Number of all entries of the memory."""
    place: Float[Tensor, "batch n P"]
    code: Gaussian
    variance: Float[Tensor, "batch n G"] | None
    slips: Float[Tensor, "batch n H"] | None = None


@dataclass(frozen=True)
class Memory:
    """Entries of a batch of memories, as a value: writing returns a new memory."""

    place: Belief
    """Keys: mean `batch n P`, covariance `batch n P P`."""
    code: Gaussian
    """Values: mean and log-variance `batch n Z`."""
    digest: Float[Tensor, "batch n tokens width"] | None = None
    """The prior's digest of each entry, computed when it was written (`Prior.digest`)."""
    variance: Float[Tensor, "batch n G"] | None = None
    """Variance of the pose of each entry, of position and heading separately; landmarks need it."""
    weights: str | None = None
    """Fingerprint of the weights that made it; None if unknown."""
    slips: Float[Tensor, "batch n H"] | None = None
    """Statistics of slipped steps after each entry (`Slips`), if landmarks learn them."""

    def __len__(self) -> int:
        """Number of entries in each memory of the batch."""
        return self.code.mean.shape[1]

    @property
    def batch(self) -> int:
        """Number of memories."""
        return len(self.code.mean)

    @property
    def to_check(self) -> "Memory":
        """The entries to check before use: all. (A `LongMemory` checks entries when they are written.)"""
        return self

    @property
    def columns(self) -> dict[str, Tensor]:
        """The parts of the memory by name, without those that are None."""
        columns = {
            "place": self.place.mean, "mean": self.code.mean, "log_var": self.code.log_var,
            "covariance": self.place.covariance, "digest": self.digest, "variance": self.variance,
            "slips": self.slips,
        }  # fmt: skip
        return {name: column for name, column in columns.items() if column is not None}

    @staticmethod
    def of_columns(columns: Mapping[str, Tensor], weights: str | None) -> "Memory":
        """A memory with these `columns`."""
        place, code = Belief(columns["place"], columns.get("covariance")), Gaussian(columns["mean"], columns["log_var"])
        return Memory(place, code, columns.get("digest"), columns.get("variance"), weights, columns.get("slips"))

    @cached_property
    def is_finite(self) -> bool:
        """Whether it holds no NaN and no infinity; computed once, since a memory is a value."""
        return are_finite(*self.columns.values())

    def __getitem__(self, which: slice) -> "Memory":
        """Some memories of the batch: `memory[:1]` is the first."""
        parts = (self.digest, self.variance, self.slips)
        digest, variance, slips = (None if x is None else x[which] for x in parts)
        return Memory(self.place[which], self.code[which], digest, variance, self.weights, slips)

    def detached(self) -> "Memory":
        """The same without gradients."""
        return Memory.of_columns({name: x.detach() for name, x in self.columns.items()}, self.weights)

    def snapshot(self) -> "Memory":
        """This memory as it is now, unaffected by later writes: for a value, itself."""
        return self

    def write(self, later: "Memory") -> "Memory":
        """A memory of these entries followed by those of `later`; parts that either lacks are dropped."""
        mine = self.columns
        theirs = require_entries(later, mine)
        weights = require_weights_of(later, self.weights)
        require(later.is_finite, "what is written holds NaN or infinity; give finite numbers")
        both = {name: torch.cat([mine[name], theirs[name]], 1) for name in mine.keys() & theirs.keys()}
        return Memory.of_columns(both, weights)

    def nearest(self, query: Belief, k: int, distance: Distance = "euclidean") -> Neighbours:
        """The k entries nearest to each query."""
        require_query(query, self.place.mean)
        require_choice("distance", distance, get_args(Distance))
        # Reading values of a GPU would synchronise with it.
        require(query.mean.is_cuda or are_finite(query.mean), "a query holds NaN or infinity; give finite numbers")
        return nearest(self.place, query, k, distance)

    def place_at(self, index: Int[Tensor, "batch *which"]) -> Float[Tensor, "batch *which P"]:
        """Places of the entries `index`."""
        self._require(index)
        return gather(self.place.mean, index)

    def code_at(self, index: Int[Tensor, "batch *which"]) -> Gaussian:
        """Codes of the entries `index`."""
        self._require(index)
        return self.code.at(index)

    def at(self, number: Int[Tensor, "n"]) -> "Memory":
        """The entries with these numbers, as a new memory."""
        self._require(number.expand(self.batch, -1))
        return Memory.of_columns({name: column[:, number] for name, column in self.columns.items()}, self.weights)

    def alike(self, code: Codes, k: int) -> Alike:
        """Entries that include the last one and, for each code, the k entries with the nearest codes: here, all."""
        number = torch.arange(len(self), device=self.code.mean.device)
        return Alike(number, len(self), self.place.mean, self.code, self.variance, self.slips)

    def _require(self, index: object) -> None:
        require_index(index, self.batch, len(self), self.code.mean.device)

    def retrieve(self, index: EntryIndex) -> Bank:
        """A flat bank of codes, the rows of the entries `index` in it, and the prior's digest of each row."""
        self._require(index)
        row = index + len(self) * torch.arange(len(index), device=index.device).view(-1, 1, 1)
        return self.code.flatten(), row, None if self.digest is None else self.digest.flatten(0, 1)


def require_entries(later: Any, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The columns of a memory that is to be appended to columns `like`; refuses those that do not fit."""
    whole = isinstance(later, Memory) and isinstance(later.place, Belief) and isinstance(later.code, Gaussian)
    require(whole, f"got a {type(later).__name__} to write; give a Memory, as memorise returns")
    columns = later.columns
    lead = getattr(columns["place"], "shape", ())[1:2]
    for name, column in columns.items():
        own = like.get(name, columns["mean"] if name == "log_var" else column)
        fits = isinstance(column, Tensor) and column.dtype in FLOATS and column.layout == torch.strided
        fits = fits and column.shape == (*own.shape[:1], *lead, *own.shape[2:]) and column.device == own.device
        if not fits or column.dim() < 3:
            raise InputError(f"{name} of what is written is {shown(column)}; expected floats like {shown(own)}")
    return columns


def require_weights_of(memory: Memory, weights: str | None) -> str | None:
    """Refuse a memory made by weights other than these, if both are known; return the fingerprint that is known."""
    if None not in (memory.weights, weights) and memory.weights != weights:
        raise InputError(
            f"this memory was made by the weights {memory.weights}, not by {weights}; use the model that made it, or "
            "memorise the walk again"
        )
    return memory.weights or weights


def require_query(query: Any, place: Float[Tensor, "batch n P"]) -> None:
    """Refuse a query that does not fit the places of a memory."""
    mean: Any = query.mean if isinstance(query, Belief) else None
    fits = isinstance(mean, Tensor) and mean.is_floating_point() and mean.dim() == 3 and mean.device == place.device
    if not fits or mean.shape[::2] != place.shape[::2]:
        sizes = f"({len(place)}, time, {place.shape[-1]})"
        given = shown(query if mean is None else mean)
        raise InputError(f"the query is {given}; give a Belief whose mean is floats of shape {sizes} on {place.device}")


def require_index(index: Any, batch: int, held: int, device: torch.device) -> None:
    """Refuse indices out of range; those on a GPU are not read, to avoid synchronisation: its kernels assert them."""
    fits = isinstance(index, Tensor) and index.dtype in (torch.int32, torch.int64) and index.dim() > 0
    if not fits or len(index) != batch or index.device != device:
        raise InputError(f"asked for entries by {shown(index)}; give int64 of shape ({batch}, ...) on {device}")
    if device.type == "cpu" and index.numel() and have_values(index):
        ends = index.flatten().tolist() if index.numel() <= FEW else [int(end) for end in index.aminmax()]
        for end in (min(ends), max(ends)):
            if not 0 <= end < held:
                raise InputError(f"asked for entry {end} of a memory that holds {held}; give 0 to {held - 1}")


def nearest(place: Belief, query: Belief, k: int, distance: Distance = "euclidean") -> Neighbours:
    """The k of `place` nearest to each query: a search without gradients, then distances with gradients.

    |q|^2 - 2 q.k + |k|^2, as in a fast distance matrix, is never used: it gives 1e-4 for identical points, as large as
    delta, and wrong neighbours far from the origin.
    """
    n = place.mean.shape[1]
    if not (is_whole(k) and 0 < k <= n):
        raise InputError(f"asked for {shown(k)} neighbours of a memory that holds {n}; give 1 to {n}")
    if k == n:
        index = torch.arange(n, device=place.mean.device).expand(*query.mean.shape[:2], n)
    elif distance == "kl":
        with torch.no_grad():
            index = _kl_divergence(query[:, :, None], place[:, None]).topk(k, dim=-1, largest=False).indices
    else:
        index = nearest_k(place.mean, query.mean, k)
    if distance == "euclidean":
        return measure(place.mean, query.mean, index)
    covariance = None if place.covariance is None else gather(place.covariance, index)
    return Neighbours(index, _kl_divergence(query[:, :, None], Belief(gather(place.mean, index), covariance)))


def measure(place: Float[Tensor, "batch n P"], query: Float[Tensor, "batch time P"], index: EntryIndex) -> Neighbours:
    """The entries `index` with their squared distances from each query.

    Axes are gathered one by one, which on a CPU is several times as fast as gathering rows of two numbers.
    """
    (batch, time, k), axes = index.shape, place.shape[-1]
    entry = index.reshape(1, batch, time * k).expand(axes, -1, -1)
    found = place.permute(2, 0, 1).gather(2, entry).view(axes, batch, time, k)
    asked = query.permute(2, 0, 1)[..., None].expand_as(found)
    kind = torch.promote_types(place.dtype, query.dtype)  # before PyTorch 2.12 mse_loss has no gradients of mixed types
    return Neighbours(index, mse_loss(found.to(kind), asked.to(kind), reduction="none").sum(0))


def _kl_divergence(query: Belief, key: Belief) -> Float[Tensor, "*pairs"]:
    """KL(query || key) between Gaussians, the alternative that App. A.1 names; broadcasts."""
    if query.covariance is None or key.covariance is None:
        raise InputError("the KL distance needs covariances; memorise and query with beliefs that have them")
    precision = torch.linalg.inv_ex(key.covariance).inverse  # unlike inv, it does not synchronise
    offset = key.mean - query.mean
    quadratic = torch.einsum("...i,...ij,...j->...", offset, precision, offset)
    trace = (precision * query.covariance).sum((-2, -1))
    volume = torch.logdet(key.covariance) - torch.logdet(query.covariance)
    # Rounding must not make a divergence negative: its logarithm is taken next.
    return (0.5 * (trace + quadratic + volume - offset.shape[-1])).clamp_min(0)
