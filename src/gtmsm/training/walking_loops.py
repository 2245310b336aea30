"""The motion of an agent with a heading, from pairs of views that look alike because the agent came back.

The input is frames and actions only. The most alike pairs of views of every clip are kept; most of them were seen from
nearly the same pose. Then, in this order:

1. **Turns.** Between two such views an agent has turned by zero or by full turns. Turn rates are searched for.
2. **Moves and momentum.** With headings known, positions are linear in the moves of the actions, for any given fraction
   of the velocity that is kept after a step. The moves that bring alike views together, but not all views, are an
   eigenvector. Of several fractions, the one that brings alike views closest together is taken.
   The pairs do not tell which direction is ahead, but frames do: they shift when the agent turns or steps aside.
3. **The rest** of the motion (friction, a top speed, ...) is fitted as that of a body that is pushed by keys
   (`pushed_body.py`): two curves, which a gliding network then learns. The distance between alike views follows a
   heavy-tailed distribution, whose width depends on how unlike they are and is learned as well. Turns are changed only
   if that brings views of held-out clips closer together.
4. **What such a body cannot do** is learned by gradient, and kept if views of held-out clips come closer together.
"""

import gc
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.data.clip import Source
from gtmsm.model.motion.turning import Gliding, Turning
from gtmsm.pose import wrapped
from gtmsm.tensors import Actions, States
from gtmsm.training.alike_views import SAME_HEADING, Walks, find_pairs
from gtmsm.training.pushed_body import PushedBody, fit_body, teach

