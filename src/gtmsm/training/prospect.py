"""Find the motion before refining it: a cross-entropy search over any vector of a motion's parameters.

The bound has local optima in the motion, and its gradient does not lead out of them. The search scores many candidates
at once, by how well the codes nearest at *their* poses explain the next codes, and draws again around the best ones.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.func import functional_call, vmap

from gtmsm.config import config, require
from gtmsm.data.clip import Source
from gtmsm.kernels.search.nearest import nearest_k
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.memory import measure
from gtmsm.model.motion.turning import Turning
from gtmsm.tensors import Gaussian
from gtmsm.training.loops import Loops, find_by_loops
from gtmsm.training.walking_loops import WalkingLoops, find_by_walking_loops


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
    """Fraction of the candidates kept per round (at least 16 of them)."""
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
    yardstick: Literal["variance", "spread"] = "variance"
    """What codes are compared by: each code's own variance, right where places are revisited exactly; or how far apart
    codes of a clip are, right where the next best view should count as well."""
    loops: int = 0
    """Steps of the clips in which loops are looked for, before anything is drawn: a view that comes back says that the
    moves between add up to nothing (`loops.py`; for agents with a heading `walking_loops.py`). 0: no loops."""
    loop_clips: int = 200
    """Clips in which they are looked for."""
    loop_updates: int = 2_000
    """Updates of the motion of an agent with a heading by what they say."""
    angles: int = 4_096
    """Values tried over a full turn where a motion's angles are scanned, and again around the best of them."""

    def __post_init__(self) -> None:
        """Refuse a search that cannot run."""
        require(self.candidates >= 32, f"candidates is {self.candidates}; a search needs at least 32")
        require(self.rounds >= 1 and self.restarts >= 1, "a search needs at least 1 round and 1 restart")
        require(0 < self.elite <= 1, f"elite is {self.elite}; give the share to keep, above 0 and up to 1")
        require(self.length >= 0, f"length is {self.length}; give a positive one, or 0 to leave it alone")
        require(self.clips >= 1 and self.horizon >= 1, "a search needs at least 1 clip and 1 step to predict")
        require(self.delta > 0, f"delta is {self.delta}; it must be above 0")
        require(self.loop_clips >= 16, f"loop_clips is {self.loop_clips}; give at least 16 to look for loops in")
        require(self.angles >= 16, f"angles is {self.angles}; a scan needs at least 16 values")
        require(0 < self.neighbours <= self.tau, f"neighbours is {self.neighbours}; give 1 to tau = {self.tau} of them")


@dataclass(frozen=True)
class Find:
    """The best vector of a search."""

    vector: Float[Tensor, "size"]
    score: float
    verdict: str = ""
    """How reliable it is, in words."""


Score: TypeAlias = Callable[[Float[Tensor, "n size"]], Float[Tensor, "n"]]
"""Scores of many vectors; higher is better."""


def cross_entropy_search(
    score: Score,
    size: int,
    settings: ProspectConfig,
    generator: torch.Generator,
    spread: Sequence[float] | None = None,
) -> Find:
    """The vector with the highest score, by sampling, keeping the elite, and sampling around it.

    `spread` says how far from 0 its elements may be; without it, scale and sign of the vector are taken to be free.
    """
    finds = [_search_once(score, size, settings, generator, spread) for _ in range(settings.restarts)]
    if len(finds) == 1:
        return finds[0]
    vectors = torch.stack([find.vector for find in finds])
    scores = score(vectors).nan_to_num(-torch.inf)  # all on the same clips: the luckiest draw must not win
    return Find(vectors[scores.argmax()], float(scores.max()))


def _search_once(
    score: Score,
    size: int,
    settings: ProspectConfig,
    generator: torch.Generator,
    scale: Sequence[float] | None,
) -> Find:
    """One restart."""
    device = generator.device
    first = torch.ones(size, device=device) if scale is None else torch.tensor(scale, device=device)
    centre, spread = torch.zeros(size, device=device), first
    keep = max(16, int(settings.candidates * settings.elite))
    for _ in range(settings.rounds):
        drawn = torch.randn(settings.candidates, size, device=device, generator=generator)
        vectors = centre + spread * drawn
        if settings.length and scale is None:
            vectors = settings.length * vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-12)
        scores = score(vectors).nan_to_num(-torch.inf)
        best = scores.topk(keep).indices
        elite = vectors[best]
        if scale is None:
            # A pose space and its mirror image explain the same; align signs or their average is nothing.
            elite = elite * torch.where((elite * elite[:1]).sum(1, keepdim=True) < 0, -1.0, 1.0)
        centre, spread = elite.mean(0), elite.std(0) + 0.02 * first
    return Find(vectors[best[0]], float(scores[best[0]]))


