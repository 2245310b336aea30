"""Attention to memorised frames retrieved by true pose, as in WorldMem (Xiao et al., 2025), far smaller."""

import torch
from torch import nn

from gtmsm.config import require
from gtmsm.model.memory import nearest
from gtmsm.pose import space_of
from gtmsm.rivals.rival import GaussianHead, Predicted, Rival, RivalDescription
from gtmsm.rivals.transformer import Block
from gtmsm.tensors import Actions, Belief, FutureActions, Gaussian, TruePoses, gather


class ContextPoses(Rival):
    """The K memorised frames nearest to the true pose become tokens (z_k, relative pose); p(z_t | tokens).

    The mean is a weighted sum of their codes plus a correction, so that the code of a revisited place need not pass
    through layers.
    """

    context = "{neighbours} of all frames"
    needs_poses = True
    privileges = ("true poses of all memorised steps and of all steps to predict, in training and at test",)

    def __init__(self, about: RivalDescription) -> None:
        super().__init__(about)
        rival = about.rival
        require(about.pose_size >= 2, f"context-poses needs true poses, and these have {about.pose_size} numbers")
        self.space = space_of(about.pose_size)
        places = self.space.place(torch.zeros(1, about.pose_size)).shape[-1]
        self.embed = nn.Linear(2 * self.code_size + places + 1, rival.width)
        self.query = nn.Parameter(torch.zeros(rival.width))
        self.blocks = nn.Sequential(*(Block(rival.width, rival.heads, rotary=False) for _ in range(rival.layers)))
        self.norm, self.score = nn.LayerNorm(rival.width), nn.Linear(rival.width, 1)
        self.head = GaussianHead(rival.width, self.code_size)

    def predict(
        self,
        code: Gaussian,
        a: Actions,
        plan: FutureActions,
        poses: TruePoses | None = None,
        generator: torch.Generator | None = None,
    ) -> Predicted:
        """See `Rival`; actions are ignored, since true poses are given."""
        assert poses is not None
        with torch.autocast(a.device.type, enabled=False):
            kept, asked = (self.space.place(part) for part in poses)
            near = nearest(Belief(kept), Belief(asked), min(self.settings.neighbours, kept.shape[1]))
            relative = self.space.relative(gather(kept, near.index), asked[:, :, None])
        mean, log_var = gather(code.mean, near.index), gather(code.log_var, near.index)
        far = (near.distance2[..., None] + 1e-4).log()
        entries = self.embed(torch.cat([mean, 0.1 * log_var, relative, 0.1 * far], dim=-1).flatten(0, 1))
        query = self.query.to(entries.dtype).expand(len(entries), 1, -1)
        h = self.norm(self.blocks(torch.cat([query, entries], dim=1)))
        weight = self.score(h)[:, 1:].softmax(1).to(mean.dtype).unflatten(0, plan.shape[:2])
        change = self.head(h[:, 0]).unflatten(0, (len(plan), plan.shape[1]))
        return Predicted(Gaussian((weight * mean).sum(-2) + change.mean, change.log_var))