Search: TypeAlias = Callable[[Callable[[Float[Tensor, "n size"]], Float[Tensor, "n"]], int], Float[Tensor, "size"]]
"""A search: from a score of many vectors, and their size, to the best vector."""
FOR_TURNS, FOR_MOVES = 24, 16
"""Pairs per clip, on average, from which turns and moves are estimated; fewer pairs are more alike."""
ENOUGH = 4_096
"""Approximate number of pairs used in the search for turns."""
SEARCHES = 6
"""Independent searches for turns: some end in a local optimum, which explains most pairs, not all."""
EQUALLY = 0.02
"""Turns that explain less than the best by up to this much count as equally good."""
SAME_TURNS = 0.05
"""Maximum relative difference of two searches that found the same turns."""
TURNED = 0.01
"""Added to the deviations of alike and of random pairs before they are compared: turns near 0 explain neither."""
KEEPS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""Fractions of the velocity kept after a step that are tried."""
STEP = 0.1
"""Root mean square length of a step; the unit of length is arbitrary."""
LESSONS, TAUGHT = 8, 512
"""Updates that teach a gliding network a pushed body, for each later update from pairs; clips used for that."""
CLEARLY, OTHER_TURNS = 0.05, 0.01
"""Minimum decrease of the mean log distance of alike views in held-out clips: to accept a motion that no pushed body
has, and turns other than those found from headings. (Other turns gain up to 0.005 in rooms, whose turns are exact, and
0.02 in ViZDoom, where left and right differ by 0.02 degrees.)"""
NEAR = 0.01
"""Added to relative distances before their logarithm is taken: views closer than this count as together."""


class Turns(NamedTuple):
    """The turn of every action."""

    turn: Float[Tensor, "A"]
    explained: float
    """How well these turns explain alike views: 1 for all of them, 0 for no more than random pairs."""
    searches: int
    """Searches, out of `SEARCHES`, that found these turns or small multiples of them."""
    runner_up: float
    """How well the best turns of the other searches explain them; 0 if there are none."""


@dataclass(frozen=True)
class WalkingLoops:
    """A motion estimated from alike views, and how well it explains them."""

    count: int
    turned: float
    """How well the turns explain alike views: 1 for all of them, 0 for no more than random pairs."""
    closed: float
    """Median distance of alike views in held-out clips, relative to the root mean square distance of any two views of
    one heading."""
    linear: float
    """The same for the linear estimate with momentum as a single number."""
    without: float
    """The same for the linear estimate without momentum."""
    searches: int
    """Searches, out of `SEARCHES`, that found these turns."""
    runner_up: float
    """How well the best turns of the other searches explain alike views."""

    @property
    def found(self) -> bool:
        """Whether turns and positions bring alike views together."""
        return self.turned > 0.2 and self.closed < 0.3

    @property
    def score(self) -> float:
        """Higher is better."""
        return -self.closed

    @property
    def verdict(self) -> str:
        """The result in words."""
        if not self.count:
            return "no view came back to where another was seen: give longer clips, or more of them"
        others = f", others explain {self.runner_up:.0%}" if self.searches < SEARCHES else ""
        return (
            f"motion {'found' if self.found else 'not found'} by {self.count:,} pairs of views that look alike: turns "
            f"explain {self.turned:.0%} of them ({self.searches} of {SEARCHES} searches found these{others}); "
            f"in clips not learned from, half of them lie within "
            f"{self.closed:.1%} of what any two are apart ({self.linear:.1%} by moves and one number for momentum, "
            f"{self.without:.1%} by moves alone)"
        )


TOO_SHORT = WalkingLoops(0, 0.0, math.inf, math.inf, math.inf, 0, 0.0)
"""The result if no view came back."""


def find_by_walking_loops(
    motion: Turning, source: Source, search: Search, clips: int, steps: int, updates: int, generator: torch.Generator
) -> WalkingLoops:
    """Set the parameters of a motion from views that look alike, in `clips` clips of `steps` steps."""
    walks = find_pairs(source, clips, steps, generator)
    if not walks.alike.counts.any():
        return TOO_SHORT
    turns = find_turns(walks, search)
    turn = turns.turn
    walks = find_pairs(source, clips, steps, generator, turn)
    walks = walks._replace(alike=walks.alike.most_alike(FOR_MOVES))
    held_out = len(walks.a) // 8
    learned, others = walks.part(slice(held_out, None)), walks.part(slice(held_out))
    if not (learned.alike.counts.any() and others.alike.counts.any()):
        return replace(TOO_SHORT, turned=turns.explained)
    found = {keep: find_moves(learned, turn, keep) for keep in (KEEPS if isinstance(motion, Gliding) else (0.0,))}
    keep = min(found, key=lambda keep: found[keep][1])
    linear, without = (_closed(others, path_of(others.a, turn, found[some][0], some)) for some in (keep, 0.0))
    move = aimed(learned, turn, found[keep][0], keep)
    momentum = {"keep": torch.tensor(keep)} if isinstance(motion, Gliding) else {}
    motion.adopt({"turn": turn, "move": move / (1 - keep)} | momentum)
    refine = partial(fit_motion, motion, learned, updates, generator)
    if type(motion) is Gliding:  # a body's turns have no momentum, as those of other motions may
        body = find_body(learned, others, turn, move, keep, updates)
        _if_closer(motion, others, 0.0, partial(teach, motion, body, learned.a[:TAUGHT], LESSONS * updates, generator))
        _if_closer(motion, others, CLEARLY, refine)
    else:
        refine()
    count = int(walks.alike.counts.sum())
    closed = _closed(others, _path(motion, others.a))
    return WalkingLoops(count, turns.explained, closed, linear, without, turns.searches, turns.runner_up)


def _if_closer(motion: Turning | PushedBody, others: Walks, by: float, learn: Callable[[], None]) -> None:
    """Call `learn`; restore the weights unless the mean log distance of alike views in `others` falls by over `by`."""
    weights, before = deepcopy(motion.state_dict()), _apart(others, _path(motion, others.a)).log().mean()
    learn()
    if not _apart(others, _path(motion, others.a)).log().mean() < before - by:
        motion.load_state_dict(weights)


def find_turns(walks: Walks, search: Search) -> Turns:
    """The turn of every action, and how well it explains alike views.

    Search for turns by which alike views, but not random pairs, differ by full turns; then minimise a robust mean of
    the deviations from these. If agents turn on the spot, multiples of their turns explain as much: of equally good
    turns the smallest are taken.
    """
    done = walks.a.cumsum(1)
    # Turning to and fro on the spot gives the same counts of actions many times: they count once.
    alike, which = walks.alike.between(done).unique(dim=0, return_inverse=True)
    unlike = torch.full_like(alike[:, 0], torch.inf).scatter_reduce(
        0, which, walks.alike.unlike[walks.alike.counts], "amin"
    )
    alike = alike[unlike.argsort()[: FOR_TURNS * len(done)]]
    any_two = walks.any_two.between(done)
    few, fewer = (pairs[:: max(1, len(pairs) // ENOUGH)] for pairs in (alike, any_two))

    def score(turns: Float[Tensor, "n A"]) -> Float[Tensor, "n"]:
        each = [(few @ some.T).cos().mean(0) - (fewer @ some.T).cos().mean(0).abs() for some in turns.split(128)]
        return torch.cat(each)

    found = torch.stack([search(score, walks.a.shape[-1]) for _ in range(SEARCHES)])
    finds = torch.stack([_refined(turn / part, alike) for turn in found for part in (1, 2, 3)])
    explained = torch.stack([1 - (_astray(turn, few) + TURNED) / (_astray(turn, fewer) + TURNED) for turn in finds])
    # Turns near 0 explain random pairs, too.
    explained = explained.masked_fill(score(finds) < 0.8 * score(finds).max(), 0)
    size = finds.abs() @ walks.a.abs().mean((0, 1))
    best = size.masked_fill(explained < explained.max() - EQUALLY, torch.inf).argmin()
    to_the_left = (walks.a @ finds[best] * walks.shift).sum()  # turns to the left shift frames to the right
    apart = torch.minimum((finds - finds[best]).norm(dim=1), (finds + finds[best]).norm(dim=1))
    agree = (apart < SAME_TURNS * finds[best].norm()).view(SEARCHES, -1).any(1)
    others = explained.view(SEARCHES, -1)[~agree]
    runner_up = float(others.max()) if len(others) else 0.0
    return Turns(finds[best] * to_the_left.sign(), float(explained[best]), int(agree.sum()), runner_up)


def _refined(turn: Float[Tensor, "A"], alike: Float[Tensor, "pairs A"]) -> Float[Tensor, "A"]:
    """Turns near these that minimise `_astray`."""
    best, counts = turn.double().requires_grad_(), alike.double()
    optimiser = torch.optim.LBFGS([best], max_iter=50, line_search_fn="strong_wolfe")

    def misfit() -> Tensor:
        optimiser.zero_grad()
        off = _astray(best, counts)
        off.backward()
        return off

    with torch.enable_grad():
        optimiser.step(misfit)
    return best.detach().to(turn)


def _astray(turn: Float[Tensor, "A"], counts: Float[Tensor, "pairs A"]) -> Float[Tensor, ""]:
    """Robust mean of the deviation from full turns, for given counts of actions between the views of each pair."""
    return (wrapped(counts @ turn) / SAME_HEADING).square().log1p().mean()


def path_of(
    a: Actions, turn: Float[Tensor, "A"], move: Float[Tensor, "2 A"], keep: float
) -> Float[Tensor, "batch time 2"]:
    """Positions by moves relative to the heading, with a fraction of the velocity kept in the world's frame."""
    return _unit_paths(a, turn, keep) @ move.flatten()