def scan_angles(
    score: Score,
    used: Bool[Tensor, "size"],
    settings: ProspectConfig,
) -> Find:
    """The angles with the highest score: one by one, or as an opposite pair, over a full turn; then more finely.

    The score of a turn rate is that of a frequency: many narrow peaks, between which nothing points to the best.
    Pairs are tried as well, since a clip that turns both ways says nothing about one of its turns without the other.
    Angles that no action uses stay 0. A turn and its mirror image score the same as long as clips do not mix them, so
    ties go to turns that cancel: actions come in opposite pairs.
    """

    def best(vectors: Float[Tensor, "n size"]) -> Find:
        scores = score(vectors).nan_to_num(-torch.inf)
        top = (scores - 1e-3 * vectors.sum(1).abs()).argmax()
        return Find(vectors[top], float(scores[top]))

    each = torch.eye(len(used), device=used.device)[used]
    circle = torch.linspace(-math.pi, math.pi, settings.angles, device=used.device)[:, None]
    singly = Find(torch.zeros(len(used), device=used.device), -math.inf)
    for _ in range(2):
        for one in each:
            singly = best(singly.vector * (1 - one) + circle * one)
    pairs = [best(circle * (one - other)) for one, other in combinations(each, 2)]
    find = best(torch.stack([singly.vector, *(pair.vector for pair in pairs)]))  # on the same clips: a fair choice
    step = 2 * math.pi / settings.angles
    for span in (2 * step, step / 4, step / 16):
        for one in each:
            find = best(find.vector + torch.linspace(-span, span, 65, device=used.device)[:, None] * one)
    return find


def match_codes(
    code: Gaussian, tau: int, yardstick: Literal["variance", "spread"] = "variance"
) -> Float[Tensor, "batch future past"]:
    """How well every memorised code would do for every later one, in nats; 0 is as well as can be.

    By their variances a pair counts for log N(mu_t; z_k) - log N(mu_t; z_t), at worst -30: how far off a retrieved code
    is stops mattering once it is wrong, so that the score counts right retrievals. But then a turn rate and its
    multiples score the same, as long as every view comes back exactly. By their spread a pair counts for its squared
    distance, -10 for two codes at random: what lies next to a view then matters, too.
    """
    past, future = code[:, None, :tau], code[:, tau:, None]
    if yardstick == "variance":
        return (past.log_prob(future.mean) - future.log_prob(future.mean)).clamp_min(-30.0)
    distance2 = (past.mean - future.mean).square().sum(-1)
    return -10 * distance2 / distance2.mean().clamp_min(1e-12)


def retrieval_score(
    places: Float[Tensor, "n batch time P"],
    match: Float[Tensor, "batch future past"],
    tau: int,
    neighbours: int,
    delta: float,
) -> Float[Tensor, "n"]:
    """How well the codes nearest in each candidate's places explain the codes seen next: `match` of `match_codes`."""
    lead, walks = places.shape[:2], places.flatten(0, 1)
    queries = walks[:, tau:]
    index = nearest_k(walks[:, :tau], queries, neighbours)
    near = measure(walks, queries, index).distance2.unflatten(0, lead)
    found = match.expand(len(places), -1, -1, -1).gather(-1, index.unflatten(0, lead))
    log_weight = torch.log_softmax(-(near + delta).log(), dim=-1)
    return torch.logsumexp(log_weight + found, dim=-1).mean((1, 2))


@torch.no_grad()
def prospect(
    model: WorldModel, source: Source, settings: ProspectConfig, generator: torch.Generator, chunk: int = 256
) -> Find:
    """Search for the parameters that the model's motion names, and put the best into it."""
    scout = model.motion.scout()
    shapes = {name: scout.motion.get_parameter(name).shape for name in scout.names}
    sizes = [shape.numel() for shape in shapes.values()]

    def as_parameters(vector: Tensor) -> dict[str, Tensor]:
        parts = vector.split(sizes)
        return {name: part.view(shapes[name]) for name, part in zip(scout.names, parts, strict=True)}

    def score(vectors: Tensor) -> Tensor:
        clip = source(settings.clips, settings.tau + settings.horizon, generator)
        match = match_codes(model.vae.encode(clip.x), settings.tau, settings.yardstick)
        start = scout.motion.start(len(clip.a))
        walk = vmap(lambda vector: functional_call(scout.motion, as_parameters(vector), (start, clip.a)))
        return torch.cat(
            [
                retrieval_score(walk(some), match, settings.tau, settings.neighbours, settings.delta)
                for some in vectors.split(chunk)
            ]
        )

    told = _by_loops(model, source, settings, generator) if settings.loops else None
    if told is not None and told.found:
        return Find(model.motion.M.flatten(), told.closed, told.verdict)
    if scout.angles:
        used = source(4 * settings.clips, settings.tau + settings.horizon, generator).a.any(1).any(0)
        find = scan_angles(score, used, settings)
    else:
        find = cross_entropy_search(score, sum(sizes), settings, generator, scout.spread)
    model.motion.adopt(as_parameters(find.vector))
    return (
        find if told is None else replace(find, verdict=f"{told.verdict}; searched for instead, score {find.score:.2f}")
    )


def _by_loops(
    model: WorldModel, source: Source, settings: ProspectConfig, generator: torch.Generator
) -> Loops | WalkingLoops:
    """Estimate the motion from views that come back, and put it into the model where the estimate is reliable."""
    motion = model.motion
    if isinstance(motion, Turning):

        def search(score: Score, size: int) -> Tensor:
            return cross_entropy_search(score, size, replace(settings, restarts=1), generator, (0.2,) * size).vector

        sizes = settings.loop_clips, settings.loops, settings.loop_updates
        return find_by_walking_loops(motion, source, search, *sizes, generator)
    clip = source(settings.loop_clips, settings.loops, generator)
    loops = find_by_loops(model.vae.encode(clip.x), clip.a, motion.state_size, settings.length)
    if loops.found:
        motion.adopt({"M": loops.M})
    return loops
