"""What each rival can learn: otherwise its failure elsewhere might be our mistake."""

import pytest
import torch

from gtmsm.data.clip import Clip
from gtmsm.evaluation.forecaster import given_to
from gtmsm.evaluation.metrics import frame_mse, psnr_pooled
from gtmsm.rivals.build import KINDS

TAU = 4
SIZES = {
    "gru": (300, 96, 5 / 3),
    "rssm": (250, 64, 1.5, 64),
    "transformer": (150, 32, 1.5),
    "ssm": (220, 32),
    "gtmm-introspection": (80, 32, 1.5),
}
"""Updates, width, rate and batch, where they are not 120, 32, 1 and 16."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_walk_that_repeats_itself_is_predicted(kind, train, clip, tmp_path):
    rival = train(kind, tmp_path, *SIZES.get(kind, (120, 32)))
    future = clip.x[:, TAU:]
    reached = psnr_pooled(frame_mse(future, rival.forecast(*given_to(rival, clip, TAU, clip.x.device))))
    blended = psnr_pooled(frame_mse(future, clip.x[:, :TAU].mean(1, keepdim=True).expand_as(future)))
    assert reached > blended + 5
    # No leak: with the frames of other walks it is no better than their mean is.
    others = Clip(torch.cat([clip.x[:, :TAU].roll(1, 0), future], dim=1), clip.a, clip.true_pose, clip.true_step)
    robbed = psnr_pooled(frame_mse(future, rival.forecast(*given_to(rival, others, TAU, clip.x.device))))
    strange = psnr_pooled(frame_mse(future, others.x[:, :TAU].mean(1, keepdim=True).expand_as(future)))
    assert robbed < strange + 1
