"""The loss of a rival: the bound of GTM-SM with the rival's prior."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.config import require
from gtmsm.model.elbo import at_steps
from gtmsm.model.recall import RecallConfig
from gtmsm.rivals.rival import Rival
from gtmsm.tensors import Actions, Frames, Gaussian, Poses
from gtmsm.training.base_loss import BaseLoss
from gtmsm.training.loss import ObjectiveConfig, draw_steps


class RivalLoss(BaseLoss[Rival]):
    """-log p(x|z) + KL[q(z|x) || p(z | frames so far, actions)] of predicted frames; foresight; the rival's costs."""

    def __init__(self, model: Rival, objective: ObjectiveConfig) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    @property
    def names(self) -> list[str]:
        """Names of the values that `forward` logs."""
        return ["elbo", "log_likelihood", "kl", *(["foresight"] if self.objective.foresight else []), *self.model.costs]

    @property
    def reading(self) -> RecallConfig:
        """Default settings: rivals do not read memory by them, so that all stages are alike."""
        return RecallConfig()

    @property
    def groups(self) -> dict[str, list[nn.Parameter]]:
        """A single group of all parameters; a borrowed motion is held, since it has no gradients."""
        return {"rest": list(self.model.parameters())}

    def forward(
        self,
        x: Frames,
        a: Actions,
        true_step: Poses,
        tau: int,
        reading: RecallConfig,
        generator: torch.Generator,
        capacity: int | None = None,
        tried: Actions | None = None,
        true_pose: Poses | None = None,
        code: Gaussian | None = None,
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor], None]:
        """The loss and values to log; true poses are given only to a rival that declares that it needs them."""
        model, vae = self.model, self.model.vae
        asked = draw_steps(len(x), tau, x.shape[1], self.objective.targets, generator)
        seen = at_steps(x, asked, tau)
        code, context = vae.encode(seen), vae.encode(x[:, :tau])
        poses = None
        if model.needs_poses:
            known = true_pose is not None and true_pose.shape[-1] == model.about.pose_size
            require(known, f"{model.settings.kind} needs true poses, and these clips have none; record them")
            assert true_pose is not None
            poses = true_pose[:, :tau], true_pose[:, tau:]
        predicted = model.predict(context, a[:, :tau], a[:, tau:], poses, generator)
        prior = at_steps(predicted.prior, None if asked is None else asked - tau, 0)
        z, peak = code.sample(generator), None
        if self.objective.foresight:
            logits, peak = vae.logits(torch.cat([z, prior.mean])).chunk(2)
        else:
            logits = vae.logits(z)
        likely, kl = vae.log_likelihood(seen, logits).mean(), code.divergence(prior).mean()
        logs = {"elbo": likely - kl, "log_likelihood": likely, "kl": kl}
        loss = kl - likely
        if peak is not None:
            error2 = vae.error2(seen, peak).mean()
            loss = loss + self.objective.foresight * error2
            logs["foresight"] = error2 / x[0, 0].numel()
        for name, cost in predicted.costs.items():
            logs[name] = cost.mean()
            loss = loss + logs[name]
        return loss, {name: value.detach() for name, value in logs.items()}, None
