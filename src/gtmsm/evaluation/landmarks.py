"""Scores of landmarks (App. D): long walks whose steps slip, unknown initial poses, and single pictures."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.config import config, require
from gtmsm.data.clip import Clip
from gtmsm.data.record import as_clip, record
from gtmsm.evaluation import metrics
from gtmsm.evaluation.examine.examiner import Errors, Examiner, from_start, joined
from gtmsm.evaluation.long_walks import late
from gtmsm.evaluation.progress import Meter
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.memory import Memory
from gtmsm.tensors import gather
from gtmsm.worlds.walkers import Walker
from gtmsm.worlds.world import World

Holds: TypeAlias = Bool[Tensor, "n"]
Sure: TypeAlias = Float[Tensor, "n"]
"""For each picture: `Holds` is whether something holds, `Sure` the probability that its place is known."""
WORK = 6
"""Cost of a step of these trials, for the progress line: the maximum number of ways of `_ways`."""


@config
class LandmarkEvaluationConfig:
    """Trials that score a model with landmarks; other models have no such scores."""

    walks: int = 32
    """Number of held-out walks of each kind; at most the number of clips to score."""
    steps: int = 1000
    """Length, in steps, of the long walks in which actions slip."""
    slips: tuple[float, ...] = (0.0, 0.05, 0.1)
    """Probabilities that an action slips in the long walks."""
    lost: int = 4
    """Number of agents with unknown initial pose in each memorised place."""
    lost_steps: int = 20
    """Number of steps of these agents; their pose estimates are scored after each step."""
    pictures: int = 16
    """Number of single pictures to localise in each memory, and of pictures of other places to reject."""

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        for name in ("walks", "steps", "lost", "lost_steps", "pictures"):
            require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}; give at least 1")
        require(len(self.slips) >= 1, "slips is empty; give at least one probability, 0 for none")
        for value in self.slips:
            require(0 <= value <= 1, f"slips holds {value}; expected probabilities from 0 to 1")


def work_of_trials(settings: LandmarkEvaluationConfig, examiner: Examiner, walker: Walker) -> int:
    """Cost of all trials, for the progress line."""
    clumsy, careful = examiner.clumsy(walker) is not None, examiner.careful(walker) is not None
    long = (len(settings.slips) + clumsy + careful) * settings.steps
    short = 3 * examiner.tau + settings.lost * settings.lost_steps
    return WORK * settings.walks * (long + (1 + careful) * short)


@dataclass(frozen=True)
class Trials:
    """Trials of a model with landmarks in one kind of world."""

    model: WorldModel
    examiner: Examiner
    settings: LandmarkEvaluationConfig
    seed: int
    meter: Meter

    def scores(self, world: World, walker: Walker) -> dict[str, Any]:
        """Scores of all trials, in the places of `world`; they depend on the seed only."""
        examiner, clumsy, careful = self.examiner, self.examiner.clumsy(walker), self.examiner.careful(walker)
        return {
            "slip": [
                {"probability": p} | self.long_walks(examiner.slippery(p), walker, f"walks with {100 * p:g}% slips")
                for p in self.settings.slips
            ],
            "bump": None if clumsy is None else self.long_walks(examiner.world, clumsy, "walks that bump"),
            "careful": None if careful is None else self._careful(world, careful),
            "unknown_start": self.unknown_start(world, walker),
            "localise": self.localise(world, walker),
            "walks": self.settings.walks,
            "memorised": examiner.tau,
            "unit": examiner.unit,
            "right": examiner.right,
        }

    def _careful(self, world: World, walker: Walker) -> dict[str, Any]:
        """Scores of all trials without slips, by a walker that avoids obstacles."""
        long = self.long_walks(self.examiner.world, walker, "walks without bumps")
        return long | {"unknown_start": self.unknown_start(world, walker), "localise": self.localise(world, walker)}

    def _generator(self, i: int) -> torch.Generator:
        """Generator of the walks of one kind of trial; on the CPU, so that walks are the same on every device."""
        return torch.Generator().manual_seed(self.seed + i)

    def long_walks(self, world: World, walker: Walker, name: str) -> dict[str, Any]:
        """Errors at every step of long walks from a known start, by landmarks, dead reckoning and controls.

        For landmarks by Bayes' rule also with loop closure every 64 steps: the pose estimates at each step, from the
        frames so far, and the poses of the final map, which later frames have corrected.
        """
        examiner, steps, generator = self.examiner, self.settings.steps, self._generator(2)
        parts: dict[str, list[Errors]] = {}
        at_once = max(1, 2**14 // steps)  # by frames
        for begin in range(0, self.settings.walks, at_once):
            n = min(at_once, self.settings.walks - begin)
            clip = record(world, walker, n, steps, generator)
            done = self.meter.done
            for way, poses in self._ways(clip):
                errors = examiner.errors(poses, from_start(clip.true_start, clip.true_pose))
                parts.setdefault(way, []).append(errors | {"within": examiner.within(errors).float()})
                self.meter.add(name, n * steps)
            self.meter.add(name, done + WORK * n * steps - self.meter.done)
        return {way: _over_time(errors) for way, errors in parts.items()}

    def _ways(self, clip: Clip) -> Iterator[tuple[str, Float[Tensor, "n time D"]]]:
        """Poses of a clip relative to its start, in the world's units, for each way to infer them."""
        model, in_world = self.model, self.examiner.in_world
        assert model.landmarks is not None
        yield "landmarks", in_world(model.follow(clip.x, clip.a, closure=0).mean)
        yield "dead_reckoning", in_world(model.motion.unroll(model.motion.start(len(clip.a)), clip.a))
        if model.landmarks.settings.form == "bayes":
            seen = model.observe(clip.x, clip.a, closure=64)
            yield "loops_closed", in_world(seen.walk.mean)
            yield "closing_loops", in_world(seen.believed)
        for way, overlaps in (("equal_frames", False), ("equal_overlaps", True)):
            if (cells := self.examiner.by_equal_frames(clip, overlaps)) is not None:
                yield way, cells

    def unknown_start(self, world: World, walker: Walker) -> dict[str, Any]:
        """Fraction of agents with a right pose estimate after each step, in memorised places, initial pose unknown."""
        model, examiner, settings, generator = self.model, self.examiner, self.settings, self._generator(3)
        clip = record(world, walker, settings.walks, examiner.tau, generator)
        memory, _ = model.memorise(clip.x, clip.a)
        found = []
        for _ in range(settings.lost):
            examiner.move_in(generator)
            again = as_clip(world, walker(world, settings.lost_steps, generator))
            belief = model.follow(again.x, again.a, memory, model.anywhere(len(again.a)), closure=0)
            believed = examiner.in_world(belief.mean)
            near = examiner.within(examiner.errors(believed, from_start(clip.true_start, again.true_pose)))
            revisited = examiner.same_place(clip.true_pose, again.true_pose).any(-1)
            found.append((near, revisited, self._on_own_map(memory, clip, again, believed)))
        self.meter.add("unknown starts", WORK * settings.walks * (examiner.tau + settings.lost * settings.lost_steps))
        right, known, own = map(torch.cat, zip(*found, strict=True))
        scores: dict[str, Any] = {}
        for suffix, some in (("", right), ("_at_memorised", right[known[:, -1]])):
            by_step = _rounded(some.double().mean(0)) if len(some) else None
            scores |= {
                f"trials{suffix}": len(some),
                f"within{suffix}": by_step[-1] if by_step else None,
                f"within{suffix}_by_step": by_step,
            }
        on_own_map = metrics.by_step(own, known)
        return scores | {
            # By place, since a wrong map of a place affects all agents in it.
            "within_by_place": right[:, -1].double().view(settings.lost, -1).mean(0).tolist(),
            "within_on_own_map": on_own_map[-1],
            "within_on_own_map_by_step": on_own_map,
        }

    def _on_own_map(
        self, memory: Memory, past: Clip, again: Clip, believed: Float[Tensor, "n time D"]
    ) -> Bool[Tensor, "n time"]:
        """Whether agents at a memorised place infer the pose that this place has on the model's own map."""
        n, time, size = believed.shape
        then, now, shape = past.true_pose[:, None], again.true_pose[:, :, None], (n, time, past.steps, size)
        own = self.examiner.in_world(self.model.motion.pose_at(memory.place.mean))
        space = self.model.motion.space
        expected = space.step(own[:, None], space.displacement(then, now))
        errors = self.examiner.errors(believed[:, :, None].expand(shape).flatten(1, 2), expected.flatten(1, 2))
        near = self.examiner.within(errors).unflatten(1, (time, past.steps))
        return (near & self.examiner.same_place(past.true_pose, again.true_pose)).any(-1)

    def localise(self, world: World, walker: Walker) -> dict[str, Any]:
        """Scores of localising single pictures of later steps, and of rejecting pictures of other places."""
        model, examiner, tau, pictures = self.model, self.examiner, self.examiner.tau, self.settings.pictures
        space = model.motion.space
        assert model.landmarks is not None
        later = max(tau, pictures)
        clip = record(world, walker, self.settings.walks, tau + later, self._generator(4))
        past, true = clip[:, :tau], from_start(clip.true_start, clip.true_pose)
        memory, _ = model.memorise(past.x, past.a)
        stranger, exists = strangers(examiner.where)
        shown: list[tuple[Tensor, ...]] = []
        own_map = examiner.in_world(model.motion.pose_at(memory.place.mean))
        for t in torch.linspace(tau, tau + later - 1, pictures).long().tolist():
            now = slice(t, t + 1)
            found = model.localise(memory, clip.x[:, now])
            place, entry = examiner.in_world(found.pose[:, :1]), found.entry[:, :1]
            right = examiner.within(examiner.errors(place, true[:, now]))[:, 0]
            likest = torch.cdist(clip.x[:, now].flatten(2), past.x.flatten(2)).argmin(-1)
            by_pixels = examiner.within(examiner.errors(gather(own_map, likest), true[:, now]))[:, 0]
            # A place may be recognised although the map is wrong there: score its pose relative to the entry as well.
            known, truly = gather(own_map, entry), gather(true, entry)
            errors = examiner.errors(space.displacement(known, place), space.displacement(truly, true[:, now]))
            claimed = examiner.as_claimed(errors, model.landmarks.settings)[:, 0]
            seen = examiner.same_place(past.true_pose, clip.true_pose[:, now]).any(-1)[:, 0]
            sure_of_strangers = model.localise(memory, clip.x[stranger, now]).known[exists]
            shown.append(
                (right, examiner.within(errors)[:, 0], claimed, found.known, seen, sure_of_strangers, by_pixels)
            )
        self.meter.add("single pictures", WORK * self.settings.walks * 2 * tau)
        *parts, by_pixels = map(torch.cat, zip(*shown, strict=True))
        return summary(*parts) | {"nearest_pixels_visited": metrics.mean_where(by_pixels, parts[4])}


