"""The landmark scan on a CPU, there and back, against its readable twin in the same run."""

import time

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


def seconds(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def test_the_numpy_scan_is_several_times_faster_than_step_by_step(benchmark, capsys):
    leaves, index = a_walk()
    exact = [x.detach().double().requires_grad_() for x in leaves]
    made, plain = (there_and_back(scan, exact, index) for scan in (landmark_scan_cpu.scan, by_steps))
    torch.testing.assert_close(made, plain, rtol=1e-8, atol=1e-10)

    benchmark.pedantic(lambda: there_and_back(landmark_scan_cpu.scan, leaves, index), rounds=20, warmup_rounds=2)
    if benchmark.disabled:
        return
    # The twin's best against our median: what a busy machine adds counts against us.
    slow_seconds = min(seconds(lambda: there_and_back(by_steps, leaves, index)) for _ in range(3))
    fast_seconds = benchmark.stats.stats.median
    ratio = slow_seconds / fast_seconds
    benchmark.extra_info.update(step_by_step_seconds=slow_seconds, ratio=ratio)
    with capsys.disabled():
        print(
            f"\n{BATCH} walks of {TAU + HORIZON} steps that recognise {K} places each, there and back: step by step "
            f"{1e3 * slow_seconds:.0f} ms, gtmsm {1e3 * fast_seconds:.0f} ms, {ratio:.0f} times faster "
            f"(at least {AT_LEAST} asked for)"
        )
    assert ratio >= AT_LEAST
