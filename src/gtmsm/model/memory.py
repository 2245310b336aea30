"""The differentiable neural dictionary: where -> what, as sufficient statistics (section 3.3)."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import mse_loss

from gtmsm.config import is_whole
from gtmsm.errors import InputError, shown
from gtmsm.kernels.search.nearest import nearest_k
from gtmsm.tensors import Belief, EntryIndex, Gaussian, PerEntry, are_finite, gather

Distance: TypeAlias = Literal["euclidean", "kl"]

Bank: TypeAlias = tuple[Gaussian, EntryIndex, Float[Tensor, "rows tokens width"] | None]
"""A flat bank of codes, the rows of it that were asked for, and the prior's digest of each row."""


@dataclass(frozen=True)
class Neighbours:
    """The K entries nearest to each query (nearest first, unless K is all of them)."""

    index: EntryIndex
    """Which entries of the memory."""
    distance2: PerEntry
    """Squared distances, with gradients; for the KL distance, divergences."""


@dataclass(frozen=True)
class Memory:
    """A value, not a store: writing makes a new one."""

    place: Belief
    """Keys: mean `batch n P`, covariance `batch n P P`."""
    code: Gaussian
    """Values: mean and log-variance `batch n Z`."""
    digest: Float[Tensor, "batch n tokens width"] | None = None
    """What the prior computed of each entry when it was written (`Prior.digest`)."""
    variance: Float[Tensor, "batch n G"] | None = None
    """Variance of the pose of each entry, of position and heading separately; landmarks need it."""

    def __len__(self) -> int:
        """Number of entries in each memory of the batch."""
        return self.code.mean.shape[1]

    @property
    def batch(self) -> int:
        """Number of memories."""
        return len(self.code.mean)

    @property
    def to_check(self) -> "Memory":
        """What of it is looked at before it is used: all. A `LongMemory` has looked at its entries when they came."""
        return self

    @cached_property
    def is_finite(self) -> bool:
        """Whether it holds no NaN and no infinity; looked at once, since a memory is a value."""
        return are_finite(
            self.place.mean, self.place.covariance, self.code.mean, self.code.log_var, self.digest, self.variance
        )

    def __getitem__(self, which: slice) -> "Memory":
        """Some of the memories: `memory[:1]` is the first of them."""
        digest, variance = (None if x is None else x[which] for x in (self.digest, self.variance))
        return Memory(self.place[which], self.code[which], digest, variance)

    def snapshot(self) -> "Memory":
        """This memory as it is now, whatever is written later: for a value, itself."""
        return self

    def write(self, later: "Memory") -> "Memory":
        """A memory of the entries of both, those of `later` last; parts that either lacks are left out."""
        if not isinstance(later, Memory):
            raise InputError(f"got a {type(later).__name__} to write; give a Memory, as memorise returns")
        mine, theirs = ((m.batch, m.place.mean.shape[-1], m.code.mean.shape[-1]) for m in (self, later))
        if mine != theirs:
            raise InputError(
                f"walks, place and code have sizes {mine} here and {theirs} in what is written; give equal"
            )

        def both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
            return None if one is None or other is None else torch.cat([one, other], 1)

        mean = torch.cat([self.place.mean, later.place.mean], 1)
        return Memory(
            Belief(mean, both(self.place.covariance, later.place.covariance)),
            self.code.then(later.code),
            both(self.digest, later.digest),
            both(self.variance, later.variance),
        )

    def nearest(self, query: Belief, k: int, distance: Distance = "euclidean") -> Neighbours:
        """The k entries nearest to each query."""
        return nearest(self.place, query, k, distance)

    def place_at(self, index: Int[Tensor, "batch *which"]) -> Float[Tensor, "batch *which P"]:
        """Places of the entries `index`."""
        return gather(self.place.mean, index)

    def code_at(self, index: Int[Tensor, "batch *which"]) -> Gaussian:
        """Codes of the entries `index`."""
        return self.code.at(index)

    def retrieve(self, index: EntryIndex) -> Bank:
        """A flat bank of codes, the rows of it that are the entries `index`, and the prior's digest of each row."""
        row = index + len(self) * torch.arange(len(index), device=index.device).view(-1, 1, 1)
        return self.code.flatten(), row, None if self.digest is None else self.digest.flatten(0, 1)


def nearest(place: Belief, query: Belief, k: int, distance: Distance = "euclidean") -> Neighbours:
    """The k of `place` nearest to each query: a search without gradients, then distances with them.

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

    Axes come first: gathered one by one, they are several times as fast on a CPU as rows of two numbers.
    """
    (batch, time, k), axes = index.shape, place.shape[-1]
    entry = index.reshape(1, batch, time * k).expand(axes, -1, -1)
    found = place.permute(2, 0, 1).gather(2, entry).view(axes, batch, time, k)
    asked = query.permute(2, 0, 1)[..., None].expand_as(found)
    return Neighbours(index, mse_loss(found, asked, reduction="none").sum(0))


def _kl_divergence(query: Belief, key: Belief) -> Float[Tensor, "*pairs"]:
    """KL(query || key) between Gaussians, the alternative that App. A.1 names; broadcasts."""
    if query.covariance is None or key.covariance is None:
        raise InputError("the KL distance needs covariances; memorise and query with beliefs that have them")
    precision = torch.linalg.inv_ex(key.covariance).inverse  # unlike inv, it never waits for the host
    offset = key.mean - query.mean
    quadratic = torch.einsum("...i,...ij,...j->...", offset, precision, offset)
    trace = (precision * query.covariance).sum((-2, -1))
    volume = torch.logdet(key.covariance) - torch.logdet(query.covariance)
    # Rounding must not make a divergence negative: its logarithm is taken next.
    return (0.5 * (trace + quadratic + volume - offset.shape[-1])).clamp_min(0)
