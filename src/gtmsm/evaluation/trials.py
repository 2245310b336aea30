"""What a model that recognises places is asked to do, and how well it does it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.data.record import as_clip, record
from gtmsm.evaluation import metrics
from gtmsm.evaluation.calibration import reliability
from gtmsm.evaluation.survey import Survey
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.memory import Memory
from gtmsm.pose import space_of
from gtmsm.tensors import gather
from gtmsm.worlds.slip import Slipping
from gtmsm.worlds.walkers import Walker
from gtmsm.worlds.world import World

FRAMES_AT_ONCE = 2**14
"""Long walks come in portions of as many frames."""

CLOSURE = 64
"""Steps after which loops are closed, where that is scored."""

InWorld: TypeAlias = Callable[[Tensor], Tensor]
"""Poses of the model, in the world's units."""


@dataclass(frozen=True)
class Trials:
    """What is asked of a model in one kind of world."""

    model: WorldModel
    survey: Survey
    tau: int
    in_world: InWorld

    def long_walks(
        self, world: World, walker: Walker, generator: torch.Generator, walks: int, steps: int
    ) -> dict[str, Any]:
        """Errors at every step of long walks from a known start, by landmarks and by dead reckoning.

        And on the map that is left in the end, once loops are closed: those poses know what was seen after them.
        """
        model = self.model
        assert model.landmarks is not None
        parts: dict[str, list[dict[str, Tensor]]] = {}
        for n in _portions(walks, max(1, FRAMES_AT_ONCE // steps)):
            clip = record(world, walker, n, steps, generator)
            true = _from(clip.true_start, clip.true_pose)
            ways = {
                "landmarks": model.follow(clip.x, clip.a, closure=0).mean,
                "dead_reckoning": model.motion.unroll(model.motion.start(n), clip.a),
            }
            if model.landmarks.settings.form == "bayes":
                ways["loops_closed"] = model.follow(clip.x, clip.a, closure=CLOSURE).mean
            for name, way in ways.items():
                errors = self.survey.errors(self.in_world(way), true)
                parts.setdefault(name, []).append(errors | {"within": self.survey.within(errors).float()})
        return {name: _over_time(_joined(errors)) for name, errors in parts.items()}

    def unknown_start(
        self, world: World, walker: Walker, generator: torch.Generator, walks: int, agents: int, steps: int
    ) -> dict[str, Any]:
        """How often agents that were put anywhere into a memorised place know where they are, after each step."""
        model, survey = self.model, self.survey
        clip = record(world, walker, walks, self.tau, generator)
        memory, _ = model.memorise(clip.x, clip.a)
        rights, knowns, owns = [], [], []
        for _ in range(agents):
            survey.move_in(generator)
            if isinstance(world, Slipping):
                world.slip_by(generator)
            again = as_clip(world, walker(world, steps, generator))
            belief = model.follow(again.x, again.a, memory, model.anywhere(len(again.a)))
            believed = self.in_world(belief.mean)
            errors = survey.errors(believed, _from(clip.true_start, again.true_pose))
            rights.append(survey.within(errors))
            knowns.append(survey.same_place(clip.true_pose, again.true_pose).any(-1))
            owns.append(self._on_own_map(memory, clip, again, believed))
        right, known, own = torch.cat(rights), torch.cat(knowns), torch.cat(owns)
        scores: dict[str, Any] = {}
        for suffix, some in (("", right), ("_at_memorised", right[known[:, -1]])):
            by_step = _rounded(some.double().mean(0)) if len(some) else None
            scores |= {
                f"trials{suffix}": len(some),
                f"within{suffix}": by_step[-1] if by_step else None,
                f"within{suffix}_by_step": by_step,
            }
        on_own_map = metrics.by_step(own, known)
        return scores | {"within_on_own_map": on_own_map[-1], "within_on_own_map_by_step": on_own_map}

    def _on_own_map(
        self, memory: Memory, past: Clip, again: Clip, believed: Float[Tensor, "n time D"]
    ) -> Bool[Tensor, "n time"]:
        """Whether agents that are back at a memorised place believe to be where their own map has it."""
        n, time, size = believed.shape
        then, now = past.true_pose[:, None], again.true_pose[:, :, None]
        shape = n, time, past.steps, size
        own = self.in_world(self.model.motion.pose_at(memory.place.mean))
        space = self.model.motion.space
        expected = space.step(own[:, None], space.displacement(then, now))
        errors = self.survey.errors(believed[:, :, None].expand(shape).flatten(1, 2), expected.flatten(1, 2))
        near = self.survey.within(errors).unflatten(1, (time, past.steps))
        return (near & self.survey.same_place(past.true_pose, again.true_pose)).any(-1)

    def localise(
        self, world: World, walker: Walker, generator: torch.Generator, walks: int, pictures: int
    ) -> dict[str, Any]:
        """Single pictures of later steps, and of other places: is the first place right, and is it known to be?"""
        model, survey, tau, space = self.model, self.survey, self.tau, self.model.motion.space
        assert model.landmarks is not None
        later = max(tau, pictures)
        clip = record(world, walker, walks, tau + later, generator)
        past, true = clip[:, :tau], _from(clip.true_start, clip.true_pose)
        memory, _ = model.memorise(past.x, past.a)
        stranger, exists = strangers(survey.where)
        right, on_own_map, claimed, sure, seen, sure_of_strangers = [], [], [], [], [], []
        own_map = self.in_world(model.motion.pose_at(memory.place.mean))
        for t in torch.linspace(tau, tau + later - 1, pictures).long().tolist():
            now = slice(t, t + 1)
            found = model.localise(memory, clip.x[:, now])
            place, entry = self.in_world(found.pose[:, :1]), found.entry[:, :1]
            right.append(survey.within(survey.errors(place, true[:, now]))[:, 0])
            # A place may be recognised although the map is wrong there: how does it lie from what was recognised?
            known, truly = gather(own_map, entry), gather(true, entry)
            errors = survey.errors(space.displacement(known, place), space.displacement(truly, true[:, now]))
            on_own_map.append(survey.within(errors)[:, 0])
            claimed.append(survey.as_claimed(errors, model.landmarks.settings)[:, 0])
            sure.append(found.known)
            seen.append(survey.same_place(past.true_pose, clip.true_pose[:, now]).any(-1)[:, 0])
            sure_of_strangers.append(model.localise(memory, clip.x[stranger, now]).known[exists])
        return summary(*(torch.cat(part) for part in (right, on_own_map, claimed, sure, seen, sure_of_strangers)))


def summary(
    right: Bool[Tensor, "n"],
    on_own_map: Bool[Tensor, "n"],
    claimed: Bool[Tensor, "n"],
    sure: Float[Tensor, "n"],
    seen: Bool[Tensor, "n"],
    sure_of_strangers: Float[Tensor, "m"],
) -> dict[str, Any]:
    """Of pictures: was the first place right, from the true start or from what was recognised, and how sure was that?

    How sure is judged by `claimed`: right from what was recognised, as near as the model claims.
    """
    never = torch.zeros_like(sure_of_strangers, dtype=torch.bool)
    known, is_stranger_known = sure > 0.5, sure_of_strangers > 0.5
    return {
        "visited": int(seen.sum()),
        "top1_visited": metrics.share(right, seen),
        "top1_visited_on_own_map": metrics.share(on_own_map, seen),
        "known_visited": metrics.share(known, seen),
        "unvisited": int((~seen).sum()),
        "top1_unvisited": metrics.share(right, ~seen),
        "known_unvisited": metrics.share(known, ~seen),
        "foreign": len(never),
        "false_known": metrics.share(is_stranger_known, ~never),
        "reliability": reliability(torch.cat([sure, sure_of_strangers]), torch.cat([claimed, never])),
    }


def strangers(place: Int[Tensor, "n"]) -> tuple[Int[Tensor, "n"], Bool[Tensor, "n"]]:
    """For each walk the next one in another place, and whether there is any."""
    n = len(place)
    ahead = (torch.arange(n, device=place.device)[:, None] + torch.arange(n, device=place.device)) % n
    differs = place[ahead] != place[:, None]
    return ahead.gather(1, differs.byte().argmax(1, keepdim=True))[:, 0], differs.any(1)


def _portions(total: int, at_once: int) -> Iterator[int]:
    """`total` in parts of at most `at_once`."""
    for begin in range(0, total, at_once):
        yield min(at_once, total - begin)


def _from(start: Float[Tensor, "n D"], pose: Float[Tensor, "n time D"]) -> Float[Tensor, "n time D"]:
    """Poses as they lie from a start."""
    return space_of(pose.shape[-1]).displacement(start[:, None], pose)


def _joined(parts: list[dict[str, Tensor]]) -> dict[str, Float[Tensor, "walks time"]]:
    """Portions as one."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _over_time(errors: dict[str, Float[Tensor, "walks time"]]) -> dict[str, Any]:
    """Means at every step; of errors also that of the last step, of being right that of all steps."""
    scores: dict[str, Any] = {}
    for name, error in errors.items():
        curve = error.double().mean(0)
        scores |= {name: (curve.mean() if name == "within" else curve[-1]).item(), f"{name}_by_step": _rounded(curve)}
    return scores


def _rounded(curve: Float[Tensor, "time"]) -> list[float]:
    """Numbers as precise as anybody reads them."""
    return [round(value, 5) for value in curve.tolist()]
