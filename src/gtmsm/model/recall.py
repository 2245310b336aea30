"""p(z_t | s_t, m): what memory says is to be seen at a pose."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.config import config, require
from gtmsm.model.memory import Distance, Memory, Neighbours, nearest
from gtmsm.tensors import Belief, Gaussian


@config
class RecallConfig:
    """How memory is read."""

    neighbours: int = 5
    """K, the entries retrieved per query (App. A.1); 0 reads all of memory."""
    delta: float = 1e-4
    """Added to squared distances before they are inverted into weights (App. A.1)."""
    distance: Distance = "euclidean"
    """Between means (App. A.1), or the KL divergence between the stored Gaussians, which it names as well."""

    def __post_init__(self) -> None:
        """Refuse what cannot be read with."""
        require(self.neighbours >= 0, f"neighbours is {self.neighbours}; give K > 0, or 0 for all of memory")
        require(self.delta > 0, f"delta is {self.delta}; an exact revisit would divide by it: it must be above 0")


@dataclass(frozen=True)
class Mixture:
    """sum_k w_k N(z | z_k), w_k proportional to 1 / (d_k^2 + delta): the prior of App. A.1."""

    log_weight: Float[Tensor, "batch time K"]
    component: Gaussian
    """`batch time K Z`."""
    neighbours: Neighbours

    def log_prob(self, z: Float[Tensor, "batch time Z"]) -> Float[Tensor, "batch time"]:
        """log sum_k w_k N(z | z_k)."""
        return torch.logsumexp(self.log_weight + self.component.log_prob(z[:, :, None]), dim=-1)

    @property
    def heaviest(self) -> Int[Tensor, "batch time"]:
        """The memory entry with the largest weight."""
        return _pick(self.neighbours.index, self.log_weight.argmax(-1))

    def peak(self) -> Float[Tensor, "batch time Z"]:
        """The mean of the heaviest component: a point estimate that never blends two places."""
        return _pick(self.component.mean, self.log_weight.argmax(-1))

    def sample(self, generator: torch.Generator) -> Float[Tensor, "batch time Z"]:
        """A component by its weight (Gumbel's trick), then a code from it."""
        uniform = torch.rand(
            self.log_weight.shape, dtype=self.log_weight.dtype, device=self.log_weight.device, generator=generator
        )
        chosen = (self.log_weight - (-uniform.clamp_min(1e-20).log()).log()).argmax(-1)
        return Gaussian(_pick(self.component.mean, chosen), _pick(self.component.log_var, chosen)).sample(generator)


def _pick(values: Tensor, which: Int[Tensor, "batch time"]) -> Tensor:
    """values[i, t, which[i, t]]."""
    index = which[:, :, None].view(*which.shape, *[1] * (values.dim() - 2))
    return values.gather(2, index.expand(*which.shape, 1, *values.shape[3:])).squeeze(2)


def recall(memory: Memory, query: Belief, settings: RecallConfig) -> Mixture:
    """Retrieve the K nearest entries, or all where memory holds fewer, and mix their codes."""
    k = min(settings.neighbours or len(memory), len(memory))
    neighbours = nearest(memory.place, query, k, settings.distance)
    return mix(neighbours, memory.code_at(neighbours.index), settings.delta)


def mix(neighbours: Neighbours, component: Gaussian, delta: float) -> Mixture:
    """Codes of the neighbours, weighted by how near they are."""
    log_weight = torch.log_softmax(-(neighbours.distance2 + delta).log(), dim=-1)
    return Mixture(log_weight, component, neighbours)
