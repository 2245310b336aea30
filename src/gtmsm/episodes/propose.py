"""Propose training settings for recorded episodes from a survey of them, with the reasons in words.

A proposal is settings by name, as in presets; each of them can be overridden by its flag.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gtmsm.config import flat
from gtmsm.episodes.survey import Survey

TURNS = re.compile(r"turn|rotat|yaw|spin", re.I)
AHEAD = re.compile(r"forward|ahead|straight", re.I)
SIDES = re.compile(r"\b(left|right)\b", re.I)

REPEATING = 0.2
"""Minimum fraction of repeated frames for which memory is read as exact views, not blended, unless agents turn."""
FAILING = 0.005
"""Minimum fraction of failed steps for which they are taken into account."""
CARRIED = 0.3
"""Minimum `Survey.momentum` for which speed counts as carried over, and minimum `Survey.spin` for turns."""
ROOMY = 1.0
"""Largest distance between starts, in steps, at which episodes count as beginning at one spot."""
FEW = 3
"""Episodes below which it is not known whether they begin at one spot."""
LONGEST_FLAT, LONGEST_HEADING = 256, 150
"""Maximum steps to memorise, as in the paper (App. A.1 and section 4.2.2)."""
HORIZON = 32
MAP = 5
"""Dimensions of the learned map in which an agent with a heading looks for views, as in preset `walk`."""
BUMPS = 64
"""Units of the network that predicts which steps fail."""
MOST_PATCHES = 128
"""Maximum patches of a view for attention between rays: more take too long, and no kernel is made for them."""
FIELDS_OF_VIEW = {"gtmsm/Doom": 90.0, "MiniWorld-": 60.0}
"""Horizontal field of view in degrees, by prefix of the environment's id."""
USUAL_FIELD_OF_VIEW = 80.0
STEP_WITH_HEADING = 0.2
"""Length to which the median step is scaled if poses are learned from: that of a step in the rooms of the presets."""


@dataclass(frozen=True)
class Proposal:
    """Settings by dotted name, and the reasons in three lines."""

    changes: Mapping[str, Any]
    reasons: tuple[str, str, str]


@dataclass(frozen=True)
class _Motion:
    """The proposed motion, and what it is learned from."""

    kind: Literal["free", "walled", "turning", "gliding", "rolling"]
    metric: bool
    """Whether displacements are targets while training."""
    why: str
    cost: str
    """What the motion is learned from, and what can be scored."""
    from_start: bool = False
    bumps: bool = False

    @property
    def heading(self) -> bool:
        return self.kind in ("turning", "gliding", "rolling")

    @property
    def carries(self) -> bool:
        """Whether momentum is part of the state."""
        return self.kind in ("gliding", "rolling")


