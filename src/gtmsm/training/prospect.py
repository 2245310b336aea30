"""Prospecting: a cross-entropy search for a motion's parameters, before gradients refine them.

The bound has local optima in the motion, and its gradient does not lead out of them. The search draws many candidates,
computes the poses that each implies, and scores how well the codes nearest at these poses explain the next codes. It
then draws again around the best ones.
"""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
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
    """Search for the parameters of the motion."""

    candidates: int = 1_024
    """Vectors tried per round."""
    rounds: int = 24
    """Rounds per restart; each draws around the elite of the previous one."""
    restarts: int = 3
    """Independent searches, of which the best result is kept."""
    elite: float = 1 / 32
    """Fraction of the candidates kept per round (at least 16 of them)."""
    length: float = 1.4
    """Norm that every vector is scaled to, since the scale of a pose is arbitrary; 0: no scaling."""
    clips: int = 48
    """Fresh clips per round."""
    tau: int = 32
    """Steps of these clips to memorise."""
    horizon: int = 16
    """Steps to predict."""
    neighbours: int = 5
    """K, the entries retrieved per query, during the search."""
    delta: float = 1e-3
    """delta, the constant added to squared distances, during the search."""
    yardstick: Literal["variance", "spread"] = "variance"
    """Unit of squared differences between codes: `variance`, each code's own, for places that are revisited exactly; or
    `spread`, the mean over pairs of codes of a clip, so that the next best view scores as well."""
    loops: int = 0
    """Length, in steps, of clips in which loops are looked for before the search: the moves between two equal views add
    up to zero (`loops.py`; for agents with a heading `walking_loops.py`). 0: no loops."""
    loop_clips: int = 200
    """Clips in which loops are looked for."""
    loop_updates: int = 2_000
    """Updates that fit the motion of an agent with a heading to the loops."""
    angles: int = 4_096
    """Values tried per angle over a full turn, if the motion's angles are scanned."""

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        require(self.candidates >= 32, f"candidates is {self.candidates}; a search needs at least 32")
        require(self.rounds >= 1 and self.restarts >= 1, "a search needs at least 1 round and 1 restart")
        require(0 < self.elite <= 1, f"elite is {self.elite}; give the share to keep, above 0 and up to 1")
        require(self.length >= 0, f"length is {self.length}; give a positive one, or 0 to leave it alone")
        require(self.clips >= 1 and self.horizon >= 1, "a search needs at least 1 clip and 1 step to predict")
        require(self.delta > 0, f"delta is {self.delta}; it must be above 0")
        require(self.loop_clips >= 16, f"loop_clips is {self.loop_clips}; give at least 16 to look for loops in")
        require(self.loops >= 0, f"loops is {self.loops}; give a number of steps, or 0 to look for none")
        require(self.loop_updates >= 1, f"loop_updates is {self.loop_updates}; give at least 1")
        require(self.angles >= 16, f"angles is {self.angles}; a scan needs at least 16 values")
        require(0 < self.neighbours <= self.tau, f"neighbours is {self.neighbours}; give 1 to tau = {self.tau} of them")


@dataclass(frozen=True)
class Find:
    """The best vector of a search."""

    vector: Float[Tensor, "size"]
    score: float
    verdict: str = ""
    """How reliable the result is, in words."""


Score: TypeAlias = Callable[[Float[Tensor, "n size"]], Float[Tensor, "n"]]
"""Scores of many vectors; higher is better."""
Walks: TypeAlias = Callable[[Float[Tensor, "n size"]], Float[Tensor, "n row P"]]
"""Paths that many vectors lead to; two vectors whose paths differ by a linear map are the same motion."""

SAME_MOTION = 0.25
"""Residual after the best linear map, as a fraction of the sum of squares, below which two motions are the same.
(Restarts that find the right motion of image walks differ by 1 to 17%; of motions drawn at random, which differ by 35%
in the median, 1 to 3% are taken for the same.)"""
BY_CHANCE = 0.1
"""Fraction of random motions equal to the best one, from which on the agreement of restarts is no evidence."""
DRAWN = 64
"""Vectors of each restart's first round from which that fraction is estimated."""
SAME_ANGLE, SAME_STEPS = 0.1, 4
"""Maximum difference of scans that agree: a fraction of the angle, or steps of the grid."""
LEVEL = 0.95
"""The next best angle is as good if it has this fraction of the best one's lead over the median, mean over scans."""
NOISE = 1e-5
"""Lead over the median angle, relative to its score, that rounding errors can cause."""


