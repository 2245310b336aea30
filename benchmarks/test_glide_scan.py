"""The glide scan on a CPU, forward and backward, against its readable function in the same run."""

import torch

from gtmsm.kernels.scans.glide_scan import glide_steps

BATCH, STEPS, HIDDEN = 32, 182, 64  # those of an update of `walk`
AT_LEAST = 3


def a_walk():
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    turn = draw(BATCH, STEPS)
    inputs = [draw(BATCH, 2), 0.3 * draw(BATCH, STEPS, 2), turn.cos(), turn.sin(), draw(BATCH, STEPS, HIDDEN)]
    network = [draw(2).sigmoid(), draw(HIDDEN, 2), 0.2 * draw(4, HIDDEN) / HIDDEN**0.5]
    return [x.requires_grad_() for x in (*inputs, *network)]


def forward_and_backward(scan, leaves):
    moved, velocity = scan(*leaves)
    return [moved, velocity, *torch.autograd.grad(moved.square().mean() + velocity.square().mean(), leaves)]


def step_by_step(leaves):
    with forced("readable"):
        return forward_and_backward(leaves)


def test_the_numpy_scan_is_several_times_faster_than_step_by_step(compare):
    leaves = a_walk()
    exact = [x.detach().double().requires_grad_() for x in leaves]
    made, plain = (forward_and_backward(scan, exact) for scan in (glide_steps, glide_steps.readable))
    torch.testing.assert_close(made, plain, rtol=1e-8, atol=1e-10)
    compare(
        f"{BATCH} gliding walks of {STEPS} steps, forward and backward", "step by step",
        lambda: forward_and_backward(glide_steps.readable, leaves), lambda: forward_and_backward(glide_steps, leaves),
        AT_LEAST,
    )  # fmt: skip
