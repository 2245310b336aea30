"""Steps that fail: in most worlds agents bump, and what is seen before a step tells whether it will (not in the paper).

A step that fails counts as one without an action. While memorising, the frame before a step is looked at; while
imagining, what memory predicts to be seen there.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gtmsm.model.mlp import Mlp
from gtmsm.tensors import Actions, Belief, Codes, PerStep, State

if TYPE_CHECKING:
    from gtmsm.model.gtmsm import WorldModel
    from gtmsm.model.memory import Memory

NEAR = 1e-4
"""Squared distance below which a memory is of the very place."""


class Bumps(nn.Module):
    """log odds that an action fails, by the code of the view before it and how far away that view was seen."""

    def __init__(self, code_size: int, action_size: int, width: int) -> None:
        super().__init__()
        self.network = Mlp(code_size + 1, width, width, action_size)

    def forward(self, view: Codes, actions: Actions, distance2: PerStep | None = None) -> PerStep:
        """`distance2` of the memory that the view was predicted from; None: it is the view itself."""
        far = view.new_zeros(view.shape[:-1]) if distance2 is None else distance2.to(view)
        inputs = torch.cat([view, (far + NEAR).log()[..., None]], dim=-1)
        logits = self.network(inputs.flatten(0, -2)).view(*view.shape[:-1], -1)
        return (logits.float() * actions).sum(-1)

    def noticed(self, codes: Codes, actions: Actions, before: Float[Tensor, "batch Z"] | None) -> Actions:
        """The actions without those that failed; of the first nobody knows, unless the view `before` it is given."""
        views = codes[:, :-1] if before is None else torch.cat([before[:, None], codes[:, :-1]], dim=1)
        failed = self(views, actions[:, -views.shape[1] :]) > 0 if views.shape[1] else actions[:, :0, 0] > 0
        return actions.masked_fill(F.pad(failed, (actions.shape[1] - failed.shape[1], 0))[..., None], 0.0)

    def foreseen(self, model: "WorldModel", memory: "Memory", here: State, plan: Actions) -> Actions:
        """The plan without the steps that would fail, one after the other."""
        made = []
        for a in plan.split(1, dim=1):
            forecast = model.read(memory, Belief(model.motion.place(here)[:, None]))
            fails = self(forecast.peak(), a, forecast.neighbours.distance2.amin(-1)) > 0
            made.append(a.masked_fill(fails[..., None], 0.0))
            here = model.motion.unroll(here, made[-1])[:, -1]
        return torch.cat(made, dim=1) if made else plan

    def loss(self, logits: PerStep, failed: Bool[Tensor, "batch time"], counts: PerStep) -> Float[Tensor, ""]:
        """Nats per step that counts."""
        each = F.binary_cross_entropy_with_logits(logits, failed.to(logits), reduction="none")
        return (each * counts).sum() / counts.sum().clamp_min(1)
