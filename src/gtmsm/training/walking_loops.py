"""The motion of an agent with a heading, from views that look alike: it came back to where it had been.

Nothing but frames and actions is known. Of every clip the pairs of views that are most alike are kept; most of them
were seen from nearly the same pose. Then, one after the other:

1. **Turns.** Between two such views an agent has turned by nothing, or by full turns. Turn rates are searched for.
2. **Moves and momentum.** With headings known, positions are linear in the moves of the actions, for any given fraction
   of the velocity that is kept after a step. The moves that bring alike views together, but not all views, are an
   eigenvector. Of several fractions the one is taken for which alike views come closest together.
   The pairs do not tell which way is ahead, but frames do: they shift when the agent turns or steps aside.
3. **The rest** of the motion (friction, a top speed, ...) as that of a body that keys push (`pushed_body.py`): two
   curves, which a gliding network then learns. The distance between alike views follows a distribution with a heavy
   tail, whose width depends on how unlike they are; both are learned. Turns change only where that brings views of
   other clips closer together.
4. **What no such body does** by gradient; kept where views of other clips come closer together by it.
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
"""From a score of many vectors, and their size, to the best vector."""
FOR_TURNS, FOR_MOVES = 24, 16
"""Pairs per clip, on average, from which turns and moves are estimated: fewer are more alike."""
ENOUGH = 4_096
"""Pairs from which turns are searched for."""
SEARCHES = 6
"""Independent searches for turns: some end in a local optimum, which explains only most of the pairs."""
EQUALLY = 0.02
"""Turns whose score is lower than the best by up to this much count as equally good."""
SAME_TURNS = 0.05
"""Fraction of turns up to which two searches found the same."""
KEEPS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
"""Fractions of the velocity that may be kept after a step: the values that are tried."""
STEP = 0.1
"""The size of a step, root mean square: the unit of length is free."""
LESSONS, TAUGHT = 8, 512
"""Updates of a gliding network that learns from a pushed body, for each one of its own; clips that it learns from."""
CLEARLY, OTHER_TURNS = 0.05, 0.01
"""By how much, in the mean logarithm, alike views of other clips must come closer together for what no pushed body does
to be believed, and for other turns than their headings tell. (Other turns gain up to 0.005 in rooms, whose turns are
exact, and 0.02 in ViZDoom, where left and right differ by 0.02 degrees.)"""
NEAR = 0.01
"""How far apart, of any two, views count as together."""


class Turns(NamedTuple):
    """The turn of every action."""

    turn: Float[Tensor, "A"]
    explained: float
    """How much of what is alike these turns explain: 1 for all of it, 0 for as much as by chance."""
    searches: int
    """Searches that found these turns, or whole multiples of them, of `SEARCHES`."""
    runner_up: float
    """How much the best turns explain that other searches found; 0 where there are none."""


@dataclass(frozen=True)
class WalkingLoops:
    """A motion estimated from alike views, and how well it explains them."""

    count: int
    turned: float
    """How far alike views have one heading: 1 if all of them do, 0 if they do by chance."""
    closed: float
    """Median distance of alike views of other clips than were learned from; of any two of one heading it is 1."""
    linear: float
    """The same with momentum of one number."""
    without: float
    """The same without momentum."""
    searches: int
    """Searches that found these turns, of `SEARCHES`."""
    runner_up: float
    """How far other turns explain alike views, those that the other searches found."""

    @property
    def found(self) -> bool:
        """Whether alike views come together."""
        return self.turned > 0.2 and self.closed < 0.3

    @property
    def score(self) -> float:
        """Higher is better."""
        return -self.closed

    @property
    def verdict(self) -> str:
        """In words."""
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
"""What clips tell in which nobody comes back."""


def find_by_walking_loops(
    motion: Turning, source: Source, search: Search, clips: int, steps: int, updates: int, generator: torch.Generator
) -> WalkingLoops:
    """Set the parameters of a motion by views that look alike, in so many clips of so many steps."""
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
    """Learn, and forget it where alike views of other clips do not come closer together by so much."""
    weights, before = deepcopy(motion.state_dict()), _apart(others, _path(motion, others.a)).log().mean()
    learn()
    if not _apart(others, _path(motion, others.a)).log().mean() < before - by:
        motion.load_state_dict(weights)


def find_turns(walks: Walks, search: Search) -> Turns:
    """The turn of every action, and how much of what is alike it explains.

    Searches for turns by which alike views, and no others, differ by full turns; then the least sum of distances from
    these. Where agents turn on the spot, multiples of their turns explain as much: of equally good ones the least are
    meant.
    """
    done = walks.a.cumsum(1)
    # Who turns to and fro on the spot does the same many times: it counts once.
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
    explained = torch.stack([1 - _astray(turn, few) / _astray(turn, fewer).clamp_min(1e-6) for turn in finds])
    explained = explained.masked_fill(score(finds) < 0.8 * score(finds).max(), 0)  # hardly any turn explains any two
    size = finds.abs() @ walks.a.abs().mean((0, 1))
    best = size.masked_fill(explained < explained.max() - EQUALLY, torch.inf).argmin()
    to_the_left = (walks.a @ finds[best] * walks.shift).sum()  # what is seen then moves to the right
    apart = torch.minimum((finds - finds[best]).norm(dim=1), (finds + finds[best]).norm(dim=1))
    agree = (apart < SAME_TURNS * finds[best].norm()).view(SEARCHES, -1).any(1)
    others = explained.view(SEARCHES, -1)[~agree]
    runner_up = float(others.max()) if len(others) else 0.0
    return Turns(finds[best] * to_the_left.sign(), float(explained[best]), int(agree.sum()), runner_up)


def _refined(turn: Float[Tensor, "A"], alike: Float[Tensor, "pairs A"]) -> Float[Tensor, "A"]:
    """Turns near these that close most loops, to a degree."""
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
    """A robust mean of how far these counts of actions turn from full turns."""
    return (wrapped(counts @ turn) / SAME_HEADING).square().log1p().mean()


def path_of(
    a: Actions, turn: Float[Tensor, "A"], move: Float[Tensor, "2 A"], keep: float
) -> Float[Tensor, "batch time 2"]:
    """Positions by moves along the heading, with a fraction of the velocity kept in the world's frame."""
    return _unit_paths(a, turn, keep) @ move.flatten()


