"""GTM-SM with its memory replaced by a learned map: codes are written into the cells of a grid and read from them."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.config import require
from gtmsm.model.motion import build_motion
from gtmsm.rivals.rival import GaussianHead, Predicted, Rival, RivalDescription
from gtmsm.tensors import Actions, FutureActions, Gaussian, TruePoses

MARGIN = 1.25
"""Width of the map relative to that of the memorised walk."""


class GridMap(Rival):
    """Features of (z_t, heading) are written to the four cells around s_t; p(z_t | features around s_t, heading).

    Poses are the mean path of the motion of a trained GTM-SM, held fixed. The map covers the memorised walk (`MARGIN`).
    """

    context = "a map of {cells}x{cells} cells"
    privileges = ("the motion of a GTM-SM that was trained before, held fixed",)

    def __init__(self, about: RivalDescription) -> None:
        super().__init__(about)
        width = about.rival.width
        flat = about.motion.has_heading or about.motion.state_size == 2
        require(flat, f"grid-map has a map of 2 dimensions, and poses have {about.motion.state_size}")
        self.motion = build_motion(about.motion, about.action_size).requires_grad_(False)
        heading = 2 if about.motion.has_heading else 0
        self.write = nn.Sequential(nn.Linear(self.code_size + heading, width), nn.ELU(), nn.Linear(width, width))
        self.spread = nn.Sequential(
            nn.Conv2d(width + 1, width, 3, padding=1), nn.ELU(), nn.Conv2d(width, width, 3, padding=1)
        )
        self.read = nn.Sequential(
            nn.Linear(2 * width + 3 + heading, width), nn.ELU(), nn.Linear(width, width), nn.ELU()
        )
        self.head = GaussianHead(width, self.code_size)

    def predict(
        self,
        code: Gaussian,
        a: Actions,
        plan: FutureActions,
        poses: TruePoses | None = None,
        generator: torch.Generator | None = None,
    ) -> Predicted:
        """See `Rival`; write all memorised codes to the map, then read along the plan."""
        tau, cells = a.shape[1], self.settings.cells
        with torch.no_grad(), torch.autocast(a.device.type, enabled=False):
            place = self.motion.place(self.motion.unroll(self.motion.start(len(a)), torch.cat([a, plan], dim=1)))
            at, outside = on_grid(place[..., :2], tau, cells)
            weight = bilinear(at, cells)
        written = self.write(torch.cat([code.mean, place[:, :tau, 2:]], dim=-1))
        with torch.autocast(a.device.type, enabled=False):  # it would round weights of cells to bfloat16
            total = weight[:, :tau].sum(1)[..., None]
            grid = weight[:, :tau].mT @ written.to(weight.dtype) / (total + 1e-3)
            known = torch.cat([grid, (total > 0).to(grid.dtype)], dim=-1)
        around = self.spread(known.mT.unflatten(-1, (cells, cells))).flatten(2).mT
        with torch.autocast(a.device.type, enabled=False):
            found = weight[:, tau:] @ torch.cat([known, around.to(known.dtype)], dim=-1)
        h = self.read(torch.cat([found, outside[:, tau:], place[:, tau:, 2:]], dim=-1))
        return Predicted(self.head(h))


def on_grid(
    xy: Float[Tensor, "batch time 2"], tau: int, cells: int
) -> tuple[Float[Tensor, "batch time 2"], Float[Tensor, "batch time 2"]]:
    """Positions in cells of a grid around the first tau of them, clamped to it; and tanh of the excess."""
    low, high = xy[:, :tau].amin(1, keepdim=True), xy[:, :tau].amax(1, keepdim=True)
    half = 0.5 * MARGIN * (high - low).amax(-1, keepdim=True).clamp_min(1e-6)
    at = 0.5 * (cells - 1) * ((xy - 0.5 * (low + high)) / half + 1)
    inside = at.clamp(0, cells - 1)
    return inside, (at - inside).tanh()


def bilinear(at: Float[Tensor, "batch time 2"], cells: int) -> Float[Tensor, "batch time grid"]:
    """Bilinear weights of all cells for each position: up to four are above 0, with sum 1.

    They are dense, so that sums over time are deterministic.
    """
    near = F.relu(1 - (at[..., None] - torch.arange(cells, device=at.device)).abs())
    return (near[..., 0, :, None] * near[..., 1, None, :]).flatten(-2)