def _unit_paths(a: Actions, turn: Float[Tensor, "A"], keep: float) -> Float[Tensor, "batch time 2 moves"]:
    """Positions for each element of `move` set to 1 and all others to 0: positions are linear in `move`."""
    heading = (a @ turn).cumsum(1) - a @ turn  # a move is relative to the heading before its turn
    c, s = heading.cos(), heading.sin()
    ahead, aside = torch.stack([c, s], -1)[..., None], torch.stack([-s, c], -1)[..., None]
    push = torch.cat([ahead * a[..., None, :], aside * a[..., None, :]], dim=-1)
    since = torch.arange(a.shape[1], device=a.device)
    since = since[:, None] - since
    carried = torch.where(since >= 0, (1 - keep ** (since.clamp_min(0) + 1)) / (1 - keep), 0)  # 1 + keep + keep² + ...
    return torch.einsum("ts,bscm->btcm", carried.to(push), push)


def find_moves(walks: Walks, turn: Float[Tensor, "A"], keep: float, clips: int = 512) -> tuple[Tensor, float]:
    """The moves of actions that bring alike views together relative to random pairs, and the remaining distance.

    They minimise the sum of distances, not of squares, by reweighting, since some views are alike by chance.
    """
    walks = walks.part(slice(clips))
    unit = _unit_paths(walks.a, turn, keep)
    alike, any_two = (pairs.between(unit).double() for pairs in (walks.alike, walks.any_two))
    spread, axes = torch.linalg.eigh(torch.einsum("pcf,pcg->fg", any_two, any_two) / len(any_two))
    told = spread > 1e-4 * spread[-1]  # moves that separate no two views of one heading cannot be estimated
    whiten = axes[:, told] / spread[told].sqrt()
    sphered = alike @ whiten
    weight = torch.ones_like(sphered[:, 0, 0])
    for _ in range(30):
        best = torch.linalg.eigh(torch.einsum("p,pcf,pcg->fg", weight, sphered, sphered)).eigenvectors[:, 0]
        distance = (sphered @ best).norm(dim=-1)
        weight = 1 / (distance + 0.03)
    move = (whiten @ best).view(2, -1)
    step = (unit[:, 1:] - unit[:, :-1]).double() @ move.flatten()
    move = move * STEP / step.square().sum(-1).mean().sqrt()
    return move.to(walks.a), float((weight * distance.square()).sum() / weight.sum())


