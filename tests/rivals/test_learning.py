"""What each rival can learn: otherwise its failure elsewhere might be our mistake."""

import pytest

from gtmsm.evaluation.forecaster import given_to
from gtmsm.evaluation.metrics import frame_mse, psnr_pooled
from gtmsm.rivals.build import KINDS

TAU = 4
LONGER = {"gru": (300, 96, 5 / 3), "rssm": (400, 64), "transformer": (200, 32), "ssm": (220, 32)}
"""Updates, width and rate of those that need more than 120, 32 and 1."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_walk_that_repeats_itself_is_predicted(kind, train, clip, tmp_path):
    rival = train(kind, tmp_path, *LONGER.get(kind, (120, 32)))
    future = clip.x[:, TAU:]
    reached = psnr_pooled(frame_mse(future, rival.forecast(*given_to(rival, clip, TAU, clip.x.device))))
    blended = psnr_pooled(frame_mse(future, clip.x[:, :TAU].mean(1, keepdim=True).expand_as(future)))
    assert reached > blended + 5
