"""Search for plans: sequences of actions are unrolled through the learned motion, and the best are varied in rounds."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from gtmsm.config import require
from gtmsm.errors import shown
from gtmsm.model.checks import require_here, require_memory
from gtmsm.model.memory import Memory
from gtmsm.model.planning.beam import grown
from gtmsm.model.planning.course import Begin, Course, Found, Part, Path
from gtmsm.model.planning.goal import Goal, find_goal
from gtmsm.model.planning.obstacles import Walked
from gtmsm.model.planning.terrain import PlanConfig, Terrain
from gtmsm.tensors import Belief, require_generator

if TYPE_CHECKING:
    from gtmsm.model.gtmsm import WorldModel

PORTION = 128
"""Number of sequences that are unrolled first: the worst one kept bounds the cost of all that follow."""


@dataclass(frozen=True)
class Plan:
    """Actions that lead to a goal, the poses on the way, and the confidence in them."""

    actions: Float[Tensor, "steps A"]
    choices: tuple[int, ...]
    """Index of each action among those to choose from; -1: no action, the agent coasts."""
    poses: Float[Tensor, "steps S"]
    """Where each action leads."""
    goal: Goal
    found: bool
    """Whether the last pose is the goal. If not, the actions lead as near as was found, or there are none."""
    confidence: float
    """Probability that the goal is what was asked for; 0 if no way was found."""
    reason: str
    """In words, why no way was found; empty if one was."""
    near: float
    """Distance within which the goal counts as reached, in units of the pose space."""
    show: Callable[[], Tensor] = field(repr=False)

    @cached_property
    def frames(self) -> Float[Tensor, "steps channel height width"]:
        """The predicted frames on the way, imagined when they are first read."""
        return self.show()


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
    start, memory, motion = here.mean.detach(), memory.snapshot(), model.motion
    require_generator(generator, start.device)
    generator = generator or torch.Generator(start.device).manual_seed(0)
    table = torch.eye(model.action_size).to(start) if choices is None else choices.detach().to(start)
    fits = table.dim() == 2 and table.shape[1] == model.action_size and len(table) > 0
    require(fits, f"choices is {shown(choices)}; give actions of {model.action_size} numbers each, and at least 1")
    terrain = Terrain.of(model, memory, walked, settings, table)
    if terrain.pace.idles:  # an agent may also do nothing
        table = torch.cat([table, torch.zeros_like(table[:1])])
    there, stride = find_goal(model, memory, goal, any_heading=True), terrain.pace.stride
    away = float((terrain.visited - there.pose[:2]).norm(dim=-1).min())

    def nothing() -> Tensor:
        return start.new_zeros(0, *model.frame_shape)

    def unknown(why: str) -> Plan:
        why = f"I do not know this place: {why}"
        return Plan(table[:0], (), start[:0], there, False, 0.0, why, terrain.near, nothing)

    if there.known < settings.least_known:
        asked = f"{settings.least_known:g} is asked for"
        return unknown(f"the picture was seen with probability {there.known:.2f}, and {asked}")
    if away > max(terrain.margin, 3 * stride if motion.walls else 0):
        return unknown(f"the goal is {away / stride:.1f} steps away from anything memorised")
    course = Course(motion, terrain, terrain.steps_to(there.pose), there.pose, start, table)
    first = None if before is None else torch.tensor(before.choices, dtype=torch.long, device=start.device)
    ideas = [] if first is None else [first % len(table)]
    if settings.beam:
        ideas.append(grown(course, settings.horizon, settings.beam))
    best, arrived = _evolve(course, settings, ideas, generator)
    actions = table[best]
    poses = motion.unroll(start, actions[None])[0] if len(best) else start[:0]
    numbers = tuple(-1 if terrain.pace.idles and i == len(table) - 1 else i for i in best.tolist())
    sure = there.known if arrived else 0.0
    reason = "" if arrived else f"no way found within {settings.horizon} steps; these lead as near as was found"

    @torch.no_grad()
    def show() -> Tensor:
        return model.imagine(memory, here, actions[None]).frames[0]

    return Plan(actions, numbers, poses, there, arrived, sure, reason, terrain.near, show if len(best) else nothing)


def _evolve(
    course: Course, settings: PlanConfig, known: list[Int[Tensor, "_"]], generator: torch.Generator
) -> tuple[Int[Tensor, "steps"], bool]:
    """The best sequence found, cut off where its cost is least, and whether it reaches the goal.

    Each step costs at least 1. So no sequence is unrolled beyond the cost of the worst one kept, or of the best one
    that reaches the goal.
    """
    count, limit, bound, device = settings.candidates, settings.horizon, math.inf, course.start.device
    ideas = _held(count, limit, len(course.table), generator)
    fresh = ideas.clone()
    for row, idea in zip(fresh, known, strict=False):
        row[: len(idea)] = idea[:limit]
    path, start = course.begin()
    end = torch.zeros_like(fresh[:1, 0])
    best = _Best(fresh[:1], Found(start.cost[0], end, start.there[0]), Path(*(_longer(x, limit) for x in path)))
    rank = time = torch.zeros(count, dtype=torch.long, device=device)
    for number in range(settings.rounds):
        if number:
            rank = (len(best.sequence) * torch.rand(count, generator=generator, device=device).square()).long()
            order = torch.randperm(count, generator=generator, device=device)
            shuffled = ideas[:, :limit].index_select(0, order)
            parent, end = best.sequence.index_select(0, rank), best.found.end[rank]
            fresh = _varied(parent, end, shuffled, generator)
            alike = (fresh == parent).cumprod(1).sum(1)
            time = torch.where(alike == limit, limit, torch.minimum(alike, end))
        for few in (slice(PORTION), slice(PORTION, count)) if number == 0 else (slice(count),):
            some, after = fresh[few, :limit], Path(*(part[rank[few], time[few]] for part in best.path))
            tried = course.run(some, Begin(time[few], after), bound)
            best = best.or_better(some, rank[few], *tried, settings.elite)
            cost = best.found.cost
            if len(cost) == settings.elite:
                bound = float(cost[-1])
            most = float(cost[0]) if bool(best.found.arrived[0]) else bound  # every step costs one or more
            limit = min(limit, int(most) + 1) if math.isfinite(most) else limit
            best = best.up_to(limit)
    return best.sequence[0, : int(best.found.end[0])], bool(best.found.arrived[0])


@dataclass(frozen=True)
class _Best:
    """Sequences, best first, with their results and their paths from the start, computed up to `end`."""

    sequence: Int[Tensor, "n time"]
    found: Found
    path: Path

    def or_better(
        self, sequence: Int[Tensor, "m time"], parent: Int[Tensor, "m"], found: Found, parts: list[Part], kept: int
    ) -> "_Best":
        """The best of these and of new sequences, given their parents, results and parts of their paths."""
        own, pairs = len(self.sequence), zip((self.sequence, *self.found), (sequence, *found), strict=True)
        both = [torch.cat(pair) for pair in pairs]
        best = both[1].topk(min(kept, len(both[1])), largest=False).indices
        row = (best >= own).nonzero()[:, 0]
        child = best[row] - own
        source = best.scatter(0, row, parent[child])
        # A child shares the path of its parent up to the step where they differ.
        path = Path(*(part.index_select(0, source) for part in self.path))
        rows = torch.full_like(parent, -1).scatter_(0, child, row)
        for which, time, part in parts:
            to = rows.index_select(0, which)
            new = (to >= 0).nonzero()[:, 0]
            if not len(new):
                continue
            then = time[new] + torch.arange(1, len(part.steps) + 1, device=new.device)[:, None]
            for whole, some in zip(path, part, strict=True):
                whole[to[new], then.clamp_(max=whole.shape[1] - 1)] = some.index_select(1, new)
        sequence, *rest = (part.index_select(0, best) for part in both)
        return _Best(sequence, Found(*rest), path)

    def up_to(self, limit: int) -> "_Best":
        """The same, cut off after a number of steps."""
        found = self.found._replace(end=self.found.end.clamp(max=limit))
        return _Best(self.sequence[:, :limit], found, Path(*(part[:, : limit + 1] for part in self.path)))


def _longer(path: Shaped[Tensor, "1 1 *value"], steps: int) -> Shaped[Tensor, "1 after *value"]:
    """The same, padded to a number of steps; padded values are computed later."""
    return path.repeat(1, steps + 1, *[1] * (path.dim() - 2))


def _held(count: int, steps: int, actions: int, generator: torch.Generator) -> Int[Tensor, "count steps"]:
    """Random actions, each held for a while: one step on average in some sequences, up to sixteen in others.

    Each sequence prefers three actions, so that some go straight on, or to and fro between two directions.
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
    """Cut out some actions at a random step, insert some of `fresh`, or both; twice in half of the sequences."""
    steps = parent.shape[1]
    time = torch.arange(steps, device=parent.device)
    made = parent
    for _ in range(2):
        chance = torch.rand(4, len(parent), 1, generator=generator, device=parent.device)
        at = (chance[0] * (end[:, None] + 1)).long()
        cut, put = ((-4 * part.log()).long() * (part < 0.8) for part in chance[1:3])
        later = time + (cut - put)
        source = torch.where((time < at + put) | (later >= steps), steps + time, later)
        source = torch.where(time < at, time, source)
        once = torch.cat([made, fresh], 1).gather(1, source)
        made = once if made is parent else torch.where(chance[3] < 0.5, once, made)
    return made