def summary(
    right: Holds, on_own_map: Holds, claimed: Holds, sure: Sure, seen: Holds, sure_of_strangers: Float[Tensor, "m"]
) -> dict[str, Any]:
    """Scores of single pictures: how often the best pose was right, relative to the true start or to the entry matched.

    Calibration is judged by `claimed`: whether the pose relative to that entry is within the model's own tolerance.
    """
    never = torch.zeros_like(sure_of_strangers, dtype=torch.bool)
    known, is_stranger_known = sure > 0.5, sure_of_strangers > 0.5
    return {
        "visited": int(seen.sum()),
        "top1_visited": metrics.mean_where(right, seen),
        "top1_visited_on_own_map": metrics.mean_where(on_own_map, seen),
        "known_visited": metrics.mean_where(known, seen),
        "unvisited": int((~seen).sum()),
        "top1_unvisited": metrics.mean_where(right, ~seen),
        "known_unvisited": metrics.mean_where(known, ~seen),
        "foreign": len(never),
        "false_known": metrics.mean_where(is_stranger_known, ~never),
        "reliability": metrics.reliability(torch.cat([sure, sure_of_strangers]), torch.cat([claimed, never])),
    }


def strangers(place: Int[Tensor, "n"]) -> tuple[Int[Tensor, "n"], Bool[Tensor, "n"]]:
    """For each walk, the index of the next one in another place, and whether there is any."""
    n = len(place)
    ahead = (torch.arange(n, device=place.device)[:, None] + torch.arange(n, device=place.device)) % n
    differs = place[ahead] != place[:, None]
    return ahead.gather(1, differs.byte().argmax(1, keepdim=True))[:, 0], differs.any(1)


def _over_time(errors: list[Errors]) -> dict[str, Any]:
    """Means over walks at every step; means over late steps (see `late`); and the mean over all steps of `within`, the
    last step of errors."""
    scores: dict[str, Any] = {}
    for name, error in joined(errors).items():
        curve = error.double().mean(0)
        scores |= {name: (curve.mean() if name == "within" else curve[-1]).item(), f"{name}_by_step": _rounded(curve)}
        scores[f"{name}_late"] = curve[-late(len(curve)) :].mean().item()
    return scores


def _rounded(curve: Float[Tensor, "time"]) -> list[float]:
    """A curve rounded to five digits, enough to draw it."""
    return [round(value, 5) for value in curve.tolist()]