def aimed(walks: Walks, turn: Float[Tensor, "A"], move: Float[Tensor, "2 A"], keep: float) -> Float[Tensor, "2 A"]:
    """These moves, rotated so that steps to the left shift frames to the right; unchanged if no step shifts frames."""
    turned = walks.a @ turn
    heading = (turned.cumsum(1) - turned)[:, 1:]
    step, straight = path_of(walks.a, turn, move, keep).diff(dim=1), turned[:, 1:].abs() < SAME_HEADING
    left = _shifting(step[straight], heading[straight], walks.shift[:, 1:][straight])
    if not left.any():
        return move
    left = left / left.norm()
    return torch.stack([left[1] * move[0] - left[0] * move[1], left @ move])


@torch.no_grad()
def _path(motion: Turning | PushedBody, a: Actions) -> Float[Tensor, "clips time 2"]:
    """Positions of a motion along actions, from its start."""
    return motion.unroll(motion.start(len(a)), a)[..., :2]


@torch.no_grad()
def _apart(walks: Walks, path: Float[Tensor, "clips time 2"]) -> Float[Tensor, "pairs"]:
    """Distances of alike views plus `NEAR`, relative to the root mean square of any two views of one heading."""
    usual = walks.any_two.between(path).square().sum(-1).mean().sqrt()
    return walks.alike.between(path).norm(dim=-1) / usual + NEAR


def _closed(walks: Walks, path: Float[Tensor, "clips time 2"]) -> float:
    """Median of the distances of `_apart`, without `NEAR`."""
    return float(_apart(walks, path).median()) - NEAR


