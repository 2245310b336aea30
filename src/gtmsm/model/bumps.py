"""Steps that fail: a classifier from the view before a step to whether the agent bumps (not in the paper).

A step that fails counts as one without an action. While memorising, the inputs are the frame before a step and whether
the frame after it is the same; while imagining, the view that memory predicts before the step.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.model.mlp import Mlp
from gtmsm.tensors import Actions, Belief, Codes, PerStep, State, States

if TYPE_CHECKING:
    from gtmsm.model.gtmsm import WorldModel
    from gtmsm.model.memory import Memory

NEAR = 1e-4
"""Squared distance below which an entry counts as seen at the same place."""
SAME = 1e-3
"""Largest difference of two codes of the same frame, encoded in different batches."""


class Bumps(nn.Module):
    """Log-odds that an action fails, or has failed, from the code of the view before it.

    Two more inputs are how far away that view was seen, and whether it is the same after the step: 1 if it is, -1 if
    not, 0 if unknown.
    """

    def __init__(self, code_size: int, action_size: int, width: int) -> None:
        super().__init__()
        self.network = Mlp(code_size + 2, width, width, action_size)

    def forward(self, view: Codes, actions: Actions, distance2: PerStep, same: PerStep) -> PerStep:
        """Log-odds; `distance2`: to the entry that the view was predicted from, 0 for the view itself."""
        inputs = torch.cat([view, (distance2 + NEAR).log().to(view)[..., None], same.to(view)[..., None]], dim=-1)
        logits = self.network(inputs.flatten(0, -2)).view(*view.shape[:-1], -1)
        return (logits.float() * actions).sum(-1)

    def noticed(self, codes: Codes, actions: Actions, before: Float[Tensor, "batch Z"] | None) -> Actions:
        """The actions, with 0 for those that failed; the first counts as successful without a view `before` it."""
        codes = codes if before is None else torch.cat([before[:, None], codes], dim=1)
        views, after = codes[:, :-1], codes[:, 1:]
        if not views.shape[1]:
            return actions
        same = ((views - after).abs().amax(-1) < SAME).to(views)
        failed = self(views, actions[:, -views.shape[1] :], torch.zeros_like(same), 2 * same - 1) > 0
        return actions.masked_fill(F.pad(failed, (actions.shape[1] - failed.shape[1], 0))[..., None], 0.0)

    def foreseen(
        self,
        model: "WorldModel",
        memory: "Memory",
        here: State,
        plan: Actions,
        unroll: Callable[[State, Actions], States] | None = None,
    ) -> Actions:
        """The plan, with 0 for actions that would fail; `unroll`: where actions lead, by default the motion's.

        All steps are computed at once, repeatedly until nothing changes. Each round settles at least one more step, so
        the result is that of a loop over steps. The number of rounds is the number of bumps plus one.
        """
        unroll = unroll or model.motion.unroll
        made, before = plan, torch.empty_like(plan[:, :0])
        while not torch.equal(made, before):
            path = torch.cat([here[:, None], unroll(here, made[:, :-1])], dim=1)
            forecast = model.read(memory, Belief(model.motion.place(path)))
            near = forecast.neighbours.distance2.amin(-1)
            fails = self(forecast.peak(), plan, near, torch.zeros_like(near)) > 0
            made, before = plan.masked_fill(fails[..., None], 0.0), made
        return made

    def loss(self, logits: PerStep, failed: PerStep, counts: PerStep) -> Float[Tensor, ""]:
        """Cross-entropy in nats, averaged over the steps that `counts` selects."""
        each = F.binary_cross_entropy_with_logits(logits, failed.to(logits), reduction="none")
        return (each * counts).sum() / counts.sum().clamp_min(1)
