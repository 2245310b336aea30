"""Momentum that outlasts a turn: fast implementations equal the readable function, values and gradients."""

import math

import pytest
import torch
from twins import strided

from gtmsm.kernels.operator import forced
from gtmsm.kernels.scans.glide_scan import glide_steps, glide_walk

NAMES = ("displacements", "velocities", "start", "u", "cos", "sin", "pre", "keep", "W", "V")
TRITON_SHAPES = [(1, 1, 1), (1, 7, 8), (3, 33, 5), (5, 3, 100), (2, 0, 4), (0, 3, 4)]
LONG_SHAPES = [(16, 181, 64), (3, 1500, 64), (2, 20, 600)]  # too long to interpret


def glide(batch, time, hidden, dtype=torch.float64):
    """Inputs of a scan, with a network that is active everywhere."""
    generator = torch.Generator().manual_seed(1000 * batch + 100 * time + hidden)

    def draw(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)

    turn = draw(batch, time)
    inputs = [draw(batch, 2), 0.3 * draw(batch, time, 2), turn.cos(), turn.sin(), draw(batch, time, hidden)]
    return [*inputs, draw(2).sigmoid(), draw(hidden, 2), 0.2 / math.sqrt(hidden) * draw(4, hidden)]


def values_and_gradients(implementation, inputs):
    """Displacements and velocities, and the gradients of an uneven sum of both."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    with forced(implementation):
        d, v = glide_steps(*leaves)
        if not inputs[1].shape[1]:  # without a step the readable function depends on nothing
            return [d, v, *(torch.zeros_like(x) for x in inputs)]
        weigh = torch.linspace(0.5, 2, d.numel(), dtype=d.dtype, device=d.device).view_as(d)
        return [d, v, *torch.autograd.grad((weigh * d.square() + weigh.flip(1) * v).sum(), leaves)]


def assert_all_close(fast, readable, **tolerance):
    for name, one, other in zip(NAMES, fast, readable, strict=True):
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 4, 3), (1, 6, 5)])
@pytest.mark.parametrize("implementation", ["readable", "cpu"])
def test_gradients_agree_with_finite_differences(shape, implementation):
    inputs = [x.requires_grad_() for x in glide(*shape)]
    with forced(implementation):
        assert torch.autograd.gradcheck(glide_steps, inputs)


def test_pytorch_accepts_its_registration():
    torch.library.opcheck(torch.ops.gtmsm.glide_steps.default, [x.requires_grad_() for x in glide(3, 5, 4)])


@pytest.mark.parametrize("shape", [*TRITON_SHAPES, (1, 40, 1), (16, 181, 64)])
def test_the_numpy_scan_equals_the_scan_by_steps(shape):
    inputs = glide(*shape)
    fast = values_and_gradients("cpu", inputs)
    assert_all_close(fast, values_and_gradients("readable", inputs), rtol=1e-10, atol=1e-10)


def test_the_numpy_scan_keeps_the_precision_of_its_inputs():
    inputs = glide(3, 9, 5, dtype=torch.float32)
    fast = values_and_gradients("cpu", inputs)
    readable = values_and_gradients("readable", [x.double() for x in inputs])
    assert all(part.dtype == torch.float32 for part in fast)
    assert_all_close(fast, [part.float() for part in readable], rtol=1e-4, atol=1e-4)


def test_the_numpy_scan_takes_strided_and_expanded_inputs_and_changes_none():
    start, u, cos, sin, pre, *network = glide(1, 6, 5)
    inputs = [start.expand(4, 2), *(strided(x.expand(4, *x.shape[1:])) for x in (u, cos, sin, pre)), *network]
    before = [x.clone() for x in inputs]
    torch.testing.assert_close(glide_steps(*inputs), glide_steps.readable(*inputs), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(inputs, before, rtol=0, atol=0)


def test_velocities_that_change_before_the_backward_pass_are_noticed():
    d, v = glide_steps(*(x.requires_grad_() for x in glide(1, 5, 3)))
    v.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        d.sum().backward()


def test_one_step_is_friction_push_correction_and_a_turn_of_the_frame():
    v, u, cos, sin, pre, keep, W, V = glide(3, 1, 4)
    d, left = glide_steps(v, u, cos, sin, pre, keep, W, V)
    for i in range(3):
        hidden = torch.relu(pre[i, 0] + W @ v[i])
        kept = keep * v[i] + u[i, 0]
        torch.testing.assert_close(d[i, 0], kept + V[:2] @ hidden, rtol=1e-12, atol=1e-12)
        turned_back = torch.stack([torch.stack([cos[i, 0], sin[i, 0]]), torch.stack([-sin[i, 0], cos[i, 0]])])
        torch.testing.assert_close(left[i, 0], turned_back @ (kept + V[2:] @ hidden), rtol=1e-12, atol=1e-12)


def test_without_steps_nothing_moves():
    d, v = glide_steps(*glide(4, 0, 6))
    assert d.shape == v.shape == (4, 0, 2)


def test_a_glide_in_two_parts_is_a_glide_at_once():
    start, u, cos, sin, pre, *network = glide(3, 11, 5)
    d, v = glide_steps(start, u, cos, sin, pre, *network)
    first = glide_steps(start, *(x[:, :4] for x in (u, cos, sin, pre)), *network)
    second = glide_steps(first[1][:, -1], *(x[:, 4:] for x in (u, cos, sin, pre)), *network)
    torch.testing.assert_close(torch.cat([first[0], second[0]], 1), d, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.cat([first[1], second[1]], 1), v, rtol=1e-12, atol=1e-12)


def test_many_networks_can_be_tried_at_once():
    *inputs, keep, W, V = glide(2, 5, 4)
    every = torch.stack([keep, 0.5 * keep])
    at_once = torch.func.vmap(lambda one: glide_steps(*inputs, one, W, V)[1])(every)
    torch.testing.assert_close(at_once[1], glide_steps(*inputs, every[1], W, V)[1], rtol=1e-12, atol=1e-12)


def for_triton(device, *shape):
    return [x.to(device) for x in glide(*shape, dtype=torch.float32)]


@pytest.mark.parametrize("shape", TRITON_SHAPES + (LONG_SHAPES if torch.cuda.is_available() else []))
def test_the_triton_scan_equals_the_scan_by_steps(shape, triton_device):
    inputs = for_triton(triton_device, *shape)
    fast = values_and_gradients("cuda", inputs)
    readable = values_and_gradients("readable", [x.double() for x in inputs])
    assert all(part.dtype == torch.float32 for part in fast)
    assert_all_close(fast, [part.float() for part in readable], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("steps", [128, 130])
def test_the_triton_scan_differentiates_a_long_walk_in_rounds(steps, triton_device, monkeypatch):
    from gtmsm.kernels.scans import glide_scan_triton

    monkeypatch.setattr(glide_scan_triton, "STEPS_AT_ONCE", 128)
    inputs = for_triton(triton_device, 1, steps, 3)
    fast = values_and_gradients("cuda", inputs)
    readable = values_and_gradients("readable", [x.double() for x in inputs])
    assert_all_close(fast, [part.float() for part in readable], rtol=1e-3, atol=1e-3)


def test_the_triton_scan_takes_strided_and_expanded_inputs(triton_device):
    start, u, cos, sin, pre, *network = for_triton(triton_device, 1, 6, 5)
    pushes = u.expand(4, 6, 2).transpose(0, 1).contiguous().transpose(0, 1)
    inputs = [start.expand(4, 2), pushes, cos.expand(4, 6), sin.expand(4, 6), pre.expand(4, 6, 5), *network]
    with forced("cuda"):
        fast = glide_steps(*inputs)
    for one, other in zip(fast, glide_steps.readable(*inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("implementation", ["cpu", "cuda"])
def test_only_one_of_the_two_results_may_have_a_gradient(which, implementation, request):
    device = request.getfixturevalue("triton_device") if implementation == "cuda" else "cpu"
    gradients = []
    for each in (implementation, "readable"):
        leaves = [x.requires_grad_() for x in for_triton(device, 3, 9, 5)]
        with forced(each):
            gradients.append(torch.autograd.grad(glide_steps(*leaves)[which].sum(), leaves))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)


# ---- by what actions say


def walk(batch, time, hidden, actions=4, dtype=torch.float64):
    """Inputs of a walk, with a network that is active everywhere."""
    generator = torch.Generator().manual_seed(1000 * batch + 100 * time + hidden)

    def draw(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)

    by_actions = [0.3 * draw(2, actions), 0.5 * draw(actions), draw(hidden, actions), draw(hidden)]
    network = [draw(2).sigmoid(), draw(hidden, 2), 0.2 / math.sqrt(hidden) * draw(4, hidden)]
    return [draw(batch, 5), draw(batch, time, actions), *by_actions, *network]


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 33, 5), (2, 0, 4), (0, 3, 4), (600, 9, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_walk_without_gradients_equals_the_readable_one(shape, dtype):
    inputs = walk(*shape, dtype=dtype)
    with forced("cpu"):
        fast = glide_walk(*inputs)
    with forced("readable"):
        readable = glide_walk(*inputs)
    error = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(fast, readable, **error)
    assert fast.permute(2, 1, 0).is_contiguous()  # numbers of a kind lie side by side


def test_pytorch_accepts_the_registration_of_a_walk():
    torch.library.opcheck(torch.ops.gtmsm.glide_walk.default, walk(3, 5, 4))


def test_who_learns_from_a_walk_gets_the_gradients_of_the_readable_one():
    def gradients(implementation):
        leaves = [x.requires_grad_() for x in walk(2, 7, 5)]
        with forced(implementation):
            states = glide_walk(*leaves)
        return torch.autograd.grad(states.square().sum(), leaves)

    for one, other in zip(gradients("cpu"), gradients("readable"), strict=True):
        torch.testing.assert_close(one, other)


def test_rounding_of_networks_leaves_a_walk_as_it_is():
    inputs = walk(3, 9, 8, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        rough = glide_walk(*inputs)
    torch.testing.assert_close(rough, glide_walk(*inputs), rtol=0, atol=0)