def find_body(
    walks: Walks, others: Walks, turn: Float[Tensor, "A"], move: Float[Tensor, "2 A"], keep: float, updates: int
) -> PushedBody:
    """A pushed body, fitted to alike views; its turns change only if that brings alike views of `others` together."""
    top = path_of(walks.a, turn, move, keep).diff(dim=1).norm(dim=-1).max()
    body, tail = PushedBody(turn, move, keep, float(top)), _tail(turn.device)

    def fit(iterations: int, turns: bool = False) -> None:
        fit_body(body, walks.a, lambda states: _misfit(states, walks, turn, tail), [tail], iterations, turns)
        gc.collect()  # captured graphs are in a cycle, and hold all that their backward pass needs

    fit(updates // 100)
    body.drop_weak_pushes()
    fit(updates // 20)
    _if_closer(body, others, OTHER_TURNS, lambda: fit(updates // 40, turns=True))
    return body


def fit_motion(motion: Turning, walks: Walks, updates: int, generator: torch.Generator, batch: int = 64) -> None:
    """Refine a motion by gradient.

    Distances are relative to those of any two views of one heading, so that shrinking all of them gains nothing. Turns
    learn slowly: alike views have equal headings within a degree, but long loops determine turns more precisely.
    """
    device = walks.a.device
    tail = _tail(device)
    others = [weight for name, weight in motion.named_parameters() if name != "turn"]
    rates = {2e-3: others, 1e-2: [tail], 2e-6: [motion.turn]}
    optimiser = torch.optim.Adam([{"params": weights, "lr": rate} for rate, weights in rates.items()])
    slower = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.02, updates)
    some = torch.empty(0, dtype=torch.long, device=device)
    with torch.enable_grad():
        for _ in range(updates):
            if len(some) < min(batch, len(walks.a)):
                some = torch.randperm(len(walks.a), device=device, generator=generator)
            clips, some = walks.part(some[:batch]), some[batch:]
            states = motion.unroll(motion.start(len(clips.a)), clips.a)
            beside = _beside(states[..., :2].diff(dim=1), states[..., 2]) / STEP
            loss = _misfit(states, clips, motion.turn, tail) + 10 * beside.square().sum()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(others, 1.0)
            optimiser.step()
            slower.step()


def _tail(device: torch.device) -> Float[Tensor, "2"]:
    """Parameters b, c of the width exp(b) unlike^c of the distribution of distances of alike views, to be learned."""
    return torch.tensor([-0.5, 0.7], device=device).requires_grad_()


def _misfit(states: States, walks: Walks, turn: Float[Tensor, "A"], tail: Float[Tensor, "2"]) -> Float[Tensor, ""]:
    """Negative log density of the distances of alike views (a Cauchy distribution in the plane), and penalties for what
    they leave open: the unit of length, and the direction that is ahead."""
    path, heading, alike = states[..., :2], states[..., 2], walks.alike
    apart2 = walks.any_two.between(path).square().sum(-1).mean()
    distance2 = alike.between(path).square().sum(-1) / apart2
    log_width = tail[0] + tail[1] * (alike.unlike[alike.counts] + 1e-3).log()
    misfit = 1.5 * (distance2 * (-2 * log_width).exp()).log1p() + 2 * log_width
    step = path.diff(dim=1)
    unit = 0.1 * (step.square().sum(-1).mean().sqrt() / STEP).log().square()
    straight = (walks.a[:, 1:] @ turn.detach()).abs() < SAME_HEADING
    ahead, left = _shifting(step[straight], heading[:, :-1][straight], walks.shift[:, 1:][straight]) * STEP
    askew = ahead.square() / (ahead.square() + left.square() + 1e-4)
    return misfit.mean() + unit + 10 * askew


def _shifting(step: Float[Tensor, "n 2"], heading: Float[Tensor, "n"], shift: Float[Tensor, "n"]) -> Float[Tensor, "2"]:
    """Regression coefficients of a frame's shift to the right on the components of a step, ahead and to the left."""
    c, s = heading.cos(), heading.sin()
    x, y = step.unbind(-1)
    own = torch.stack([c * x + s * y, c * y - s * x], dim=-1)
    # A ridge: without steps aside the coefficient would be undetermined.
    least = 1e-4 * STEP**2 * max(1, len(own)) * torch.eye(2, device=own.device)
    return torch.linalg.solve(own.mT @ own + least, own.mT @ shift)


def _beside(step: Float[Tensor, "batch less 2"], heading: Float[Tensor, "batch time"]) -> Float[Tensor, "2"]:
    """Offset, ahead and to the left, from the agent of a point that makes these steps.

    Such a point moves on a circle when the agent turns, so that pairs of views of one heading cannot distinguish it
    from the agent. But many turns are made on the spot: short steps get the largest weights.
    """
    c, s = torch.stack([heading.cos(), heading.sin()]).diff(dim=-1)
    x, y = step.unbind(-1)
    weight = 1 / (step.detach().square().sum(-1) + (0.2 * STEP) ** 2)
    moved = torch.stack([(weight * (c * x + s * y)).sum(), (weight * (c * y - s * x)).sum()])
    return moved / (weight * (c.square() + s.square())).sum().clamp_min(1e-6)
