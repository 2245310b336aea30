"""What is particular to scoring walks over images: exact revisits, cells, walls."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.evaluation import metrics
from gtmsm.evaluation.gallery import Gallery
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.motion import Free, Walled
from gtmsm.worlds.image_walk import MOVES, ImageWalk


class ImageWalkExaminer:
    """Cells are the same or not, and a pose space is right up to an affine map."""

    poses = "R² of true positions after one affine map of the inferred ones"
    privileges = "fixed start; no displacement loss, no true poses, no labels of walls"

    def __init__(self, world: ImageWalk, tau: int) -> None:
        """For walks in `world` of which tau steps are memorised."""
        self.world, self.tau = world, tau
        self._true: list[Tensor] = []
        self._inferred: list[Tensor] = []
        self._examples: dict[str, Any] = {}

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
        """No steps of special interest."""
        return {}

    def note(self, clip: Clip, walk: Float[Tensor, "batch time S"], imagined: Tensor) -> None:
        """Keep poses, and the first few clips to show."""
        self._true.append(clip.true_pose.cpu())
        self._inferred.append(walk.cpu())
        if not self._examples:
            self._examples = _examples(self.world, clip, imagined, walk.cpu(), self.tau)

    def scores(self) -> dict[str, Any]:
        """How well the inferred positions explain the true ones."""
        return {"pose_r2": metrics.affine_fit(torch.cat(self._inferred), torch.cat(self._true)).r2}

    def gallery(self, model: WorldModel) -> Gallery:
        """What to show."""
        motion = _learned_motion(model, self.world, torch.cat(self._true), torch.cat(self._inferred))
        return Gallery(**self._examples, **motion)


def _examples(world: ImageWalk, clip: Clip, imagined: Tensor, walk: Tensor, tau: int, count: int = 4) -> dict[str, Any]:
    """The first few clips of a batch that was just recorded in `world`."""
    return {
        "images": world.picture()[:count].cpu().numpy(),
        "truth": clip.x[:count, tau:].cpu().numpy(),
        "imagined": imagined[:count].cpu().numpy(),
        "true_pose": clip.true_pose[:count].cpu().numpy(),
        "inferred_pose": walk[:count].numpy(),
        "tau": tau,
        "view_corner": world.config.corner(clip.true_pose[:count, tau - 1]).cpu().numpy(),
    }


def _learned_motion(
    model: WorldModel,
    world: ImageWalk,
    true: Float[Tensor, "clips time 2"],
    inferred: Float[Tensor, "clips time S"],
) -> dict[str, Any]:
    """M and sigma_d, and the truth mapped into their space."""
    motion = model.motion
    assert isinstance(motion, Free)
    into = metrics.affine_fit(true, inferred)
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
