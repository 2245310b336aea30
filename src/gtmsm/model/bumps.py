"""Steps that fail: in most worlds agents bump, and what is seen before a step tells whether it will (not in the paper).

A step that fails counts as one without an action. While memorising, the frame before a step is looked at, and whether
the one after it is the same; while imagining, what memory predicts to be seen there.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.model.mlp import Mlp
from gtmsm.tensors import Actions, Belief, Codes, PerStep, State

if TYPE_CHECKING:
    from gtmsm.model.gtmsm import WorldModel
    from gtmsm.model.memory import Memory

NEAR = 1e-4
"""Squared distance below which a memory is of the very place."""
SAME = 1e-3
"""How much codes of one frame may differ, encoded beside others."""


class Bumps(nn.Module):
    """log odds that an action fails, or has failed, by the code of the view before it.

    Two more numbers tell how far away that view was seen, and whether it is the same after the step: 1 if it is, -1 if
    not, 0 where that is not known.
    """

    def __init__(self, code_size: int, action_size: int, width: int) -> None:
        super().__init__()
        self.network = Mlp(code_size + 2, width, width, action_size)

    def forward(self, view: Codes, actions: Actions, distance2: PerStep, same: PerStep) -> PerStep:
        """`distance2` of the memory that the view was predicted from; 0: it is the view itself."""
        inputs = torch.cat([view, (distance2 + NEAR).log().to(view)[..., None], same.to(view)[..., None]], dim=-1)
        logits = self.network(inputs.flatten(0, -2)).view(*view.shape[:-1], -1)
        return (logits.float() * actions).sum(-1)

    def noticed(self, codes: Codes, actions: Actions, before: Float[Tensor, "batch Z"] | None) -> Actions:
        """The actions without those that failed; of the first nobody knows, unless the view `before` it is given."""
        codes = codes if before is None else torch.cat([before[:, None], codes], dim=1)
        views, after = codes[:, :-1], codes[:, 1:]
        if not views.shape[1]:
            return actions
        same = ((views - after).abs().amax(-1) < SAME).to(views)
        failed = self(views, actions[:, -views.shape[1] :], torch.zeros_like(same), 2 * same - 1) > 0
        return actions.masked_fill(F.pad(failed, (actions.shape[1] - failed.shape[1], 0))[..., None], 0.0)

    def foreseen(self, model: "WorldModel", memory: "Memory", here: State, plan: Actions) -> Actions:
        """The plan without the steps that would fail.

        All steps at once, again and again until nothing changes: each round settles at least one step more, and what
        no round changes is what step after step would find. Rounds are as many as bumps and one, not as steps.
        """
        made, before = plan, torch.empty_like(plan[:, :0])
        while not torch.equal(made, before):
            path = torch.cat([here[:, None], model.motion.unroll(here, made[:, :-1])], dim=1)
            forecast = model.read(memory, Belief(model.motion.place(path)))
            near = forecast.neighbours.distance2.amin(-1)
            fails = self(forecast.peak(), plan, near, torch.zeros_like(near)) > 0
            made, before = plan.masked_fill(fails[..., None], 0.0), made
        return made

    def loss(self, logits: PerStep, failed: PerStep, counts: PerStep) -> Float[Tensor, ""]:
        """Nats per step that counts."""
        each = F.binary_cross_entropy_with_logits(logits, failed.to(logits), reduction="none")
        return (each * counts).sum() / counts.sum().clamp_min(1)
