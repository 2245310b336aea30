"""Scoring walks over images: discrete cells, walls, obstacles."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.data.record import one_hot
from gtmsm.data.store import Chart
from gtmsm.evaluation import metrics
from gtmsm.evaluation.equal_frames import follow_by_equal_frames
from gtmsm.evaluation.examine.examiner import CALIBRATED, Errors, Examiner, Masks, Placed, Walked, dead_reckoning
from gtmsm.evaluation.gallery import ImageGallery, WayFound
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.motion import Free, Walled
from gtmsm.worlds.image_map import draw_windows, hatched
from gtmsm.worlds.image_walk import MOVES, ImageWalk
from gtmsm.worlds.walkers import Walker
from gtmsm.worlds.world import World

ZOOM = 8
"""Pixels of a map per pixel of an image."""


class ImageWalkExaminer(Examiner):
    """Scores walks over images. Poses are compared up to an affine map or, if metric, in cells from the start."""

    unit = "cells"
    right = "within half a cell"
    exact = True
    world: ImageWalk

    def __init__(self, world: World, tau: int, metric: bool = False) -> None:
        """See `Examiner`."""
        super().__init__(world, tau, metric)
        self.can_be_hindered = self.world.config.obstacles > 0 or self.slips is not None
        learned_from = "true displacements as targets while training; " if metric else "no displacement loss, "
        self.privileges = f"fixed start; {learned_from}no true poses, no labels of walls"
        self.poses = (
            "as they are, in cells from the true start; R² of true positions"
            if metric
            else "R² of true positions after one affine map of the inferred ones, fitted on other walks"
        )
        self._fit: metrics.AffineFit | None = None
        self._noted: list[tuple[Tensor, ...]] = []
        self._by_frames: dict[str, list[Tensor]] = {}
        """Whether the position at each memorised step was right, for the controls that know the true moves."""
        self._compares = self.can_be_hindered

    def calibrate(
        self, model: WorldModel, walker: Walker, steps: int, seed: int, elsewhere: World | None = None
    ) -> None:
        """Fit the affine map on walks that are not scored, up to their first failed step: until then actions alone
        determine the pose."""
        if self.metric:
            return
        generator, world = torch.Generator().manual_seed(seed), self.slips or self.world
        world.reset(CALIBRATED, generator)
        start, actions = world.pose, walker(world, steps, generator)
        true, a = world.walk(actions).poses - start[:, None], one_hot(actions, len(self.world.action_names))
        walk, free = dead_reckoning(model, a), self._failed(true).cumsum(1) == 0
        free |= free.sum() < CALIBRATED  # if nearly every step fails, all steps are used
        self._fit = metrics.affine_fit(walk[free], true[free])

    @property
    def where(self) -> Int[Tensor, "n"]:
        """The number of each agent's image."""
        return self.world.image

    def same_place(
        self, past: Float[Tensor, "n before 2"], now: Float[Tensor, "n time 2"]
    ) -> Bool[Tensor, "n time before"]:
        """Which past cells equal each present one."""
        return (past[:, None] == now[:, :, None]).all(-1)

    def places(self, clip: Clip, walk: Walked) -> tuple[Placed, Placed]:
        """True cells for both: for a memory they are as good as any space that the model may learn."""
        return clip.true_pose, clip.true_pose

    def _move_in(self, generator: torch.Generator) -> None:
        """Draw free cells uniformly."""
        world, cells = self.world, self.world.config.cells
        free = (~world.solid).flatten(1).float().to(generator.device)
        chosen = torch.multinomial(free, 1, generator=generator)[:, 0]
        cell = torch.stack([chosen // cells, chosen % cells], dim=-1)
        world.place(world.image, cell, world.solid if world.config.obstacles else None)

    def by_equal_frames(self, clip: Clip, overlaps: bool = False) -> Float[Tensor, "n time 2"]:
        """See `Examiner` and `follow_by_equal_frames`."""
        moves = torch.tensor(MOVES, dtype=clip.a.dtype, device=clip.a.device)
        start, config = clip.true_start, self.world.config
        stride = config.stride if overlaps else None
        return follow_by_equal_frames(clip.x, clip.a, moves, config.cells - 1, start, stride) - start[:, None]

    def errors(self, believed: Float[Tensor, "n time 2"], true: Float[Tensor, "n time 2"]) -> Errors:
        """Distances in cells."""
        return {"position_error": (believed - true).norm(dim=-1)}

    def within(self, errors: Errors) -> Bool[Tensor, "n time"]:
        """Within half a cell; the model's own tolerance is not used, since its units are arbitrary."""
        return errors["position_error"] <= 0.5

    def masks(self, clip: Clip) -> Masks:
        """If steps can fail: `unhindered`, steps at memorised cells before the first failed one."""
        if not self.can_be_hindered:
            return {}
        return {"unhindered": self.revisited(clip) & self.unhindered(clip)}

    def unhindered(self, clip: Clip) -> Bool[Tensor, "batch future"]:
        """The predicted steps before the first one that an obstacle blocked or that slipped."""
        return self._failed(clip.true_pose)[:, self.tau :].cumsum(1) == 0

    def _failed(self, poses: Float[Tensor, "n time 2"]) -> Bool[Tensor, "n time"]:
        """Whether an obstacle blocked a step or an action slipped, along the poses last walked."""
        failed = torch.zeros_like(poses[..., 0], dtype=torch.bool)
        if self.world.config.obstacles:
            failed |= self.world.blocked
        if self.slips is not None:
            failed |= self.slips.slipped
        return failed

    def _add(self, clip: Clip, walk: Walked, reckoned: Walked | None) -> None:
        self._compares |= reckoned is not None
        by_actions = walk if reckoned is None else reckoned
        parts = (clip.true_pose, clip.true_start[:, None], walk, by_actions, self.unhindered(clip))
        self._noted.append(tuple(part.cpu() for part in parts))
        if self._compares:
            past = clip[:, : self.tau]
            true = past.true_pose - past.true_start[:, None]
            for way, overlaps in (("equal_frames", False), ("equal_overlaps", True)):
                right = self.within(self.errors(self.by_equal_frames(past, overlaps), true))
                self._by_frames.setdefault(way, []).append(right.cpu())

    def _scenes(self, clip: Clip, walk: Walked) -> dict[str, Any]:
        world, last = self.world, clip.true_pose[:, self.tau - 1]
        pictures, solid = world.picture()[: len(last)], world.solid[: len(last)]
        framed = [
            draw_windows(picture, cell[None], world.config, ZOOM, taken)[0]
            for picture, cell, taken in zip(pictures, last.long(), solid, strict=True)
        ]
        return {
            "inferred_pose": walk.cpu().numpy(),
            "images": pictures.cpu().numpy(),
            "view_corner": world.config.corner(last).cpu().numpy(),
            "solid": solid.cpu().numpy(),
            "scenes": torch.stack(framed).cpu().numpy(),
        }

    def _all(self) -> tuple[Tensor, ...]:
        """True poses, starts, inferred poses, poses by actions alone, and unhindered steps, over all walks noted."""
        return tuple(torch.cat(parts) for parts in zip(*self._noted, strict=True))

    def in_world(self, walk: Float[Tensor, "*batch S"]) -> Float[Tensor, "*batch 2"]:
        """Positions in cells from the start."""
        if self.metric:
            return walk
        fit = self._fit
        if fit is None:  # not calibrated: nothing is scored, only drawn
            true, start, inferred, _, _ = self._all()
            fit = metrics.affine_fit(inferred, true - start)
        return fit(walk.cpu()).to(walk)

    def scores(self) -> dict[str, Any]:
        """R² of positions; if steps can fail, also how often positions are right, at steps that can be known."""
        true, start, inferred, reckoned, free = self._all()
        memorised = torch.ones_like(true[:, : self.tau, 0], dtype=torch.bool)
        scores: dict[str, Any] = {"pose_r2": self._r2(true, start, inferred, None)}
        if not self._compares:
            return scores
        scores["pose_r2_unhindered"] = self._r2(true, start, inferred, torch.cat([memorised, free], 1))
        for prefix, walk in (("", inferred), ("dead_reckoning_", reckoned)):
            errors = self.errors(self.in_world(walk) + start, true)
            right, off = self.within(errors), errors["position_error"]
            scores |= {
                f"{prefix}position_within_half_cell_memorised": metrics.mean_where(right[:, : self.tau], memorised),
                f"{prefix}position_within_half_cell_predicted": metrics.mean_where(right[:, self.tau :], free),
                f"{prefix}position_error_by_step": off.double().mean(0).tolist(),
            }
        for way, found in self._by_frames.items():
            scores[f"{way}_position_within_half_cell_memorised"] = torch.cat(found).double().mean().item()
        return scores | {"unhindered_fraction": free.double().mean().item()}

    def _r2(self, true: Tensor, start: Tensor, inferred: Tensor, mask: Tensor | None) -> float:
        """R² of positions, over the steps in the mask, or over all."""
        guess = self.in_world(inferred) + start
        return metrics.explained(guess, true) if mask is None else metrics.explained(guess[mask], true[mask])

    def gallery(self, model: WorldModel) -> ImageGallery:
        """Positions, walls and moves, all in the inferred space."""
        true, start, inferred, reckoned, _ = self._all()
        parts = dict(self._examples)
        solid, scenes = parts.pop("solid"), parts.pop("scenes")
        into, way, count = metrics.affine_fit(self.in_world(inferred) + start, inferred), None, len(solid)
        if self.metric:
            into = metrics.AffineFit(torch.eye(2, dtype=torch.float64), -start[0, 0].double(), 1.0)
        if self._compares:
            paths = ((self.in_world(walk[:count]) + start[:count]).numpy() for walk in (inferred, reckoned))
            way = WayFound(solid, scenes, *paths)
        return ImageGallery(
            **parts,
            **_learned_motion(model, self.world, into, inferred),
            tau=self.tau,
            strips=strips(self.tau, parts["truth"].shape[1]),
            metric=self.metric,
            way=way,
        )

    def chart(self) -> Chart:
        """The image, enlarged, with solid cells hatched."""
        world, config = self.world, self.world.config
        large = world.picture()[0].repeat_interleave(ZOOM, 1).repeat_interleave(ZOOM, 2)
        picture = hatched(large, config, ZOOM, world.solid[0])
        middle, step = ZOOM * (config.margin + config.crop / 2), float(ZOOM * config.stride)
        pixels = (255 * picture).round().byte().permute(1, 2, 0).cpu().numpy()
        return Chart(pixels, np.array([middle, middle]), np.array([[0.0, step], [step, 0.0]]))


def strips(tau: int, future: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Two ranges of predicted steps: the first, and the paper's t = 464 to 471 (208 after tau) or else the last."""
    count = min(8, future)
    late = tau + min(208, future - count + 1)
    return (tau + 1, tau + count), (late, late + count - 1)


def _learned_motion(
    model: WorldModel, world: ImageWalk, into: metrics.AffineFit, inferred: Float[Tensor, "clips time S"]
) -> dict[str, Any]:
    """M, sigma_d, and the true moves and walls mapped into the inferred space."""
    motion = model.motion
    assert isinstance(motion, Free)
    far = world.config.cells - 0.5
    corners = torch.tensor([[-0.5, -0.5], [-0.5, far], [far, far], [far, -0.5]])
    low, high = inferred.flatten(0, 1).amin(0), inferred.flatten(0, 1).amax(0)
    margin = 1.5 * motion.M.detach().cpu().norm(dim=0).max()
    xs, ys = (torch.linspace(float(a), float(b), 160) for a, b in zip(low - margin, high + margin, strict=True))
    if isinstance(motion, Walled):
        grid = torch.stack(torch.meshgrid(xs, ys, indexing="xy"), -1).to(motion.M.device)
        values = motion.gate(grid).cpu()
    else:
        xs, ys, values = torch.empty(0), torch.empty(0), torch.empty(0, 0)
    return {
        "displacement": motion.M.detach().cpu().T.numpy(),
        "action_names": world.action_names,
        "wall_xs": xs.numpy(),
        "wall_ys": ys.numpy(),
        "wall_values": values.numpy(),
        "walls": into(corners.double()).float().numpy(),
        "true_displacement": (torch.tensor(MOVES, dtype=torch.float64) @ into.matrix).float().numpy(),
    }
