"""Find the motion before refining it: a cross-entropy search over any vector of a motion's parameters.

Gradients of the bound see a wrong motion only locally. A search does not mind: it asks of many candidates at
once how well nearest reads at *their* poses explain the next codes, and keeps asking around the best ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call, vmap

from gtmsm.config import config, require
from gtmsm.data.clip import Clip
from gtmsm.model.gtmsm import WorldModel
from gtmsm.tensors import Gaussian

Source: TypeAlias = Callable[[int, int, torch.Generator], Clip]
"""Fresh clips: (how many, how many steps each, randomness)."""


@config
class ProspectConfig:
    """The search for a motion."""

    candidates: int = 1_024
    """Vectors tried per round."""
    rounds: int = 24
    """Rounds per restart; each draws around the elite of the one before."""
    restarts: int = 3
    """Independent searches; the best find wins."""
    elite: float = 1 / 32
    """Share of the candidates kept per round (at least 16 of them)."""
    length: float = 1.4
    """Length that every vector is scaled to, since the scale of a pose is free; 0 leaves it alone."""
    clips: int = 48
    """Fresh clips per round."""
    tau: int = 32
    """Steps of those to memorise."""
    horizon: int = 16
    """Steps to predict."""
    neighbours: int = 5
    """K while searching."""
    delta: float = 1e-3
    """delta while searching."""

    def __post_init__(self) -> None:
        """Refuse a search that cannot run."""
        require(self.candidates >= 32, f"candidates is {self.candidates}; a search needs at least 32")
        require(self.rounds >= 1 and self.restarts >= 1, "a search needs at least 1 round and 1 restart")
        require(0 < self.elite <= 1, f"elite is {self.elite}; give the share to keep, above 0 and up to 1")
        require(self.length >= 0, f"length is {self.length}; give a positive one, or 0 to leave it alone")
        require(self.clips >= 1 and self.horizon >= 1, "a search needs at least 1 clip and 1 step to predict")
        require(self.delta > 0, f"delta is {self.delta}; it must be above 0")
        require(0 < self.neighbours <= self.tau, f"neighbours is {self.neighbours}; give 1 to tau = {self.tau} of them")


@dataclass(frozen=True)
class Find:
    """The best vector of a search."""

    vector: Float[Tensor, "size"]
    score: float


def cross_entropy_search(
    score: Callable[[Float[Tensor, "n size"]], Float[Tensor, "n"]],
    size: int,
    settings: ProspectConfig,
    generator: torch.Generator,
) -> Find:
    """The vector with the highest score, by sampling, keeping the elite, and sampling around it."""
    finds = [_search_once(score, size, settings, generator) for _ in range(settings.restarts)]
    return max(finds, key=lambda find: find.score)


def _search_once(
    score: Callable[[Tensor], Tensor], size: int, settings: ProspectConfig, generator: torch.Generator
) -> Find:
    """One restart."""
    device = generator.device
    centre, spread = torch.zeros(size, device=device), torch.ones(size, device=device)
    keep = max(16, int(settings.candidates * settings.elite))
    for _ in range(settings.rounds):
        drawn = torch.randn(settings.candidates, size, device=device, generator=generator)
        vectors = centre + spread * drawn
        if settings.length:
            vectors = settings.length * vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-12)
        scores = score(vectors).nan_to_num(-torch.inf)
        best = scores.topk(keep).indices
        elite = vectors[best]
        # A pose space and its mirror image explain the same; align signs or their average is nothing.
        elite = elite * torch.where((elite * elite[:1]).sum(1, keepdim=True) < 0, -1.0, 1.0)
        centre, spread = elite.mean(0), elite.std(0) + 0.02
    return Find(vectors[best[0]], float(scores[best[0]]))


def retrieval_score(
    places: Float[Tensor, "n batch time P"], code: Gaussian, tau: int, neighbours: int, delta: float
) -> Float[Tensor, "n"]:
    """How well the codes nearest in each candidate's places explain the codes seen next.

    A pair of codes counts for log N(mu_t; z_k) - log N(mu_t; z_t), at worst -30: how far off a retrieved code is
    stops mattering once it is wrong, so that the score counts right retrievals.
    """
    past, future = code[:, None, :tau], code[:, tau:, None]
    match = (past.log_prob(future.mean) - future.log_prob(future.mean)).clamp_min(-30.0)
    keys, queries = places[:, :, :tau], places[:, :, tau:]
    distance2 = (queries[:, :, :, None] - keys[:, :, None]).square().sum(-1)
    near, index = distance2.topk(neighbours, dim=-1, largest=False)
    found = match.expand(len(places), -1, -1, -1).gather(-1, index)
    log_weight = torch.log_softmax(-(near + delta).log(), dim=-1)
    return torch.logsumexp(log_weight + found, dim=-1).mean((1, 2))


@torch.no_grad()
def prospect(
    model: WorldModel, source: Source, settings: ProspectConfig, generator: torch.Generator, chunk: int = 256
) -> Find:
    """Search for the parameters that the model's motion names, and put the best into it."""
    scout, names = model.motion.scout()
    shapes = {name: scout.get_parameter(name).shape for name in names}
    sizes = [shape.numel() for shape in shapes.values()]

    def as_parameters(vector: Tensor) -> dict[str, Tensor]:
        parts = vector.split(sizes)
        return {name: part.view(shapes[name]) for name, part in zip(names, parts, strict=True)}

    def score(vectors: Tensor) -> Tensor:
        clip = source(settings.clips, settings.tau + settings.horizon, generator)
        code = model.vae.encode(clip.x)
        start = scout.start(len(clip.a))
        walk = vmap(lambda vector: functional_call(scout, as_parameters(vector), (start, clip.a)))
        return torch.cat(
            [
                retrieval_score(walk(some), code, settings.tau, settings.neighbours, settings.delta)
                for some in vectors.split(chunk)
            ]
        )

    find = cross_entropy_search(score, sum(sizes), settings, generator)
    for name, value in as_parameters(find.vector).items():
        model.motion.get_parameter(name).copy_(value)
    return find