def cross_entropy_search(
    score: Score,
    size: int,
    settings: ProspectConfig,
    generator: torch.Generator,
    spread: Sequence[float] | None = None,
    walks: Walks | None = None,
) -> Find:
    """The vector with the highest score: draw samples, keep the elite, and draw again around it.

    `spread` is the standard deviation of its elements at first; without it, scale and sign of the vector are arbitrary.
    `walks` tells which vectors are the same motion; without it those that differ only in length and sign.
    """
    restarts = [_search_once(score, size, settings, generator, spread) for _ in range(settings.restarts)]
    find = restarts[0][0]
    if len(restarts) == 1:
        return replace(find, verdict=f"motion not confirmed by a single search, score {find.score:.2f}")
    vectors = torch.stack([find.vector for find, _ in restarts])
    scores = score(vectors).nan_to_num(-torch.inf)  # all on the same clips, so that easy clips favour no restart
    best = scores.argmax()
    drawn = torch.cat([first[:DRAWN] for _, first in restarts])
    led = (walks or (lambda some: some[..., None]))(torch.cat([vectors, drawn]))
    same = _unlike(led[best], led) < SAME_MOTION
    same[best] = True
    verdict = _verdict_of_restarts(scores, same[: len(scores)], float(same[len(scores) :].double().mean()))
    return Find(vectors[best], float(scores[best]), verdict)


def _unlike(one: Float[Tensor, "row P"], others: Float[Tensor, "n row P"]) -> Float[Tensor, "n"]:
    """Residual of the best linear map, as a fraction of the sum of squares: the larger one of both directions."""
    one, others = (led.double().nan_to_num(0, 0, 0) for led in (one[None], others))

    def left(start: Tensor, end: Tensor) -> Tensor:
        across = start.mT @ end
        told = (across * (torch.linalg.pinv(start.mT @ start, hermitian=True) @ across)).sum((1, 2))
        return 1 - told / end.square().sum((1, 2)).clamp_min(1e-12)

    return torch.maximum(left(one, others), left(others, one))


def _verdict_of_restarts(scores: Float[Tensor, "n"], same: Bool[Tensor, "n"], chance: float) -> str:
    """Verdict: did several restarts find the best motion, and score higher than all others?

    `chance` is the fraction of random motions that equal it.
    """
    agree, others = int(same.sum()), scores[~same]
    found = agree > 1 and chance < BY_CHANCE and bool((others < scores[same].min()).all() and scores.max().isfinite())
    rest = f"the best other motion {others.max():.2f}" if len(others) else "no search found another one"
    return (
        f"motion {'found' if found else 'not found for certain'}: {agree} of {len(scores)} searches ended there "
        f"({chance:.1%} of random motions are as near), score {scores.max():.2f}; {rest}"
    )


def _search_once(
    score: Score,
    size: int,
    settings: ProspectConfig,
    generator: torch.Generator,
    scale: Sequence[float] | None,
) -> tuple[Find, Float[Tensor, "n size"]]:
    """The result of one restart, and the vectors of its first round."""
    device = generator.device
    first = torch.ones(size, device=device) if scale is None else torch.tensor(scale, device=device)
    centre, spread = torch.zeros(size, device=device), first
    keep = max(16, int(settings.candidates * settings.elite))
    at_first = torch.empty(0, size)
    for round_ in range(settings.rounds):
        drawn = torch.randn(settings.candidates, size, device=device, generator=generator)
        vectors = centre + spread * drawn
        if settings.length and scale is None:
            vectors = settings.length * vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-12)
        at_first = at_first if round_ else vectors
        scores = score(vectors).nan_to_num(-torch.inf)
        best = scores.topk(keep).indices
        elite = vectors[best]
        if scale is None:
            # A pose space and its mirror image score the same; without aligned signs their mean would be near 0.
            elite = elite * torch.where((elite * elite[:1]).sum(1, keepdim=True) < 0, -1.0, 1.0)
        centre, spread = elite.mean(0), elite.std(0) + 0.02 * first
    return Find(vectors[best[0]], float(scores[best[0]])), at_first


