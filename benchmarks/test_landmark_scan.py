"""The landmark scan on a CPU, there and back, against its readable twin in the same run."""

import torch

from gtmsm.kernels.scans import landmark_scan_cpu
from gtmsm.kernels.scans.landmark_scan import Sights, Surprise, landmark_scan_by_steps
from gtmsm.kernels.scans.walled_scan import Gate

BATCH, TAU, HORIZON, K, HIDDEN = 32, 256, 32, 8, 64
AT_LEAST = 6


def a_walk():
    """Inputs of a walk between walls that knows nothing yet and sights K of its own earlier steps at each."""
    generator = torch.Generator().manual_seed(0)
    steps = TAU + HORIZON

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    earlier = torch.arange(steps)[:, None] - 1 - torch.arange(K)
    log_odds = torch.where(earlier >= 0, 1 + draw(BATCH, steps, K), -torch.inf)
    index = earlier.clamp_min(0).expand(BATCH, steps, K)
    leaves = [draw(BATCH, 2), 0.3 * draw(BATCH, steps, 2), torch.full((BATCH, 1), 0.1)]
    leaves += [log_odds, 0.3 * draw(BATCH, steps, K, 2), 0.1 * draw(BATCH, steps, K, 1).exp()]
    leaves += [draw(HIDDEN, 2), draw(HIDDEN), draw(HIDDEN) / HIDDEN, draw()]
    return [x.requires_grad_() for x in leaves], index


def by_steps(start, displacement, gate, variance, sights, past, surprise):
    def move(s, t):
        return s + displacement[:, t] * gate(s + displacement[:, t])[..., None]

    return landmark_scan_by_steps(move, lambda s, pose: pose, start, variance, sights, past, surprise)


def there_and_back(scan, leaves, index):
    start, displacement, variance, log_odds, offset, noise, *gate = leaves
    past = start.new_zeros(BATCH, 0, 2), start.new_zeros(BATCH, 0, 1)
    sights, surprise = Sights(index, log_odds, offset, noise), Surprise(0.1, (0.02,), (0.5,))
    poses, variances = scan(start, displacement, Gate(*gate), variance, sights, past, surprise)
    return [poses, variances, *torch.autograd.grad(poses.square().mean() + variances.mean(), leaves)]


def test_the_numpy_scan_is_several_times_faster_than_step_by_step(compare):
    leaves, index = a_walk()
    exact = [x.detach().double().requires_grad_() for x in leaves]
    made, plain = (there_and_back(scan, exact, index) for scan in (landmark_scan_cpu.scan, by_steps))
    torch.testing.assert_close(made, plain, rtol=1e-8, atol=1e-10)
    compare(
        f"{BATCH} walks of {TAU + HORIZON} steps that recognise {K} places each, there and back", "step by step",
        lambda: there_and_back(by_steps, leaves, index),
        lambda: there_and_back(landmark_scan_cpu.scan, leaves, index),
        AT_LEAST,
    )  # fmt: skip
