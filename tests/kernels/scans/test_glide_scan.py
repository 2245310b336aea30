"""Momentum that survives a turn: the fast twin equals the readable one, values and gradients."""

import math

import pytest
import torch
from twins import strided

from gtmsm.kernels.choice import forced
from gtmsm.kernels.scans.glide_scan import GlideNetwork, glide_scan, glide_scan_by_steps

NAMES = ("displacements", "velocities", "start", "u", "cos", "sin", "pre", "keep", "W", "V")
TRITON_SHAPES = [(1, 1, 1), (1, 7, 8), (3, 33, 5), (5, 3, 100), (2, 0, 4), (0, 3, 4)]
LONG_SHAPES = [(16, 181, 64), (3, 1500, 64), (2, 20, 600)]  # too long to interpret


def glide(batch, time, hidden, dtype=torch.float64):
    """Inputs of a scan, its network felt everywhere."""
    generator = torch.Generator().manual_seed(1000 * batch + 100 * time + hidden)

    def draw(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)

    turn = draw(batch, time)
    inputs = [draw(batch, 2), 0.3 * draw(batch, time, 2), turn.cos(), turn.sin(), draw(batch, time, hidden)]
    return [*inputs, draw(2).sigmoid(), draw(hidden, 2), 0.2 / math.sqrt(hidden) * draw(4, hidden)]


def run(scan, inputs):
    return scan(*inputs[:5], GlideNetwork(*inputs[5:]))


