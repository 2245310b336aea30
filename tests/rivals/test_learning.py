"""What each rival can learn: otherwise its failure elsewhere might be our mistake."""

import pytest
import torch
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.evaluation.forecaster import given_to
from gtmsm.evaluation.metrics import frame_mse, psnr_pooled
from gtmsm.rivals.build import KINDS

TAU = 4
SIZES = {
    "gru": (1_000, 96, 4.0, 32),
    "rssm": (350, 96, 1.5, 64),
    "transformer": (150, 32, 1.5),
    "ssm": (220, 32),
    "gtmm-introspection": (200, 32, 1.5),
    "gtmm-content": (300, 64, 2.0),
}
"""Updates, width, rate and batch, where they are not 120, 32, 1 and 16."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_walk_that_repeats_itself_is_predicted_from_its_own_frames_and_plan_alone(kind, train, clip, tmp_path):
    rival = train(kind, tmp_path, *SIZES.get(kind, (120, 32)))
    past, future = clip.split(TAU)

    def scores(x: Tensor, a: Tensor, poses: Tensor) -> tuple[float, float]:
        """PSNR of the rival, and of the mean of the memorised frames."""
        given = given_to(rival, Clip(x, a, poses, clip.true_step), TAU, x.device)
        truth, mean = x[:, TAU:], x[:, :TAU].mean(1, keepdim=True)
        return tuple(
            psnr_pooled(frame_mse(truth, frames)) for frames in (rival.forecast(*given), mean.expand_as(truth))
        )

    reached, blended = scores(clip.x, clip.a, clip.true_pose)
    assert reached > blended + 5

    # No leak: robbed of what it claims to use, it is no better than that mean is. Plans are of walks that swing alike.
    alike, same_plan = (same_walks(actions) for actions in (past.a, future.a))
    planner = (alike & ~same_plan).float().argmax(1)
    robbed = {
        "memorised frames": (joined(past.x.roll(1, 0), future.x), clip.a, clip.true_pose),
        "plan": (clip.x, joined(past.a, future.a[planner]), joined(past.true_pose, future.true_pose[planner])),
        "true frames": (joined(past.x, future.x.roll(1, 0)), clip.a, clip.true_pose),
    }
    for of_another, walk in robbed.items():
        left, by_chance = scores(*walk)
        assert left < by_chance + 1, of_another


def same_walks(actions: Tensor) -> Tensor:
    """Which walks have the same actions."""
    return (actions[:, None] == actions[None]).flatten(2).all(-1)


def joined(past: Tensor, future: Tensor) -> Tensor:
    return torch.cat([past, future], dim=1)