def propose(facts: Survey, gpu: bool, most: int) -> Proposal:
    """Propose settings for clips of at most `most` steps, with the reasons."""
    motion = _motion(facts)
    tau, horizon = _lengths(facts, most, LONGEST_HEADING if motion.heading else LONGEST_FLAT)
    repeating, trained = facts.repeats >= REPEATING, min(HORIZON, horizon)
    # Views of an agent with a heading overlap, so new ones can be composed of several.
    size, blended = _Size.of(facts, gpu), motion.heading or not repeating
    neighbours = min((8 if repeating else 4) if blended else 5, tau)
    mapped = motion.heading and not repeating  # not tried where views come back exactly
    unit = 1.0
    if motion.metric and facts.step:
        unit = facts.step / (STEP_WITH_HEADING if motion.heading else 1.0)
    schedule = _metric_schedule if motion.metric else _free_schedule
    changes: dict[str, Any] = {
        "unit": float(f"{unit:.4g}"),
        "from_start": motion.from_start,
        "model.bumps": BUMPS if motion.bumps and facts.kind.discrete else 0,
        "model.vae": {"coder": size.coder, "width": size.width, "code_size": size.code_size},
        "model.motion": {"kind": motion.kind},
        "model.recall": {"neighbours": neighbours, "prior": "query" if blended else "mixture"},
        "model.recall.width": 512 if gpu else 256,
        "model.recall.map_size": MAP if mapped else 0,
        "training": {"watch_every": 1_000 if gpu else 250, "save_every": 1_000 if gpu else 500},
        "training.optimiser.precision": "bfloat16" if gpu else "float32",
        "training.curriculum": {"tau": tau, "horizon": trained},
        "evaluation": {"tau": tau, "horizon": horizon, "clips": 200 if gpu else 50, "metric_poses": motion.metric},
        **schedule(motion, tau, horizon, neighbours, gpu),
    }
    views = (
        f"{100 * facts.repeats:.0f}% of views come back exactly: a network blends the {neighbours} nearest"
        f"{' in a learned map' * mapped}"
        if blended
        else f"{100 * facts.repeats:.0f}% of views come back exactly: memory is read as a mixture of {neighbours}"
    )
    coder: str = size.coder
    height, width, _ = facts.kind.frame_shape
    shortest, longest = int(facts.lengths.min()), int(facts.lengths.max())
    spread, count = str(longest) if shortest == longest else f"{shortest} to {longest}", len(facts.lengths)
    learned = f"{count} episodes to learn from have" if count > 1 else "1 episode to learn from has"
    scored = "" if trained == horizon else f" ({horizon} when scored)"
    patch = _patch(height, width)
    if gpu and motion.carries and motion.metric and blended and patch:
        begins = (view for start, view in FIELDS_OF_VIEW.items() if facts.kind.environment.startswith(start))
        field = next(begins, USUAL_FIELD_OF_VIEW)
        neighbours = min(10, tau)
        changes |= _rays(field, neighbours, horizon, patch, height * width // patch**2)
        coder, views = (
            "spatial",
            f"rays attend to rays of {neighbours} views, {field:.0f}° wide (else: --model.recall.field-of-view)",
        )
    return Proposal(
        flat(changes),
        (
            f"motion {motion.kind}: {motion.why}",
            motion.cost,
            f"tau {tau}, horizon {trained}{scored}, coder {coder}: {learned} {spread} steps "
            f"of {width}x{height} pixels; {views}",
        ),
    )


def _motion(facts: Survey) -> _Motion:
    """Choose the motion from poses if they are known, else from the names of actions and from what changes frames."""
    names, size = facts.names, facts.kind.pose_size
    failing = facts.failing >= FAILING
    bumps = f"{100 * facts.failing:.0f}% of steps fail (bumps)"
    noticed = f"; {bumps}: a network learns to see it coming" if failing else ""
    if size == 3:
        glides, rolls = facts.momentum >= CARRIED, facts.spin >= CARRIED
        what, share = (
            ("the speed of turns carries over", facts.spin) if rolls else ("speed carries over", facts.momentum)
        )
        why = "poses have a heading" + (
            f", and {what} (it explains {100 * share:.0f}% of what actions leave open)"
            if glides or rolls
            else ", and an action alone tells how far a step goes" + noticed
        )
        cost = "true displacements are targets while training, so poses are in your units and are scored as they are"
        kind: Literal["turning", "gliding", "rolling"] = "rolling" if rolls else "gliding" if glides else "turning"
        return _Motion(kind, True, why, cost, bumps=failing and kind == "turning")
    unknown = (
        "poses are unknown, so the motion is searched for in frames and actions; frames and returning views can be "
        "scored, poses and distances cannot"
    )
    found = (
        "the motion is searched for in frames and actions; your poses only score it, after the linear map that fits "
        "best"
    )
    if _has_turns(names):
        only_turns = not any(AHEAD.search(name) or "back" in name.lower() for name in names)
        why = f"actions such as {_example(names)} turn an agent with a heading" + noticed
        lost = "; it shows by views that look alike, so walks should come back to where they were"
        kind = "turning" if only_turns else "gliding"
        return _Motion(kind, False, why, (found if size else unknown) + lost * (not only_turns), bumps=failing)
    turn = "" if size else ", and no action says that it turns (else: --model.motion.kind gliding)"
    if not failing:
        return _flat("free", facts, f"no step fails{turn}", found, unknown)
    if _one_start(facts):
        why = f"{bumps}{turn}; episodes seem to begin at one spot, from where walls are learned"
        return _Motion("walled", False, why, found if size else unknown, from_start=True)
    return _flat("free", facts, f"starts differ, so walls cannot be learned{turn}{noticed}", found, unknown, True)


def _flat(kind: Literal["free"], facts: Survey, why: str, found: str, unknown: str, noticed: bool = False) -> _Motion:
    """Motion without a heading, learned from displacements if they are known."""
    if not facts.kind.pose_size:
        return _Motion(kind, False, why, unknown, bumps=noticed)
    cost = "true displacements are targets while training, so positions are in your units and are scored as they are"
    return _Motion(kind, True, why, cost, bumps=noticed)


def _has_turns(names: tuple[str, ...]) -> bool:
    """Whether actions turn an agent, by their names: some say so, or some go ahead and others left or right."""
    ahead, sides = (any(pattern.search(name) for name in names) for pattern in (AHEAD, SIDES))
    return any(TURNS.search(name) for name in names) or (ahead and sides)


def _example(names: tuple[str, ...]) -> str:
    """Two names of actions that suggest turns."""
    telling = [name for name in names if TURNS.search(name)] or [name for name in names if SIDES.search(name)]
    return " and ".join(f'"{name}"' for name in telling[:2])


def _one_start(facts: Survey) -> bool:
    """Whether episodes begin at one spot: by poses, or because few of the first steps fail."""
    if len(facts.lengths) < FEW:
        return False
    if not math.isnan(facts.starts):
        return facts.starts <= ROOMY
    return facts.failing_early < 0.3 * facts.failing


def _lengths(facts: Survey, most: int, longest: int) -> tuple[int, int]:
    """Steps to memorise and to predict, such that nine of ten episodes are long enough."""
    steps = min(most, int(np.quantile(facts.lengths, 0.1, method="lower")))
    tau = max(1, min(longest, steps // 2))
    return tau, max(1, min(longest, steps - tau))


@dataclass(frozen=True)
class _Size:
    """The frame coder and its size."""

    coder: Literal["dense", "conv"]
    width: int
    code_size: int

    @classmethod
    def of(cls, facts: Survey, gpu: bool) -> "_Size":
        """Dense layers for small frames (fast on a CPU), convolutions for others whose sides can be halved twice."""
        height, width, _ = facts.kind.frame_shape
        small = max(height, width) <= (16 if gpu else 32)
        coder: Literal["dense", "conv"] = "dense" if small or height % 4 or width % 4 else "conv"
        return cls(coder, 256 if gpu or coder == "dense" else 64, 16 if max(height, width) <= 16 else 64)


def _metric_schedule(motion: _Motion, tau: int, horizon: int, neighbours: int, gpu: bool) -> dict[str, Any]:
    """As in preset `walk`: the motion learns from displacements from the first update on."""
    updates = 5_000 if gpu else 1_500
    # The first steps of a window are left out: the frame and velocity before it are unknown, and whether it failed.
    after = min(16, (tau + min(HORIZON, horizon)) // 3) if motion.carries else int(motion.bumps)
    return {
        "training.updates": updates,
        "training.optimiser": {"batch": 32 if gpu else 16, "anneal_updates": updates},
        "training.curriculum.warm_up": 0,
        "training.curriculum.grow": (),
        "training.curriculum.read_all_stages": 0,
        "training.curriculum.prospect": False,
        "training.curriculum.motion_rate": 3.0 if motion.carries else 10.0,
        "training.objective": {"displacement": 1e5 if motion.heading else 1e3, "displacement_after": after},
        "training.objective.poses_from_bound": False,
    }


def _patch(height: int, width: int) -> int:
    """Side of the smallest patches of which a view has at most `MOST_PATCHES`; 0 if there are none."""
    fits = (side for side in (4, 8) if height % 8 == width % 8 == 0 and height * width <= MOST_PATCHES * side**2)
    return next(fits, 0)


def _rays(field_of_view: float, neighbours: int, horizon: int, patch: int, patches: int) -> dict[str, Any]:
    """Settings of the presets `walk-strong` and `walk-strong-64`, which take minutes on a GPU.

    In ViZDoom they gain 2.4 dB (docs/older-measurements.md).
    """
    updates = 9_000
    return {
        "training.updates": updates,
        "training.optimiser": {"batch": 12, "learning_rate": 1e-3, "final_learning_rate": 1e-5},
        "training.optimiser.anneal_updates": updates,
        "training.optimiser.ramp_updates": 500,
        "training.optimiser.clip_norm": 1_000.0,
        "training.optimiser.precision": "bfloat16",
        "training.curriculum.horizon": horizon,
        "training.objective.foresight": 30.0,
        "training.objective.targets": 28,
        "model.vae": {"coder": "spatial", "patch": patch, "code_size": patch**2 // 4 * patches, "width": 256},
        "model.recall": {"prior": "rays", "neighbours": neighbours, "choice": "visible", "delta": 1e-4},
        "model.recall.map_size": 0,
        "model.recall.width": 256,
        "model.recall.layers": 6,
        "model.recall.field_of_view": field_of_view,
    }


def _free_schedule(motion: _Motion, tau: int, horizon: int, neighbours: int, gpu: bool) -> dict[str, Any]:
    """As in presets `image-walk`, `rotate` and `walk-free`: first codes, then the search, then clips that grow."""
    stages = 0 if motion.heading else max(0, min(3, int(math.log2(tau / 32)))) if tau >= 32 else 0
    updates = 10_000 if gpu else 1_500
    searched = min(64 if motion.kind == "gliding" else 32, tau)
    changes: dict[str, Any] = {
        "training.updates": updates,
        "training.optimiser": {"batch": 64 if gpu else 32, "anneal_updates": updates},
        "training.optimiser.learning_rate": 1e-3 if gpu else 3e-3,
        "training.curriculum.warm_up": 1_000 if gpu else 400,
        "training.curriculum.warm_up_tau": min(tau, 16),
        "training.curriculum.grow": ((2_000, 1_500, 1_500) if gpu else (400, 300, 200))[3 - stages :],
        "training.prospect": {"tau": searched, "horizon": min(horizon, searched // 2 or 1)},
        "training.prospect.neighbours": min(neighbours, searched),
    }
    if motion.kind == "gliding":
        return changes | {
            "training.curriculum.read_all_stages": 0,
            "training.curriculum.motion_rate": 0.0,
            "training.objective.poses_from_bound": False,
            "training.prospect.loops": tau + horizon,
            "training.prospect.loop_clips": 2_048 if gpu else 256,
            "training.prospect.loop_updates": 2_000 if gpu else 600,
        }
    if motion.heading:
        return changes | {
            "training.curriculum.read_all_stages": 0,
            "training.curriculum.motion_rate": 0.0,
            "training.prospect.yardstick": "spread",
            "training.prospect.clips": 64 if gpu else 16,
        }
    if not gpu:
        changes |= {"training.prospect.candidates": 256, "training.prospect.restarts": 2}
    return changes
