"""The differentiable neural dictionary: where -> what, as sufficient statistics (section 3.3)."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.errors import InputError
from gtmsm.kernels.search.nearest import nearest_k
from gtmsm.kernels.search.separations import separations
from gtmsm.tensors import Belief, Gaussian, gather

Distance: TypeAlias = Literal["euclidean", "kl"]


@dataclass(frozen=True)
class Neighbours:
    """The K entries nearest to each query (nearest first, unless K is all of them)."""

    index: Int[Tensor, "batch time K"]
    """Which entries of the memory."""
    distance2: Float[Tensor, "batch time K"]
    """Squared distance, with gradients (KL divergence where that is the distance: it, too, is quadratic)."""


@dataclass(frozen=True)
class Memory:
    """A value, not a store: writing makes a new one."""

    place: Belief
    """Keys: mean `batch n P`, covariance `batch n P P`."""
    code: Gaussian
    """Values: mean and log-variance `batch n Z`."""
    digest: Float[Tensor, "batch n tokens width"] | None = None
    """What the prior made of each entry when it was written, where it makes anything (`Prior.digest`)."""
    variance: Float[Tensor, "batch n G"] | None = None
    """How sure the pose of each entry is, position and heading apart, where landmarks tell."""

    def __len__(self) -> int:
        """How many entries each memory of the batch holds."""
        return self.code.mean.shape[1]

    @property
    def batch(self) -> int:
        """How many memories these are."""
        return len(self.code.mean)

    def __getitem__(self, which: slice) -> "Memory":
        """Some of the memories: `memory[:1]` is the first of them."""
        return Memory(
            self.place[which],
            self.code[which],
            None if self.digest is None else self.digest[which],
            None if self.variance is None else self.variance[which],
        )

    def write(self, later: "Memory") -> "Memory":
        """A memory that also holds the entries of `later`, after its own."""
        covariances = [self.place.covariance, later.place.covariance]
        known = [c for c in covariances if c is not None]
        return Memory(
            Belief(
                torch.cat([self.place.mean, later.place.mean], 1),
                torch.cat(known, 1) if len(known) == 2 else None,
            ),
            self.code.then(later.code),
            None if self.digest is None or later.digest is None else torch.cat([self.digest, later.digest], 1),
            None if self.variance is None or later.variance is None else torch.cat([self.variance, later.variance], 1),
        )

    def nearest(self, query: Belief, k: int, distance: Distance = "euclidean") -> Neighbours:
        """The k entries nearest to each query."""
        return nearest(self.place, query, k, distance)

    def place_at(self, index: Int[Tensor, "batch *which"]) -> Float[Tensor, "batch *which P"]:
        """Where the entries `index` are."""
        return gather(self.place.mean, index)

    def code_at(self, index: Int[Tensor, "batch *which"]) -> Gaussian:
        """Values of the entries `index`."""
        return self.code.at(index)

    def retrieve(
        self, index: Int[Tensor, "batch time K"]
    ) -> tuple[Gaussian, Int[Tensor, "batch time K"], Float[Tensor, "rows tokens width"] | None]:
        """Codes in one flat bank, which rows of it the entries `index` are, and what the prior made of each row."""
        row = index + len(self) * torch.arange(len(index), device=index.device).view(-1, 1, 1)
        return self.code.flatten(), row, None if self.digest is None else self.digest.flatten(0, 1)


def nearest(
    place: Belief, query: Belief, k: int, distance: Distance = "euclidean", among: int | None = None
) -> Neighbours:
    """The k of `place`, or of the first `among` of them, nearest to each query: search without gradients, then measure.

    The expansion |q|^2 - 2 q.k + |k|^2 inside a fast distance matrix returns 1e-4 for identical
    points, as large as delta, and loses neighbours far from the origin: it is never used.
    """
    n = place.mean.shape[1] if among is None else among
    if not 0 < k <= n:
        raise InputError(f"asked for {k} neighbours of a memory that holds {n}; give 1 to {n}")
    if distance == "kl":
        with torch.no_grad():
            index = _nearest_k(_kl_divergence(query[:, :, None], place[:, None, :n]), k)
        assert place.covariance is not None
        found = Belief(gather(place.mean, index), gather(place.covariance, index))
        return Neighbours(index, _kl_divergence(query[:, :, None], found))
    with torch.no_grad():
        if k == n:  # where all are wanted there is nothing to search for
            index = torch.arange(n, device=place.mean.device).expand(*query.mean.shape[:2], n)
        else:
            index = nearest_k(place.mean[:, :n], query.mean, k)
    return measure(place.mean, query.mean, index)


def measure(
    place: Float[Tensor, "batch n P"], query: Float[Tensor, "batch time P"], index: Int[Tensor, "batch time K"]
) -> Neighbours:
    """The entries `index`, and how far they are from each query."""
    return Neighbours(index, separations(place, query, index))


def _nearest_k(distance: Float[Tensor, "batch time n"], k: int) -> Int[Tensor, "batch time K"]:
    """Indices of the k smallest; where all are wanted there is nothing to select."""
    if k == distance.shape[-1]:
        return torch.arange(k, device=distance.device).expand_as(distance)
    return distance.topk(k, dim=-1, largest=False).indices


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
