"""Many sequences of actions at once, unrolled through the learned motion; the best are varied, round after round."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.config import require
from gtmsm.model.checks import require_here, require_memory
from gtmsm.model.memory import Memory
from gtmsm.model.motion import Motion
from gtmsm.model.planning.goal import Goal, find_goal
from gtmsm.model.planning.terrain import PlanConfig, Terrain, Walked, turns
from gtmsm.tensors import Belief, require_generator

if TYPE_CHECKING:
    from gtmsm.model.gtmsm import WorldModel

PORTION = 256
"""Sequences that are unrolled together on a CPU, where what is computed of them fits into the cache."""
HASTE = 3.0
"""Steps that may be spent to come one step nearer: getting there comes before getting there fast."""


@dataclass(frozen=True)
class Plan:
    """What to do, where it leads, and how sure that is."""

    actions: Float[Tensor, "steps A"]
    choices: tuple[int, ...]
    """The number of each action among those to choose from; -1: none, where the agent coasts."""
    poses: Float[Tensor, "steps S"]
    """Where each action leads."""
    goal: Goal
    found: bool
    """Whether the last pose is the goal. If not, the actions lead as near as was found, or there are none."""
    confidence: float
    """Probability that the goal is what was asked for; 0 where no way was found."""
    reason: str
    """In words, why no way was found; empty where one was."""
    near: float
    """Distance from the goal that counts as there, in units of poses."""
    show: Callable[[], Tensor] = field(repr=False)

    @cached_property
    def frames(self) -> Float[Tensor, "steps channel height width"]:
        """What will be seen on the way; imagined when it is asked for."""
        return self.show()


def _cost(
    terrain: Terrain, togo: Float[Tensor, "squares"], goal: Float[Tensor, "D"], path: Float[Tensor, "n time S"]
) -> tuple[Tensor, Tensor, Tensor]:
    """The least cost of each sequence, after how many steps, and whether that is at the goal.

    Steps behind, plus those that are missing; a sequence counts up to where it would leave open ground.
    """
    rest = terrain.rest(path)
    at = terrain.squares(rest)
    closed = terrain.barred[at]
    if terrain.pace.coast:
        closed |= terrain.barred[terrain.squares(path[..., :2])]
    # Who starts on barred ground may cross it, but not come back to it.
    closed &= (~closed).cummax(1).values
    lost = closed.cummax(1).values
    missing = togo[at]
    away = (rest - goal[:2]).square().sum(-1).sqrt_() / terrain.near
    there = away <= 1
    if terrain.pace.turn:
        twist = turns(path[..., 2] - goal[2])
        there &= twist <= terrain.near_turn
        off = twist / terrain.pace.turn
        # One can turn while walking, but for the last of it.
        missing = torch.maximum(missing, off) + 0.3 * torch.minimum(missing, off)
        away = away + twist / terrain.near_turn
    there &= ~lost
    steps = terrain.price[at].cumsum(1) - 1
    # Of two ways of one length, that which ends nearer to the middle.
    cost = steps + torch.where(there, 0.5 * away, HASTE * missing + 1)
    least, when = cost.masked_fill(lost, math.inf).min(1)
    return least, when, there.gather(1, when[:, None])[:, 0]


@torch.no_grad()
def plan(
    model: "WorldModel",
    memory: Memory,
    here: Belief,
    goal: Tensor,
    walked: Walked | None = None,
    settings: PlanConfig | None = None,
    choices: Float[Tensor, "m A"] | None = None,
    before: Plan | None = None,
    generator: torch.Generator | None = None,
) -> Plan:
    """See `WorldModel.plan`."""
    settings = settings or PlanConfig()
    require_memory(model, memory)
    require_here(model, here)
    require(len(memory) > 0, "this memory is empty; memorise a walk before you plan another")
    require(memory.batch == len(here.mean) == 1, "planning takes one memory and one place; give memory[:1], here[:1]")
    start, memory, motion = here.mean, memory.snapshot(), model.motion
    require_generator(generator, start.device)
    generator = generator or torch.Generator(start.device).manual_seed(0)
    table = torch.eye(model.action_size).to(start) if choices is None else choices.to(start)
    coasts = motion.state_size > motion.pose_size
    if coasts:
        table = torch.cat([table, torch.zeros_like(table[:1])])
    terrain = Terrain.of(model, memory, walked, settings, table)
    there, stride = find_goal(model, memory, goal), terrain.pace.stride
    away = float((terrain.visited - there.pose[:2]).norm(dim=-1).min())

    def unknown(why: str) -> Plan:
        nothing, why = table[:0], f"I do not know this place: {why}"
        return Plan(nothing, (), start[:0], there, False, 0.0, why, terrain.near, lambda: nothing)

    if there.known < settings.doubt:
        return unknown(f"the picture was seen with probability {there.known:.2f}, and {settings.doubt:g} is asked for")
    if away > max(terrain.margin, 3 * stride if motion.walls else 0):
        return unknown(f"the goal is {away / stride:.1f} steps away from anything memorised")
    togo = terrain.steps_to(there.pose)

    def judge(states: Float[Tensor, "n time S"]) -> tuple[Tensor, Tensor, Tensor]:
        return _cost(terrain, togo, there.pose, torch.cat([start.expand(len(states), -1)[:, None], states], 1))

    first = None if before is None else torch.tensor(before.choices, dtype=torch.long, device=start.device)
    first = None if first is None else first % len(table)
    best, arrived = _evolve(motion, judge, start, table, settings, first, generator)
    actions = table[best]
    poses = motion.unroll(start, actions[None])[0] if len(best) else start[:0]
    numbers = tuple(-1 if coasts and i == len(table) - 1 else i for i in best.tolist())
    sure = there.known if arrived else 0.0
    reason = "" if arrived else f"no way found within {settings.horizon} steps; these lead as near as was found"

    def show() -> Tensor:
        return model.imagine(memory, here, actions[None]).frames[0]

    return Plan(actions, numbers, poses, there, arrived, sure, reason, terrain.near, show)


def _evolve(
    motion: Motion,
    judge: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]],
    start: Float[Tensor, "1 S"],
    table: Float[Tensor, "m A"],
    settings: PlanConfig,
    first: Int[Tensor, "steps"] | None,
    generator: torch.Generator,
) -> tuple[Int[Tensor, "steps"], bool]:
    """The best sequence that was found, up to where it is best, and whether it arrives.

    Steps cost: no sequence is unrolled further than the best that arrives has gone.
    """
    count, limit = settings.candidates, settings.horizon
    portion = PORTION if start.device.type == "cpu" else count
    ideas = _held(count, limit, len(table), generator)
    fresh = ideas.clone()
    if first is not None:
        fresh[0, : len(first)] = first[:limit]
    best = _Best(fresh[:0], start.new_zeros(0), fresh[:0, 0], fresh[:0, 0].bool())
    for _ in range(settings.rounds):
        if len(best.cost):
            rank = (len(best.cost) * torch.rand(count, generator=generator, device=start.device).square()).long()
            shuffled = ideas[torch.randperm(count, generator=generator, device=start.device), :limit]
            fresh = _varied(best.sequence[rank], best.end[rank], shuffled, generator)
        for some in fresh.split(portion):
            some = some[:, :limit]
            states = motion.unroll(start.expand(len(some), -1), table[some])
            best = best.or_better(_Best(some, *judge(states)), settings.elite)
            if bool(best.arrived[0]):
                limit = min(limit, int(best.cost[0]) + 1)
                best = replace(best, sequence=best.sequence[:, :limit])
    return best.sequence[0, : int(best.end[0])], bool(best.arrived[0])


@dataclass(frozen=True)
class _Best:
    """Sequences, their costs, after how many steps these are reached, and whether that is at the goal."""

    sequence: Int[Tensor, "n time"]
    cost: Float[Tensor, "n"]
    end: Int[Tensor, "n"]
    arrived: Bool[Tensor, "n"]

    def or_better(self, other: "_Best", kept: int) -> "_Best":
        """The best of both, best first."""
        steps = other.sequence.shape[1]
        pairs = zip(vars(replace(self, sequence=self.sequence[:, :steps])).values(), vars(other).values(), strict=True)
        sequence, cost, end, arrived = (torch.cat(pair) for pair in pairs)
        cost, best = cost.topk(min(kept, len(cost)), largest=False)
        return _Best(sequence[best], cost, end[best].clamp(max=steps), arrived[best])


def _held(count: int, steps: int, actions: int, generator: torch.Generator) -> Int[Tensor, "count steps"]:
    """Random actions, each held for a while: for one step on average in some sequences, for sixteen in others.

    Each sequence has three favourites, so that some go straight on or to and fro between two directions.
    """
    device = generator.device
    draw = torch.rand(3, count, steps, generator=generator, device=device)
    favourite = (actions * torch.rand(count, 3, generator=generator, device=device)).long()
    chosen = favourite.gather(1, (3 * draw[0]).long())
    chosen = torch.where(draw[0].frac() * 3 % 1 < 0.15, (actions * draw[2]).long(), chosen)
    hold = 16 ** torch.rand(count, 1, generator=generator, device=device)
    time = torch.arange(steps, device=device)
    since = torch.where(draw[1] < 1 / hold, time, 0).cummax(1).values
    return chosen.gather(1, since)


def _varied(
    parent: Int[Tensor, "n time"], end: Int[Tensor, "n"], fresh: Int[Tensor, "n time"], generator: torch.Generator
) -> Int[Tensor, "n time"]:
    """At a random step some actions are cut out and some fresh ones put in, or either; in half of them twice."""
    steps = parent.shape[1]
    time = torch.arange(steps, device=parent.device)
    made = parent
    for _ in range(2):
        chance = torch.rand(4, len(parent), 1, generator=generator, device=parent.device)
        at = (chance[0] * (end[:, None] + 1)).long()
        cut, put = ((-4 * part.log()).long() * (part < 0.8) for part in chance[1:3])
        later = time - put + cut
        source = torch.where(time < at, time, torch.where(time < at + put, steps + time, later))
        source = torch.where(source >= 2 * steps, steps + time, source)
        source = torch.where((time >= at + put) & (later >= steps), steps + time, source)
        once = torch.cat([made, fresh], 1).gather(1, source)
        made = once if made is parent else torch.where(chance[3] < 0.5, once, made)
    return made