def values_and_gradients(scan, inputs):
    """Displacements and velocities, and the gradients of an uneven sum of both."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    both = run(scan, leaves)
    if not inputs[1].shape[1]:  # nowhere to go: nothing the twin could be differentiated by
        return [*both, *(torch.zeros_like(x) for x in inputs)]
    weigh = torch.linspace(0.5, 2, both[0].numel(), dtype=both[0].dtype, device=both[0].device).view_as(both[0])
    return [*both, *torch.autograd.grad((weigh * both[0].square() + weigh.flip(1) * both[1]).sum(), leaves)]


def assert_equal_twins(fast, readable, **tolerance):
    for name, one, other in zip(NAMES, fast, readable, strict=True):
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 4, 3), (1, 6, 5)])
@pytest.mark.parametrize("scan", [glide_scan_by_steps, glide_scan])
def test_gradients_agree_with_finite_differences(shape, scan):
    inputs = [x.requires_grad_() for x in glide(*shape)]
    assert torch.autograd.gradcheck(lambda *x: run(scan, x), inputs)


@pytest.mark.parametrize("shape", [*TRITON_SHAPES, (1, 40, 1), (16, 181, 64)])
def test_the_numpy_scan_equals_the_scan_by_steps(shape):
    inputs = glide(*shape)
    fast = values_and_gradients(by_numpy, inputs)
    assert_equal_twins(fast, values_and_gradients(glide_scan_by_steps, inputs), rtol=1e-10, atol=1e-10)


def test_the_numpy_scan_keeps_the_precision_of_its_inputs():
    inputs = glide(3, 9, 5, dtype=torch.float32)
    fast = values_and_gradients(by_numpy, inputs)
    readable = values_and_gradients(glide_scan_by_steps, [x.double() for x in inputs])
    assert all(part.dtype == torch.float32 for part in fast)
    assert_equal_twins(fast, [part.float() for part in readable], rtol=1e-4, atol=1e-4)


def test_the_numpy_scan_takes_strided_and_expanded_inputs_and_changes_none():
    start, u, cos, sin, pre, *network = glide(1, 6, 5)
    inputs = [start.expand(4, 2), *(strided(x.expand(4, *x.shape[1:])) for x in (u, cos, sin, pre)), *network]
    before = [x.clone() for x in inputs]
    torch.testing.assert_close(run(by_numpy, inputs), run(glide_scan_by_steps, inputs), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(inputs, before, rtol=0, atol=0)


def test_who_overwrites_what_the_numpy_scan_made_spoils_no_gradient():
    gradients = []
    for spoil in (False, True):
        leaves = [x.requires_grad_() for x in glide(1, 5, 3)]
        d, v = run(by_numpy, leaves)
        loss = (d + 2 * v).sum()
        if spoil:
            d.data.zero_()
            v.data.zero_()
        gradients.append(torch.autograd.grad(loss, leaves))
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_one_step_is_friction_push_correction_and_a_turn_of_the_frame():
    v, u, cos, sin, pre, keep, W, V = glide(3, 1, 4)
    d, left = run(glide_scan, [v, u, cos, sin, pre, keep, W, V])
    for i in range(3):
        hidden = torch.relu(pre[i, 0] + W @ v[i])
        kept = keep * v[i] + u[i, 0]
        torch.testing.assert_close(d[i, 0], kept + V[:2] @ hidden, rtol=1e-12, atol=1e-12)
        turned_back = torch.stack([torch.stack([cos[i, 0], sin[i, 0]]), torch.stack([-sin[i, 0], cos[i, 0]])])
        torch.testing.assert_close(left[i, 0], turned_back @ (kept + V[2:] @ hidden), rtol=1e-12, atol=1e-12)


def test_without_steps_nothing_moves():
    d, v = run(glide_scan, glide(4, 0, 6))
    assert d.shape == v.shape == (4, 0, 2)


def test_a_glide_in_two_parts_is_a_glide_at_once():
    start, u, cos, sin, pre, *network = glide(3, 11, 5)
    d, v = run(glide_scan, [start, u, cos, sin, pre, *network])
    first = run(glide_scan, [start, *(x[:, :4] for x in (u, cos, sin, pre)), *network])
    second = run(glide_scan, [first[1][:, -1], *(x[:, 4:] for x in (u, cos, sin, pre)), *network])
    torch.testing.assert_close(torch.cat([first[0], second[0]], 1), d, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.cat([first[1], second[1]], 1), v, rtol=1e-12, atol=1e-12)


def by_numpy(*inputs):
    with forced("cpu"):
        return glide_scan(*inputs)


def test_many_networks_can_be_tried_at_once():
    *inputs, keep, W, V = glide(2, 5, 4)
    every = torch.stack([keep, 0.5 * keep])
    at_once = torch.func.vmap(lambda one: run(glide_scan, [*inputs, one, W, V])[1])(every)
    torch.testing.assert_close(at_once[1], run(glide_scan, [*inputs, every[1], W, V])[1], rtol=1e-12, atol=1e-12)


def by_triton(*inputs):
    with forced("triton"):
        return glide_scan(*inputs)


def for_triton(device, *shape):
    return [x.to(device) for x in glide(*shape, dtype=torch.float32)]


@pytest.mark.parametrize("shape", TRITON_SHAPES + (LONG_SHAPES if torch.cuda.is_available() else []))
def test_the_triton_scan_equals_the_scan_by_steps(shape, triton_device):
    inputs = for_triton(triton_device, *shape)
    fast = values_and_gradients(by_triton, inputs)
    readable = values_and_gradients(glide_scan_by_steps, [x.double() for x in inputs])
    assert all(part.dtype == torch.float32 for part in fast)
    assert_equal_twins(fast, [part.float() for part in readable], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("steps", [128, 130])
def test_the_triton_scan_goes_back_in_rounds_where_a_walk_is_long(steps, triton_device, monkeypatch):
    from gtmsm.kernels.scans import glide_scan_triton

    monkeypatch.setattr(glide_scan_triton, "STEPS_AT_ONCE", 128)
    inputs = for_triton(triton_device, 1, steps, 3)
    fast = values_and_gradients(by_triton, inputs)
    readable = values_and_gradients(glide_scan_by_steps, [x.double() for x in inputs])
    assert_equal_twins(fast, [part.float() for part in readable], rtol=1e-3, atol=1e-3)


def test_the_triton_scan_takes_strided_and_expanded_inputs(triton_device):
    start, u, cos, sin, pre, *network = for_triton(triton_device, 1, 6, 5)
    pushes = u.expand(4, 6, 2).transpose(0, 1).contiguous().transpose(0, 1)
    inputs = [start.expand(4, 2), pushes, cos.expand(4, 6), sin.expand(4, 6), pre.expand(4, 6, 5), *network]
    for one, other in zip(run(by_triton, inputs), run(glide_scan_by_steps, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("which", [0, 1])
def test_only_one_of_the_two_results_may_be_learned_from(which, triton_device):
    gradients = []
    for scan in (by_triton, glide_scan_by_steps):
        leaves = [x.requires_grad_() for x in for_triton(triton_device, 3, 9, 5)]
        gradients.append(torch.autograd.grad(run(scan, leaves)[which].sum(), leaves))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)
