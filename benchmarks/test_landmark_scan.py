"""The landmark scan on a CPU against its readable implementation in the same run."""

import torch

from gtmsm.kernels.operator import forced
from gtmsm.kernels.scans.landmark_scan import landmark_scan

BATCH, TAU, HORIZON, K, HIDDEN = 32, 256, 32, 8, 64
AT_LEAST = 6


def a_walk(dtype):
    """Inputs of a walk between walls that knows nothing yet and sights K of its own earlier steps at each."""
    generator = torch.Generator().manual_seed(0)
    steps = TAU + HORIZON

    def draw(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    earlier = torch.arange(steps)[:, None] - 1 - torch.arange(K)
    log_odds = torch.where(earlier >= 0, 1 + draw(BATCH, steps, K), -torch.inf)
    index = earlier.clamp_min(0).expand(BATCH, steps, K)
    walk = draw(BATCH, 2), 0.3 * draw(BATCH, steps, 2), draw(HIDDEN, 2), draw(HIDDEN), draw(HIDDEN) / HIDDEN, draw()
    variance = torch.full((BATCH, 1), 0.1, dtype=dtype)
    sights = index, log_odds, 0.3 * draw(BATCH, steps, K, 2), 0.1 * draw(BATCH, steps, K, 1).exp()
    return *walk, variance, *sights, draw(BATCH, 0, 2), draw(BATCH, 0, 1), 0.1, 0.02, 0.5


def test_the_numpy_scan_is_several_times_faster_than_step_by_step(compare):
    exact, walk = a_walk(torch.float64), a_walk(torch.float32)

    def step_by_step(inputs):
        with forced("readable"):
            return landmark_scan(*inputs)

    torch.testing.assert_close(landmark_scan(*exact), step_by_step(exact), rtol=1e-8, atol=1e-10)
    compare(
        f"{BATCH} walks of {TAU + HORIZON} steps that recognise {K} places each", "step by step",
        lambda: step_by_step(walk),
        lambda: landmark_scan(*walk),
        AT_LEAST,
    )  # fmt: skip