@dataclass(frozen=True)
class _Scan:
    """One scan over a full turn, on separate clips."""

    which: Float[Tensor, "size"]
    """Nonzero for the angles that were varied."""
    angle: float
    runner_up: float
    """The best angle other than `angle` and its mirror image."""
    level: float
    """The runner-up's lead over the median angle, as a fraction of the best one's; 1 if the scan tells nothing."""

    @classmethod
    def of(
        cls, which: Float[Tensor, "size"], circle: Float[Tensor, "n"], scores: Float[Tensor, "n"], top: int, step: float
    ) -> "_Scan":
        """Summarise the scores over a full turn; `top` is the index of the angle taken as the best."""
        angle, usual = float(circle[top]), float(scores.median())
        same = _same_angle(circle, angle, step)
        others = scores.masked_fill(same, -torch.inf)
        lead, next_best = float(scores[top]) - usual, float(others.max()) - usual
        told = lead > NOISE * max(1.0, abs(usual)) and 2 * int(same.sum()) < len(circle)  # else the scan is too coarse
        level = next_best / lead if told else 1.0
        return cls(which, angle, float(circle[others.argmax()]), level)


def scan_angles(
    score: Score,
    used: Bool[Tensor, "size"],
    settings: ProspectConfig,
) -> Find:
    """The angles with the highest score, scanned one by one and as opposite pairs over a full turn, then more finely.

    The score of a turn rate is like that of a frequency: many narrow peaks, and no gradient towards the highest.
    Pairs are scanned as well, since a clip with turns both ways says nothing about one of them without the other.
    Angles that no action uses stay 0. A turn and its mirror image score the same as long as clips do not mix them, so
    ties go to turns that cancel: actions come in opposite pairs.
    """

    scans: list[_Scan] = []
    step = 2 * math.pi / settings.angles
    circle = torch.linspace(-math.pi, math.pi, settings.angles, device=used.device)

    def scored(vectors: Float[Tensor, "n size"]) -> tuple[Float[Tensor, "n"], int]:
        scores = score(vectors).nan_to_num(-torch.inf)
        return scores, int((scores - 1e-3 * vectors.sum(1).abs()).argmax())

    def best(vectors: Float[Tensor, "n size"]) -> Find:
        scores, top = scored(vectors)
        return Find(vectors[top], float(scores[top]))

    def scan(which: Float[Tensor, "size"], others: Float[Tensor, "size"]) -> Find:
        vectors = others + circle[:, None] * which
        scores, top = scored(vectors)
        scans.append(_Scan.of(which, circle, scores, top, step))
        return Find(vectors[top], float(scores[top]))

    nothing = torch.zeros(len(used), device=used.device)
    each = torch.eye(len(used), device=used.device)[used]
    singly = Find(nothing, -math.inf)
    for _ in range(2):
        for one in each:
            singly = scan(one, singly.vector * (1 - one))
    pairs = [scan(one - other, nothing) for one, other in combinations(each, 2)]
    find = best(torch.stack([singly.vector, *(pair.vector for pair in pairs)]))  # on the same clips, to be comparable
    verdict = _verdict_of_scans(scans, find.vector, step)
    for span in (2 * step, step / 4, step / 16):
        for one in each:
            find = best(find.vector + torch.linspace(-span, span, 65, device=used.device)[:, None] * one)
    return replace(find, verdict=f"{verdict}, score {find.score:.2f}")


def _same_angle(angles: Tensor, angle: float, step: float) -> Bool[Tensor, "*n"]:
    """Whether angles equal this one or its mirror image, up to the resolution of a scan with that step."""
    return (angles.abs() - abs(angle)).abs() <= max(SAME_STEPS * step, SAME_ANGLE * abs(angle))


def _verdict_of_scans(scans: Sequence[_Scan], found: Float[Tensor, "size"], step: float) -> str:
    """Verdict: did most scans, each on separate clips, find these angles, and is the next best angle worse?

    Scans of pairs count only if the angles found are opposite: a scan of any other pair cannot find both.
    """
    if not scans:
        return "motion not found: no action was used"
    varied = [found[scan.which != 0] for scan in scans]
    scans = [
        scan for scan, angles in zip(scans, varied, strict=True) if _same_angle(angles, float(angles[0]), step).all()
    ]
    agree = [scan for scan in scans if _same_angle(found[scan.which != 0], scan.angle, step).all()]
    closest = max(agree or scans, key=lambda scan: scan.level)
    level = sum(scan.level for scan in agree or scans) / len(agree or scans)
    sure = 2 * len(agree) > len(scans) > 1 and level < LEVEL
    angles = f"{abs(closest.runner_up):.3f} instead of {abs(closest.angle):.3f}"
    times = f", {abs(closest.runner_up / closest.angle):.1f} times" if closest.angle else ""
    return (
        f"motion {'found' if sure else 'not found for certain'}: {len(agree)} of {len(scans)} scans ended there; the "
        f"next best angle has {level:.0%} of its lead over the median one (closest: {angles}{times})"
    )


