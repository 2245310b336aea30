"""Scoring recorded episodes: always by frames, and by poses if they are known."""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.data.store import Chart
from gtmsm.episodes.recorded import CANNOT, RecordedWorld
from gtmsm.errors import InputError
from gtmsm.evaluation import metrics
from gtmsm.evaluation.examine.examiner import (
    CALIBRATED,
    Errors,
    Examiner,
    Masks,
    Placed,
    Walked,
    dead_reckoning,
    from_start,
    joined,
)
from gtmsm.evaluation.examine.image_walk import strips
from gtmsm.evaluation.examine.rooms import NEAR_TURN
from gtmsm.evaluation.gallery import RecordedGallery
from gtmsm.model.gtmsm import WorldModel
from gtmsm.pose import space_of, wrapped
from gtmsm.worlds.walkers import Walker
from gtmsm.worlds.world import World

EXACTLY = 1e-3
"""Maximum difference of two poses that are the same: in median steps, and in radians."""


class RecordedExaminer(Examiner):
    """Scores recorded episodes. Poses have 2 or 3 numbers; if they are unknown, equal frames count as the same place.

    Poses of clips are in units of the experiment, those of scores and galleries in units of the recordings.
    """

    unit = "units"
    right = "within half a step and 8°"
    world: RecordedWorld

    def __init__(self, world: World, tau: int, metric: bool = False) -> None:
        """See `Examiner`."""
        super().__init__(world, tau, metric)
        self.size = self.world.kind.pose_size
        self.privileges = "the start of a clip is the origin; " + (
            "true displacements as targets while training" if metric else "no displacement loss"
        )
        fitted = "after the best linear map of positions and sign of headings, fitted on other clips"
        compared = "as they are" if metric else fitted
        self.poses = f"from the true start on, {compared}" if self.size else "unknown, and not scored"
        self._fit: tuple[metrics.AffineFit, metrics.AffineFit, float] | None = None
        self._near = 0.0
        self._extent = 1.0
        self._repeats = False
        self._noted: list[dict[str, Tensor]] = []
        self._moves: list[tuple[Tensor, Tensor]] = []

    def calibrate(
        self, model: WorldModel, walker: Walker, steps: int, seed: int, elsewhere: World | None = None
    ) -> None:
        """Fit the map of poses on clips that are not scored; a model that infers failed steps is given their frames."""
        if self.metric or not self.size:
            return
        source = elsewhere if isinstance(elsewhere, RecordedWorld) else self.world
        clip = source.replay(CALIBRATED, steps, torch.Generator().manual_seed(seed))
        self._fit = None
        self._fitted(clip, dead_reckoning(model, clip.a) if model.bumps is None else model.follow(clip.x, clip.a).mean)

    # ---- places

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """Whether poses or views recur exactly; known after `prepared`."""
        return self._repeats

    @property
    def knows_places(self) -> bool:
        """Whether it is known which steps are at memorised places: by poses, or by views that recur exactly."""
        return self.size > 0 or self._repeats

    @property
    def where(self) -> Int[Tensor, "n"]:
        """Refuse: recordings can only be replayed."""
        raise InputError(CANNOT)

    def _move_in(self, generator: torch.Generator) -> None:
        raise InputError(CANNOT)

    def chart(self) -> Chart:
        """Refuse: recordings can only be replayed."""
        raise InputError(CANNOT)

    def prepared(self, clip: Clip) -> Clip:
        """The clip, unchanged; the first one determines the tolerances of places."""
        self._measure(clip)
        return clip

    def _measure(self, clip: Clip) -> None:
        """Measure the length of steps, the extent of places, and whether poses or views recur exactly."""
        if not self.size:
            self._repeats |= bool(self._same(clip).any())
            return
        if self._near:
            return
        lengths = clip.true_step[..., :2].norm(dim=-1)
        moving = lengths[lengths > 1e-6]
        step = float(moving.median()) if len(moving) else 1.0
        reach = clip.true_pose[..., :2].amax(1) - clip.true_pose[..., :2].amin(1)
        self._near, self._extent = step / 2, max(float(reach.amax(-1).median()), step)
        again = self._within(clip, self._near, NEAR_TURN).any(-1)
        exactly = self._within(clip, EXACTLY * step, EXACTLY).any(-1)
        self._repeats = bool(exactly.sum() > again.sum() / 2)

    def same_place(
        self, past: Float[Tensor, "n before D"], now: Float[Tensor, "n time D"]
    ) -> Bool[Tensor, "n time before"]:
        """Which past poses are within half a step and 8 degrees."""
        return self._close(past, now, self._near, NEAR_TURN)

    def _within(self, clip: Clip, near: float, turn: float) -> Bool[Tensor, "batch future tau"]:
        return self._close(clip.true_pose[:, : self.tau], clip.true_pose[:, self.tau :], near, turn)

    def _close(self, past: Tensor, now: Tensor, near: float, turn: float) -> Tensor:
        step = now[:, :, None] - past[:, None]
        close = step[..., :2].norm(dim=-1) <= near
        return close & (wrapped(step[..., 2]).abs() <= turn) if self.size == 3 else close

    def _same(self, clip: Clip) -> Bool[Tensor, "batch future tau"]:
        """Which memorised steps are at the place of each predicted one: by poses or, if unknown, by equal frames."""
        if self.size:
            return self._within(clip, self._near, NEAR_TURN)
        frames = (255 * clip.x).round().long().flatten(2)
        weights = torch.randint(2**62, frames.shape[2:], generator=torch.Generator().manual_seed(0))
        number = (frames * weights.to(frames.device)).sum(-1)  # a hash modulo 2^64
        return number[:, self.tau :, None] == number[:, None, : self.tau]

    def revisited(self, clip: Clip) -> Bool[Tensor, "batch future"]:
        """Which predicted steps are at a memorised place."""
        return self._same(clip).any(-1)

    def hits(self, clip: Clip, retrieved: Int[Tensor, "batch future"]) -> Bool[Tensor, "batch future"] | None:
        """Whether each retrieved memory entry is of the true place; None if nothing recurs exactly."""
        if not self.exact:
            return None
        return self._same(clip).gather(2, retrieved.long()[..., None])[..., 0]

    def places(self, clip: Clip, walk: Walked) -> tuple[Placed, Placed] | None:
        """True places relative to the start, and the same mapped into the model's space; None if poses are unknown or
        lack a heading that the model has."""
        if self.size < min(3, walk.shape[-1]):
            return None
        _, into, sign = self._fitted(clip, walk)
        pose = from_start(clip.true_start, clip.true_pose)
        known = into(pose[..., :2]).to(pose)
        if walk.shape[-1] >= 3:
            known = space_of(3).place(torch.cat([known, sign * pose[..., 2:]], dim=-1))
        return space_of(self.size).place(pose), known

    def masks(self, clip: Clip) -> Masks:
        """If steps can fail: `unhindered`, steps at memorised places before the first failed one."""
        if self.world.failing is None:
            return {}
        failed = self.world.failed(clip)[:, self.tau :]
        return {"unhindered": self.revisited(clip) & (failed.cumsum(1) == 0)}

    # ---- poses

    def errors(self, believed: Float[Tensor, "n time D"], true: Float[Tensor, "n time D"]) -> Errors:
        """Errors in position, in units of the recordings and in extents of a place; of headings if both have them."""
        off = (believed - true)[..., :2].norm(dim=-1)
        errors = {"position_error": self.world.unit * off, "position_error_relative": off / self._extent}
        if min(believed.shape[-1], true.shape[-1]) == 3:
            errors = {"heading_error": wrapped(believed[..., 2] - true[..., 2]).abs().rad2deg()} | errors
        return errors

    def within(self, errors: Errors) -> Bool[Tensor, "n time"]:
        """Whether positions are within the tolerance of the same place."""
        return errors["position_error"] <= self._near * self.world.unit

    def _fitted(self, clip: Clip, walk: Walked) -> tuple[metrics.AffineFit, metrics.AffineFit, float]:
        """Affine maps from the model's positions to true ones and from true ones to the model's, relative to the start;
        and the sign of headings. Fitted on the first clips, then kept."""
        if self._fit is None:
            same = metrics.AffineFit(torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64), 1.0)
            self._fit = same, same, 1.0
            if not self.metric:
                true, mine = from_start(clip.true_start, clip.true_pose), walk
                sign = 1.0
                if self.size == 3 and walk.shape[-1] >= 3:
                    off = [wrapped(way * mine[..., 2] - true[..., 2]).abs().mean() for way in (1.0, -1.0)]
                    sign = 1.0 if off[0] <= off[1] else -1.0
                here, there = mine[..., :2], true[..., :2]
                self._fit = metrics.affine_fit(here, there), metrics.affine_fit(there, here), sign
        return self._fit

    def in_world(self, walk: Float[Tensor, "*batch S"]) -> Float[Tensor, "*batch D"]:
        """Poses relative to the start, in units of the clips."""
        assert self._fit is not None
        onto, _, sign = self._fit
        position = onto(walk[..., :2].cpu()).to(walk)
        if min(self.size, walk.shape[-1]) < 3:
            return position
        return torch.cat([position, sign * walk[..., 2:3]], dim=-1)

    def _add(self, clip: Clip, walk: Walked, reckoned: Walked | None) -> None:
        self._moves.append((clip.a.flatten(0, 1).cpu(), clip.true_step.flatten(0, 1).cpu()))
        if not self.size:
            return
        true = from_start(clip.true_start, clip.true_pose)
        believed = self._believed(clip, walk)
        errors = {name: error.cpu() for name, error in self.errors(believed, true).items()}
        self._noted.append(errors | {"true": true[..., :2].cpu(), "believed": believed[..., :2].cpu()})

    def _believed(self, clip: Clip, walk: Walked) -> Tensor:
        """Poses of the model relative to the start, in units of the clips. If only the model has headings, each clip is
        fitted by its memorised steps, since the initial heading is unknown."""
        if self.size == 2 and walk.shape[-1] >= 3:
            true = from_start(clip.true_start, clip.true_pose)
            self._fitted(clip, walk)
            pairs, tau = zip(walk[..., :2].cpu(), true.cpu(), strict=True), self.tau
            fitted = [metrics.affine_fit(mine[:tau], there[:tau])(mine) for mine, there in pairs]
            return torch.stack(fitted).to(walk)
        self._fitted(clip, walk)
        return self.in_world(walk)

    def _scenes(self, clip: Clip, walk: Walked) -> dict[str, Any]:
        if not self.size:
            return {"inferred_pose": walk[..., :3].cpu().numpy()}
        space, believed = space_of(self.size), self._believed(clip, walk)
        if believed.shape[-1] < self.size:  # a model without a heading, in a world that has one
            believed = torch.cat([believed, torch.full_like(believed[..., :1], math.nan)], dim=-1)
        return {"inferred_pose": self._in_units(space.step(clip.true_start[:, None], believed).cpu().numpy())}

    def _in_units(self, poses: np.ndarray) -> np.ndarray:
        """Positions in units of the recordings."""
        scale = np.array([self.world.unit, self.world.unit, 1.0], dtype=poses.dtype)
        return poses * scale[: poses.shape[-1]]

    def scores(self) -> dict[str, Any]:
        """Errors at the last and at every step; R² of positions if there are no headings; empty without poses."""
        if not self._noted:
            return {}
        curves = joined(self._noted)
        true, believed = curves.pop("true"), curves.pop("believed")
        scores: dict[str, Any] = {"pose_r2": metrics.explained(believed, true)} if self.size == 2 else {}
        scores |= {name: float(error[:, -1].mean()) for name, error in curves.items()}
        return scores | {f"{name}_by_step": error.mean(0).tolist() for name, error in curves.items()}

    # ---- pictures

    def gallery(self, model: WorldModel) -> RecordedGallery:
        """The first few walks and the displacements by actions, in units of the recordings if poses are known."""
        parts, kind = dict(self._examples), self.world.kind
        unknown = np.full_like(parts["inferred_pose"], np.nan)
        parts["true_pose"] = self._in_units(parts["true_pose"]) if self.size else unknown
        if not self.knows_places:
            parts["seen"] = None
        learned, true = self._pushes(model)
        return RecordedGallery(
            **parts,
            tau=self.tau,
            strips=strips(self.tau, parts["truth"].shape[1]),
            displacement=learned,
            true_displacement=true,
            action_names=self.world.action_names,
            environment=kind.environment,
            has_poses=self.size > 0,
            continuous=not kind.discrete,
        )

    def _pushes(self, model: WorldModel) -> tuple[np.ndarray, np.ndarray]:
        """Displacement of an agent at rest by each action, as learned; and the median true one, NaN where unknown."""
        motion, count = model.motion, len(self.world.action_names)
        start = motion.start(count)
        moved = motion.unroll(start, torch.eye(count, device=start.device)[:, None])[:, 0, : motion.pose_size].cpu()
        if not self.size or (self.size == 2 and motion.pose_size == 3):
            return moved.numpy(), np.full(moved.shape, np.nan, np.float32)
        origin = self.in_world(start[:, : motion.pose_size].cpu())
        learned = self._in_units((self.in_world(moved) - origin).numpy())
        a, steps = (torch.cat(part) for part in zip(*self._moves, strict=True))
        true = torch.full((count, learned.shape[-1]), math.nan)
        for i in range(count):
            chosen = (a[:, i] != 0) & (a != 0).any(1) & ((a != 0).sum(1) == 1)
            if self.world.kind.discrete and chosen.any():
                true[i] = steps[chosen, : learned.shape[-1]].median(0).values
        return learned, self._in_units(true.numpy())
