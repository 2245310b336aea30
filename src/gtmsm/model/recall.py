"""p(z_t | s_t, m): the code that memory predicts at a pose."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gtmsm.config import config, require
from gtmsm.kernels.mixture import mixture_divergence, mixture_log_prob
from gtmsm.model.memory import Distance, Neighbours
from gtmsm.tensors import Codes, EntryIndex, Gaussian, PerEntry, PerStep


@config
class RecallConfig:
    """How memory is read."""

    prior: Literal["mixture", "query", "rays"] = "mixture"
    """mixture: the retrieved codes, weighted by nearness (App. A.1); query: a network predicts one view from them (GQN,
    App. A.2); rays: the rays of the queried view attend to those of the retrieved views (not in the paper)."""
    neighbours: int = 5
    """K, the entries retrieved per query (App. A.1); 0 reads all of memory."""
    delta: float = 1e-4
    """Added to squared distances before they are inverted into weights (App. A.1)."""
    distance: Distance = "euclidean"
    """Between means (App. A.1), or the KL divergence between the stored Gaussians, which App. A.1 names as well."""
    choice: Literal["nearest", "visible"] = "nearest"
    """Which entries to retrieve: the nearest, or those that together see most of the queried view (for agents with a
    heading whose poses are in units of a wall's height)."""
    map_size: int = 0
    """Dimensions of a learned linear map of places in which distances are measured (App. A.2 tried 5); 0: none."""
    latest: int = 0
    """Number of latest entries that are read, as if memory dropped its oldest entry when full; 0: all."""
    holds: Literal["statistics", "samples"] = "statistics"
    """What memory holds of a frame: mean and variance of q(z|x), or one sample of it (section 3 names both). Samples
    share one learned variance."""
    poses: Literal["relative", "absolute"] = "relative"
    """Input of the query network: poses of entries relative to the query, or absolute poses of entries and query."""
    width: int = 512
    """Hidden units of the query network; size of a token of the rays."""
    layers: int = 6
    """Layers of attention of prior rays."""
    field_of_view: float = 80.0
    """Horizontal field of view of a frame in degrees, for prior rays and for choice visible."""

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        require(self.neighbours >= 0, f"neighbours is {self.neighbours}; give K > 0, or 0 for all of memory")
        require(self.delta > 0, f"delta is {self.delta}; an exact revisit would divide by it: it must be above 0")
        require(self.map_size >= 0, f"map_size is {self.map_size}; give the dimensions of the map, or 0 for none")
        require(self.latest >= 0, f"latest is {self.latest}; give a number of entries, or 0 for all")
        require(
            self.latest == 0 or self.neighbours <= self.latest,
            f"neighbours is {self.neighbours} but latest is {self.latest}; read at most as many as are kept",
        )
        require(
            self.latest == 0 or self.distance == "euclidean",
            f"latest is {self.latest}, but the KL distance is looked for in all of memory; use distance euclidean",
        )
        require(
            self.poses == "relative" or self.prior == "query",
            f"poses is {self.poses}, which only the query network can be told; use it with prior query",
        )
        require(self.width >= 8, f"width is {self.width}; give at least 8")
        require(1 <= self.layers <= 100, f"layers is {self.layers}; give 1 to 100")
        require(0 < self.field_of_view < 180, f"field_of_view is {self.field_of_view}; give degrees from 0 to 180")
        require(
            self.distance == "euclidean" or (self.map_size == 0 and self.choice == "nearest"),
            "the KL distance is between poses themselves: use it without map_size and with choice nearest",
        )
        require(
            self.map_size == 0 or self.prior != "rays",
            f"map_size is {self.map_size}, but prior rays weighs nothing by distance and cannot teach it; give 0",
        )
        require(
            self.prior != "rays" or self.width % 64 == 0, f"width is {self.width}; tokens of rays need a multiple of 64"
        )


@dataclass(frozen=True)
class Retrieved:
    """What queries retrieved from memory."""

    neighbours: Neighbours
    bank: Gaussian
    """Codes of the entries of all memories, `rows Z`, or only of those that were retrieved."""
    row: EntryIndex
    """The rows of `bank` that were retrieved."""
    find_relative: Callable[[], Float[Tensor, "batch time K P"]]
    """Computes `relative`, which not all priors use."""
    delta: float
    digest: Float[Tensor, "rows tokens width"] | None = None
    """The prior's digest of each row of the bank, computed when it was written."""
    find_absolute: Callable[[], tuple[Float[Tensor, "batch time K P"], Float[Tensor, "batch time P"]]] | None = None
    """Computes absolute places of the entries and of the query, for a prior that uses these instead."""

    @cached_property
    def relative(self) -> Float[Tensor, "batch time K P"]:
        """The place of each entry relative to the query (`Motion.relative`)."""
        return self.find_relative()

    @cached_property
    def code(self) -> Gaussian:
        """The codes retrieved, `batch time K Z`."""
        return self.bank.take(self.row)

    @property
    def log_weight(self) -> PerEntry:
        """log w_k, with w_k proportional to 1 / (d_k^2 + delta)."""
        return torch.log_softmax(-(self.neighbours.distance2 + self.delta).log(), dim=-1)


@runtime_checkable
class Forecast(Protocol):
    """p(z_t | s_t, m) at every query."""

    @property
    def neighbours(self) -> Neighbours:
        """The memory entries that it was made from."""

    @property
    def heaviest(self) -> Int[Tensor, "batch time"]:
        """The memory entry that contributes most."""

    def peak(self) -> Codes:
        """A point estimate."""

    def sample(self, generator: torch.Generator) -> Codes:
        """A code drawn from it."""

    def divergence(self, code: Gaussian, z: Codes) -> PerStep:
        """KL[q(z|x) || p(z|s, m)], exactly or by the sample `z` of `code` = q(z|x)."""


class Prior(nn.Module, ABC):
    """A network or a rule that makes a forecast from retrieved entries."""

    digest_sizes: tuple[int, int] | None = None
    """Number of tokens of an entry's digest, and their width; None if the prior has no digest."""

    @property
    def matrices(self) -> list[nn.Parameter]:
        """Weights of the layers between the first and the last of a deep prior, which Muon can optimise."""
        return []

    @abstractmethod
    def forward(self, retrieved: Retrieved) -> Forecast:
        """p(z_t | s_t, m) at every query."""

    def digest(self, code: Gaussian) -> Float[Tensor, "n tokens width"] | None:
        """Features of entries that are computed once, when they are written, instead of at each read."""
        return None


@dataclass(frozen=True)
class Mixture:
    """sum_k w_k N(z | z_k), w_k proportional to 1 / (d_k^2 + delta): the prior of App. A.1."""

    retrieved: Retrieved

    @property
    def neighbours(self) -> Neighbours:
        """The memory entries that it is made from."""
        return self.retrieved.neighbours

    @property
    def component(self) -> Gaussian:
        """N(z | z_k), `batch time K Z`."""
        return self.retrieved.code

    @property
    def log_weight(self) -> PerEntry:
        """log w_k."""
        return self.retrieved.log_weight

    def log_prob(self, z: Codes) -> PerStep:
        """log sum_k w_k N(z | z_k)."""
        return mixture_log_prob(z.flatten(0, 1), *self._parts()).view(z.shape[:2])

    def divergence(self, code: Gaussian, z: Codes) -> PerStep:
        """Estimated by one sample: a mixture has no closed form."""
        mean, log_var, flat = (part.flatten(0, 1) for part in (code.mean, code.log_var, z))
        return mixture_divergence(mean, log_var, flat, *self._parts()).view(z.shape[:2])

    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
        """Means and log-variances of the bank, retrieved rows, squared distances, and delta."""
        bank, row, distance2 = self.retrieved.bank, self.retrieved.row, self.neighbours.distance2
        return bank.mean, bank.log_var, row.flatten(0, 1), distance2.flatten(0, 1), self.retrieved.delta

    @property
    def heaviest(self) -> Int[Tensor, "batch time"]:
        """The memory entry with the largest weight."""
        return _pick(self.neighbours.index, self.log_weight.argmax(-1))

    def peak(self) -> Codes:
        """The mean of the heaviest component: a point estimate that never blends two places."""
        return _pick(self.component.mean, self.log_weight.argmax(-1))

    def sample(self, generator: torch.Generator) -> Codes:
        """A component by its weight (Gumbel's trick), then a code from it."""
        log_weight = self.log_weight
        uniform = torch.rand(log_weight.shape, dtype=log_weight.dtype, device=log_weight.device, generator=generator)
        chosen = (log_weight - (-uniform.clamp_min(1e-20).log()).log()).argmax(-1)
        return Gaussian(_pick(self.component.mean, chosen), _pick(self.component.log_var, chosen)).sample(generator)


@dataclass(frozen=True)
class SingleView:
    """One Gaussian, predicted by a network from all retrieved entries: the prior of App. A.2."""

    code: Gaussian
    """`batch time Z`."""
    neighbours: Neighbours

    @property
    def heaviest(self) -> Int[Tensor, "batch time"]:
        """The nearest memory entry."""
        return _pick(self.neighbours.index, self.neighbours.distance2.argmin(-1))

    def peak(self) -> Codes:
        """The mean."""
        return self.code.mean

    def sample(self, generator: torch.Generator) -> Codes:
        """A code drawn from the Gaussian."""
        return self.code.sample(generator)

    def divergence(self, code: Gaussian, z: Codes) -> PerStep:
        """Exact: both are Gaussian."""
        return code.divergence(self.code)


def _pick(values: Tensor, which: Int[Tensor, "batch time"]) -> Tensor:
    """values[i, t, which[i, t]]."""
    index = which[:, :, None].view(*which.shape, *[1] * (values.dim() - 2))
    return values.gather(2, index.expand(*which.shape, 1, *values.shape[3:])).squeeze(2)


class MixturePrior(Prior):
    """The retrieved codes themselves, weighted by nearness; it has no parameters."""

    def forward(self, retrieved: Retrieved) -> Mixture:
        """Weights from distances."""
        return Mixture(retrieved)