def match_codes(
    code: Gaussian, tau: int, yardstick: Literal["variance", "spread"] = "variance"
) -> Float[Tensor, "batch future past"]:
    """How well every memorised code explains every later one, in nats; 0 is the maximum.

    With `variance` a pair scores log N(mu_t; z_k) - log N(mu_t; z_t), but at least -30. Wrong codes then score about
    alike, so that the score counts right retrievals. But if every view comes back exactly, a turn rate and its
    multiples score the same. With `spread` a pair scores its negative squared distance, scaled to a mean of -10, so
    that views next to the right one score better than others.
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
    """How well the codes nearest by each candidate's places explain the later ones; `match` is from `match_codes`."""
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
    """Search for the parameters that the model's motion names, and set the motion to the best ones.

    With `settings.loops`, they are first estimated from loops; the search runs only if these find no motion.
    """
    scout = model.motion.scout()
    shapes = {name: scout.motion.get_parameter(name).shape for name in scout.names}
    sizes = [shape.numel() for shape in shapes.values()]

    def as_parameters(vector: Tensor) -> dict[str, Tensor]:
        parts = vector.split(sizes)
        return {name: part.view(shapes[name]) for name, part in zip(scout.names, parts, strict=True)}

    actions: Tensor = torch.empty(0)

    def walk(vectors: Tensor) -> Tensor:
        start = scout.motion.start(len(actions))
        return vmap(lambda vector: functional_call(scout.motion, as_parameters(vector), (start, actions)))(vectors)

    def score(vectors: Tensor) -> Tensor:
        nonlocal actions
        clip = source(settings.clips, settings.tau + settings.horizon, generator)
        match, actions = match_codes(model.vae.encode(clip.x), settings.tau, settings.yardstick), clip.a
        return torch.cat(
            [
                retrieval_score(walk(some), match, settings.tau, settings.neighbours, settings.delta)
                for some in vectors.split(chunk)
            ]
        )

    def walks(vectors: Tensor) -> Tensor:
        """Places of the walks scored last, relative to their mean: a motion's direction and scale are arbitrary."""
        places = torch.cat([walk(some).flatten(1, 2) for some in vectors.split(chunk)])
        return places - places.mean(1, keepdim=True)

    told = _by_loops(model, source, settings, generator) if settings.loops else None
    if told is not None and told.found:
        return Find(model.motion.M.flatten(), told.score, told.verdict)
    if scout.angles:
        used = source(4 * settings.clips, settings.tau + settings.horizon, generator).a.any(1).any(0)
        find = scan_angles(score, used, settings)
    else:
        find = cross_entropy_search(score, sum(sizes), settings, generator, scout.spread, walks)
    model.motion.adopt(as_parameters(find.vector))
    return find if told is None else replace(find, verdict=f"{told.verdict}; searched for instead: {find.verdict}")


def _by_loops(
    model: WorldModel, source: Source, settings: ProspectConfig, generator: torch.Generator
) -> Loops | WalkingLoops:
    """Estimate the motion from views that come back, and set the model's motion to it if the estimate is reliable."""
    motion = model.motion
    if isinstance(motion, Turning):

        def search(score: Score, size: int) -> Tensor:
            return cross_entropy_search(score, size, replace(settings, restarts=1), generator, (0.2,) * size).vector

        before, sizes = deepcopy(motion.state_dict()), (settings.loop_clips, settings.loops, settings.loop_updates)
        told = find_by_walking_loops(motion, source, search, *sizes, generator)
        if not told.found:
            motion.load_state_dict(before)
        return told
    clip = source(settings.loop_clips, settings.loops, generator)
    loops = find_by_loops(model.vae.encode(clip.x), clip.a, motion.state_size, settings.length)
    if loops.found:
        motion.adopt({"M": loops.M})
    return loops
