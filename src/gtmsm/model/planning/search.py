"""Many sequences of actions at once, unrolled through the learned motion; the best are varied, round after round."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.config import require
from gtmsm.model.checks import require_here, require_memory
from gtmsm.model.memory import Memory
from gtmsm.model.motion import Motion
from gtmsm.model.planning.goal import Goal, find_goal
from gtmsm.model.planning.terrain import PlanConfig, Terrain, Walked, brake, turns
from gtmsm.tensors import Belief, require_generator

if TYPE_CHECKING:
    from gtmsm.model.gtmsm import WorldModel

PORTION = 128
"""Sequences that are tried first: from then on it is known what has a chance."""
PART = 16
"""Steps that are unrolled before sequences without a chance are left."""
HASTE = 3.0
"""Steps that may be spent to come one step nearer: getting there comes before getting there fast."""
SLACK = 3.0
"""Steps by which the way that is missing may be overestimated: a goal is as wide as what counts as there."""


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


@dataclass
class _Course:
    """The ground that sequences of actions are tried on, from one state to one goal."""

    motion: Motion
    terrain: Terrain
    togo: Float[Tensor, "squares"]
    goal: Float[Tensor, "D"]
    start: Float[Tensor, "1 S"]
    table: Float[Tensor, "m A"]

    def run(self, sequence: Int[Tensor, "n time"], begin: "_Begin", bound: float) -> tuple[Tensor, Tensor, Tensor]:
        """The least cost of each sequence, after how many steps, and whether that is at the goal.

        Steps behind, plus those that are missing. A sequence is tried from where it begins to differ from what was
        tried before, up to where it leaves open ground, or cannot cost less than `bound` any more.
        """
        count, limit = sequence.shape
        least, when = self.start.new_full((count,), math.inf), torch.zeros_like(sequence[:, 0])
        arrived = torch.zeros(count, dtype=torch.bool, device=sequence.device)
        left = (begin.time < limit).nonzero()[:, 0]
        time, state, steps, opened = (part[left] for part in begin)
        while len(left):
            ahead = time[:, None] + torch.arange(min(PART, limit - int(time.min())), device=time.device)
            states = self.motion.unroll(state, self.actions(sequence[left[:, None], ahead.clamp(max=limit - 1)]))
            seen = self.judge(states, steps, opened)
            lowest, at = seen.cost.masked_fill(ahead >= limit, math.inf).min(1)
            better = lowest < least[left]
            which, at = left[better], at[better]
            least[which], when[which] = lowest[better], time[better] + at + 1
            arrived[which] = seen.there[better].gather(1, at[:, None])[:, 0]
            time, state, steps, opened = time + states.shape[1], states[:, -1], seen.steps[:, -1], seen.opened[:, -1]
            on = ~seen.lost[:, -1] & (steps + seen.fewest[:, -1] - SLACK < bound) & (time < limit)
            left, time, state, steps, opened = left[on], time[on], state[on], steps[on], opened[on]
        return least, when, arrived

    def actions(self, sequence: Int[Tensor, "n time"]) -> Float[Tensor, "n time A"]:
        """What numbers stand for; sequences lie side by side in memory, as those who unroll many of them want it."""
        return self.table.T[:, sequence.T.contiguous()].permute(2, 1, 0)

    def judge(self, path: Float[Tensor, "n time S"], steps: Float[Tensor, "n"], opened: Bool[Tensor, "n"]) -> "_Judged":
        """What the poses of paths cost, where `steps` are behind already and open ground was reached or not."""
        terrain = self.terrain
        rest = terrain.rest(path)
        at = terrain.squares(rest)
        closed = terrain.barred[at]
        if terrain.pace.coast:
            closed |= terrain.barred[terrain.squares(path[..., :2])]
        # Who starts on barred ground may cross it, but not come back to it.
        been = (~closed).cummax(1).values | opened[:, None]
        lost = (closed & been).cummax(1).values
        missing = fewest = self.togo[at]
        away = (rest - self.goal[:2]).square().sum(-1).sqrt_() / terrain.near
        there = away <= 1
        if terrain.pace.turn and len(self.goal) > 2:
            twist = turns(path[..., 2] - self.goal[2])
            there &= twist <= terrain.near_turn
            off = twist / terrain.pace.turn
            # One can turn while walking, but for the last of it.
            fewest = torch.maximum(missing, off)
            missing = fewest + 0.3 * torch.minimum(missing, off)
            away = away + twist / terrain.near_turn
        there &= ~lost
        walked = steps[:, None] + terrain.price[at].cumsum(1)
        # Of two ways of one length, that which ends nearer to the middle.
        cost = walked + torch.where(there, 0.5 * away, HASTE * missing + 1)
        return _Judged(cost.masked_fill(lost, math.inf), there, walked, lost, been, fewest)

    def trace(self, sequence: Int[Tensor, "n time"]) -> tuple[Float[Tensor, "n after S"], "_Judged"]:
        """All states of sequences, the start among them, and what they cost."""
        start = self.start.expand(len(sequence), -1)
        path = torch.cat([start[:, None], self.motion.unroll(start, self.actions(sequence))], 1)
        return path, self.judge(path, start.new_full((len(start),), -1.0), start.new_zeros(len(start)).bool())


class _Judged(NamedTuple):
    """What is known of each pose of a path."""

    cost: Float[Tensor, "n time"]
    there: Bool[Tensor, "n time"]
    steps: Float[Tensor, "n time"]
    """Behind, by their price."""
    lost: Bool[Tensor, "n time"]
    """Whether open ground has been left."""
    opened: Bool[Tensor, "n time"]
    """Whether it was reached."""
    fewest: Float[Tensor, "n time"]
    """Steps that are missing at the least."""


class _Begin(NamedTuple):
    """Where sequences are to be tried from: after `time` steps, which are known."""

    time: Int[Tensor, "n"]
    state: Float[Tensor, "n S"]
    steps: Float[Tensor, "n"]
    opened: Bool[Tensor, "n"]


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
    coasts = motion.state_size > motion.pose_size and brake(motion, table)[1]
    if coasts:  # an agent may also do nothing
        table = torch.cat([table, torch.zeros_like(table[:1])])
    terrain = Terrain.of(model, memory, walked, settings, table)
    there, stride = find_goal(model, memory, goal, any_heading=True), terrain.pace.stride
    away = float((terrain.visited - there.pose[:2]).norm(dim=-1).min())

    def unknown(why: str) -> Plan:
        nothing, why = table[:0], f"I do not know this place: {why}"
        return Plan(nothing, (), start[:0], there, False, 0.0, why, terrain.near, lambda: nothing)

    if there.known < settings.doubt:
        return unknown(f"the picture was seen with probability {there.known:.2f}, and {settings.doubt:g} is asked for")
    if away > max(terrain.margin, 3 * stride if motion.walls else 0):
        return unknown(f"the goal is {away / stride:.1f} steps away from anything memorised")
    course = _Course(motion, terrain, terrain.steps_to(there.pose), there.pose, start, table)
    first = None if before is None else torch.tensor(before.choices, dtype=torch.long, device=start.device)
    first = None if first is None else first % len(table)
    best, arrived = _evolve(course, settings, first, generator)
    actions = table[best]
    poses = motion.unroll(start, actions[None])[0] if len(best) else start[:0]
    numbers = tuple(-1 if coasts and i == len(table) - 1 else i for i in best.tolist())
    sure = there.known if arrived else 0.0
    reason = "" if arrived else f"no way found within {settings.horizon} steps; these lead as near as was found"

    def show() -> Tensor:
        return model.imagine(memory, here, actions[None]).frames[0]

    return Plan(actions, numbers, poses, there, arrived, sure, reason, terrain.near, show)


def _evolve(
    course: _Course, settings: PlanConfig, first: Int[Tensor, "steps"] | None, generator: torch.Generator
) -> tuple[Int[Tensor, "steps"], bool]:
    """The best sequence that was found, up to where it is best, and whether it arrives.

    Steps cost: no sequence is tried further than what has a chance to be kept, or than the best that arrives has gone.
    """
    count, limit, bound, device = settings.candidates, settings.horizon, math.inf, course.start.device
    ideas = _held(count, limit, len(course.table), generator)
    fresh = ideas.clone()
    if first is not None:
        fresh[0, : len(first)] = first[:limit]
    path, known = course.trace(ideas[:1, :0])
    best = _Best(fresh[:1], known.cost[:, 0], torch.zeros_like(fresh[:1, 0]), known.there[:, 0])
    begin = _Begin(best.end, path[:, 0], known.steps[:, 0], known.opened[:, 0])
    begin = _Begin(*(part.expand(count, *part.shape[1:]) for part in begin))
    for number in range(settings.rounds):
        if number:
            rank = (len(best.cost) * torch.rand(count, generator=generator, device=device).square()).long()
            shuffled = ideas[torch.randperm(count, generator=generator, device=device), :limit]
            parent = best.sequence[rank]
            fresh = _varied(parent, best.end[rank], shuffled, generator)
            alike = (fresh == parent).cumprod(1).sum(1)
            time = torch.where(alike == limit, limit, torch.minimum(alike, best.end[rank]))
            path, known = course.trace(best.sequence)
            begin = _Begin(time, path[rank, time], known.steps[rank, time], known.opened[rank, time])
        for few in (slice(PORTION), slice(PORTION, count)) if number == 0 else (slice(count),):
            some = fresh[few, :limit]
            found = course.run(some, _Begin(*(part[few] for part in begin)), bound)
            best = best.or_better(_Best(some, *found), settings.elite)
            if len(best.cost) == settings.elite:
                bound = float(best.cost[-1])
            most = float(best.cost[0]) if bool(best.arrived[0]) else bound  # every step costs one or more
            limit = min(limit, int(most) + 1) if math.isfinite(most) else limit
            best = replace(best, sequence=best.sequence[:, :limit], end=best.end.clamp(max=limit))
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