def _unit_paths(a: Actions, turn: Float[Tensor, "A"], keep: float) -> Float[Tensor, "batch time 2 moves"]:
    """Positions if one number of `move` is 1 and all others are 0, for each number: positions are linear in them."""
    heading = (a @ turn).cumsum(1) - a @ turn  # a step is made along the heading before its turn
    c, s = heading.cos(), heading.sin()
    ahead, aside = torch.stack([c, s], -1)[..., None], torch.stack([-s, c], -1)[..., None]
    push = torch.cat([ahead * a[..., None, :], aside * a[..., None, :]], dim=-1)
    since = torch.arange(a.shape[1], device=a.device)
    since = since[:, None] - since
    carried = torch.where(since >= 0, (1 - keep ** (since.clamp_min(0) + 1)) / (1 - keep), 0)  # 1 + keep + keep² + ...
    return torch.einsum("ts,bscm->btcm", carried.to(push), push)


def find_moves(walks: Walks, turn: Float[Tensor, "A"], keep: float, clips: int = 512) -> tuple[Tensor, float]:
    """The moves of actions that bring alike views together relative to random pairs, and the distance that remains.

    The least sum of distances, not of squares, by reweighting: some views are alike by chance.
    """
    walks = walks.part(slice(clips))
    unit = _unit_paths(walks.a, turn, keep)
    alike, any_two = (pairs.between(unit).double() for pairs in (walks.alike, walks.any_two))
    spread, axes = torch.linalg.eigh(torch.einsum("pcf,pcg->fg", any_two, any_two) / len(any_two))
    told = spread > 1e-4 * spread[-1]  # moves that change nothing at one heading cannot be told
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
    """These moves, turned so that a step to the left is one by which what is seen moves to the right, if any does."""
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
    """Positions."""
    return motion.unroll(motion.start(len(a)), a)[..., :2]


@torch.no_grad()
def _apart(walks: Walks, path: Float[Tensor, "clips time 2"]) -> Float[Tensor, "pairs"]:
    """Distances of alike views, relative to the root mean square distance of any two views of one heading."""
    usual = walks.any_two.between(path).square().sum(-1).mean().sqrt()
    return walks.alike.between(path).norm(dim=-1) / usual + NEAR


def _closed(walks: Walks, path: Float[Tensor, "clips time 2"]) -> float:
    """Their median."""
    return float(_apart(walks, path).median()) - NEAR


def find_body(
    walks: Walks, others: Walks, turn: Float[Tensor, "A"], move: Float[Tensor, "2 A"], keep: float, updates: int
) -> PushedBody:
    """A body that keys push, fitted to views that are alike; with other turns where those of `others` ask for them."""
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

    Distances count in units of those of any two views of one heading, so shrinking all of them gains nothing. Turns
    hardly change: views are alike within a degree, but over long loops positions tell more.
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
    """How wide distances of alike views spread: exp(b) unlike^c, to be learned."""
    return torch.tensor([-0.5, 0.7], device=device).requires_grad_()


def _misfit(states: States, walks: Walks, turn: Float[Tensor, "A"], tail: Float[Tensor, "2"]) -> Float[Tensor, ""]:
    """Minus the log density of the distances of alike views (a Cauchy distribution in the plane), and what they do not
    tell: the unit of length, and which way is ahead."""
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
    """How much of a frame's shift to the right goes with each unit of a step ahead, and of one to the left."""
    c, s = heading.cos(), heading.sin()
    x, y = step.unbind(-1)
    own = torch.stack([c * x + s * y, c * y - s * x], dim=-1)
    least = 1e-4 * STEP**2 * max(1, len(own)) * torch.eye(2, device=own.device)  # who never steps aside tells nothing
    return torch.linalg.solve(own.mT @ own + least, own.mT @ shift)


def _beside(step: Float[Tensor, "batch less 2"], heading: Float[Tensor, "batch time"]) -> Float[Tensor, "2"]:
    """How far beside the agent the point lies whose steps these are, ahead and to the left.

    Such a point goes round a circle when the agent turns, so no two views of one heading tell it from the agent. But
    many turns are made on the spot: the least steps count most.
    """
    c, s = torch.stack([heading.cos(), heading.sin()]).diff(dim=-1)
    x, y = step.unbind(-1)
    weight = 1 / (step.detach().square().sum(-1) + (0.2 * STEP) ** 2)
    moved = torch.stack([(weight * (c * x + s * y)).sum(), (weight * (c * y - s * x)).sum()])
    return moved / (weight * (c.square() + s.square())).sum().clamp_min(1e-6)
