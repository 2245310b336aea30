"""What is particular to scoring walks over images: exact revisits, cells, walls, obstacles."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.evaluation import metrics
from gtmsm.evaluation.gallery import Gallery, WayFound
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.motion import Free, Walled
from gtmsm.worlds.image_walk import MOVES, ImageWalk, draw_windows
from gtmsm.worlds.slip import Slipping

HALF_A_CELL = 0.5
"""Whoever is that near to the true cell is in it."""
EXAMPLES = 4
ZOOM = 8


class ImageWalkExaminer:
    """Cells are the same or not; a pose space is right up to an affine map, or counts cells from the start."""

    def __init__(self, world: ImageWalk, tau: int, metric: bool = False, slips: Slipping | None = None) -> None:
        """For walks in `world`, where actions may go wrong as `slips` says; `metric`: poses are in cells."""
        self.world, self.tau, self.metric, self.slips = world, tau, metric, slips
        self.can_be_hindered = world.config.obstacles > 0 or slips is not None
        learned_from = "true displacements as targets while training; " if metric else "no displacement loss, "
        self.privileges = f"fixed start; {learned_from}no true poses, no labels of walls"
        self.poses = (
            "as they are, in cells from the true start; R² of true positions"
            if metric
            else "R² of true positions after one affine map of the inferred ones"
        )
        self._true: list[Tensor] = []
        self._start: list[Tensor] = []
        self._inferred: list[Tensor] = []
        self._reckoned: list[Tensor] = []
        self._free: list[Tensor] = []
        self._compares = self.can_be_hindered
        self._examples: dict[str, Any] = {}
        self._solid: Tensor

    def revisited(self, clip: Clip) -> Bool[Tensor, "batch future"]:
        """Which predicted steps are at a memorised cell."""
        return metrics.revisited(clip.true_pose, self.tau)

    def hits(self, clip: Clip, retrieved: Int[Tensor, "batch future"]) -> Bool[Tensor, "batch future"]:
        """Whether what was retrieved was recorded at the present cell."""
        return metrics.hits(clip.true_pose, self.tau, retrieved)

    def true_places(self, clip: Clip) -> Float[Tensor, "batch time 2"]:
        """Cells."""
        return clip.true_pose

    def known_places(
        self, model: WorldModel, clip: Clip, walk: Float[Tensor, "batch time S"]
    ) -> Float[Tensor, "batch time 2"]:
        """Cells: places as good as any that the model may find."""
        return clip.true_pose

    def judge(self, clip: Clip, frames: Tensor) -> dict[str, Float[Tensor, "batch future"]]:
        """Nothing beyond what is scored everywhere."""
        return {}

    def masks(self, clip: Clip) -> dict[str, Bool[Tensor, "batch future"]]:
        """Where steps can fail: steps at memorised cells before any predicted one failed, which nobody can know."""
        if not self.can_be_hindered:
            return {}
        return {"unhindered": self.revisited(clip) & self._unhindered(clip)}

    def note(
        self,
        clip: Clip,
        walk: Float[Tensor, "batch time S"],
        imagined: Tensor,
        reckoned: Float[Tensor, "batch time S"] | None = None,
    ) -> None:
        """Keep poses, and the first few clips to show."""
        self._compares |= reckoned is not None
        self._true.append(clip.true_pose.cpu())
        self._start.append(clip.true_start[:, None].cpu())
        self._inferred.append(walk.cpu())
        self._reckoned.append((walk if reckoned is None else reckoned).cpu())
        self._free.append(self._unhindered(clip).cpu())
        if not self._examples:
            self._examples = _examples(self.world, clip, imagined, walk.cpu(), self.tau)
            self._solid = self.world.solid[:EXAMPLES].cpu()

    def in_world(self, walk: Float[Tensor, "*batch S"]) -> Float[Tensor, "*batch 2"]:
        """Poses of the model from the start of its walk, in cells; after `note`."""
        if self.metric:
            return walk
        true, start, inferred = (torch.cat(part) for part in (self._true, self._start, self._inferred))
        return metrics.affine_fit(inferred, true - start)(walk.cpu()).to(walk)

    def scores(self) -> dict[str, Any]:
        """How well the inferred positions explain the true ones and, where steps can fail, how often they are right."""
        true, start, inferred = (torch.cat(part) for part in (self._true, self._start, self._inferred))
        r2 = metrics.explained(inferred + start, true) if self.metric else metrics.affine_fit(inferred, true).r2
        if not self._compares:
            return {"pose_r2": r2}
        free = torch.cat(self._free)
        past = torch.ones_like(true[:, : self.tau, 0], dtype=torch.bool)
        scores: dict[str, Any] = {"pose_r2": r2}
        for prefix, walk in (("", inferred), ("dead_reckoning_", torch.cat(self._reckoned))):
            off = (self.in_world(walk) + start - true).norm(dim=-1)
            right = off <= HALF_A_CELL
            scores |= {
                f"{prefix}position_within_half_cell_memorised": metrics.share(right[:, : self.tau], past),
                f"{prefix}position_within_half_cell_predicted": metrics.share(right[:, self.tau :], free),
                f"{prefix}position_error_by_step": off.double().mean(0).tolist(),
            }
        return scores | {"unhindered_fraction": free.double().mean().item()}

    def gallery(self, model: WorldModel) -> Gallery:
        """What to show."""
        true, start, inferred = (torch.cat(part) for part in (self._true, self._start, self._inferred))
        into = metrics.affine_fit(true, inferred)
        if self.metric:
            into = metrics.AffineFit(torch.eye(2, dtype=torch.float64), -start[0, 0].double(), 1.0)
        way = self._way_found(start) if self._compares else None
        return Gallery(
            **self._examples, **_learned_motion(model, self.world, into, inferred), metric=self.metric, way=way
        )

    def _unhindered(self, clip: Clip) -> Bool[Tensor, "batch future"]:
        """The predicted steps before the first at which an obstacle was in the way or an action slipped."""
        failed = torch.zeros_like(clip.true_pose[..., 0], dtype=torch.bool)
        if self.world.config.obstacles:
            failed |= self.world.blocked
        if self.slips is not None:
            failed |= self.slips.slipped
        return metrics.before_first(failed[:, self.tau :])

    def _way_found(self, start: Float[Tensor, "clips 1 2"]) -> WayFound:
        """Of the example clips: obstacles, and paths in cells."""
        count = len(self._solid)
        seen_from = torch.from_numpy(self._examples["true_pose"])[:, self.tau - 1 : self.tau].long()
        scenes = [
            draw_windows(torch.from_numpy(picture), cell, self.world.config, ZOOM, solid)[0]
            for picture, cell, solid in zip(self._examples["images"], seen_from, self._solid, strict=True)
        ]
        believed, reckoned = (
            (self.in_world(part[0][:count]) + start[:count]).numpy() for part in (self._inferred, self._reckoned)
        )
        return WayFound(self._solid.numpy(), torch.stack(scenes).numpy(), believed, reckoned)


def _examples(world: ImageWalk, clip: Clip, imagined: Tensor, walk: Tensor, tau: int) -> dict[str, Any]:
    """The first few clips of a batch that was just recorded in `world`."""
    some = slice(EXAMPLES)
    return {
        "images": world.picture()[some].cpu().numpy(),
        "truth": clip.x[some, tau:].cpu().numpy(),
        "imagined": imagined[some].cpu().numpy(),
        "true_pose": clip.true_pose[some].cpu().numpy(),
        "inferred_pose": walk[some].numpy(),
        "tau": tau,
        "view_corner": world.config.corner(clip.true_pose[some, tau - 1]).cpu().numpy(),
    }


def _learned_motion(
    model: WorldModel, world: ImageWalk, into: metrics.AffineFit, inferred: Float[Tensor, "clips time S"]
) -> dict[str, Any]:
    """M and sigma_d, and the truth mapped into their space."""
    motion = model.motion
    assert isinstance(motion, Free)
    far = world.config.cells - 0.5
    corners = torch.tensor([[-0.5, -0.5], [-0.5, far], [far, far], [far, -0.5]])
    moves = torch.tensor(MOVES, dtype=torch.float64)
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
        "true_displacement": (moves @ into.matrix).float().numpy(),
    }
