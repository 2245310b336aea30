"""Steps in an agent's own frame put together: the fast twin equals the readable one, however long it turns."""

import math

import pytest
import torch
from torch.func import functional_call, jacrev, vmap

from gtmsm.kernels.choice import forced
from gtmsm.kernels.scans.compose import compose, compose_by_sums

SHAPES = [(1, 1), (1, 9), (3, 17), (2, 128), (5, 129), (2, 300), (1, 1024), (2, 1025), (1, 2100)]  # batch, time
LONG_SHAPES = [(64, 288), (128, 182), (700, 33)]  # too many to interpret
EMPTY_SHAPES = [(0, 4), (3, 0), (0, 0)]


def walk(batch, time, dtype=torch.float64, device="cpu", turn=0.3):
    """Where it starts, its steps, and noise."""
    generator = torch.Generator().manual_seed(100 * batch + time)
    shapes = (batch, 3), (batch, time, 3), (batch, time, 3)
    start, d, noise = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)
    d = d * torch.tensor([0.3, 0.1, turn], dtype=torch.float64)
    return [x.to(device, dtype) for x in (start, d, 0.01 * noise)]


def value_and_gradients(function, start, d, noise, dtype=None):
    """Of a sum in which no two numbers count alike."""
    given = (start, d) if noise is None else (start, d, noise)
    leaves = [x.detach().to(dtype or x.dtype).requires_grad_() for x in given]
    poses = function(*leaves, *([None] if noise is None else []))
    uneven = torch.linspace(-1, 2, poses.numel(), dtype=poses.dtype, device=poses.device).view_as(poses)
    return [poses.detach(), *torch.autograd.grad((uneven * poses).sum(), leaves)]


def assert_equal_twins(fast, readable, rtol=1e-5, atol=1e-5):
    for name, one, other in zip(("poses", "start", "d", "noise"), fast, readable, strict=False):
        assert one.shape == other.shape
        # sums of very many numbers: rounded as the largest of them are
        within = atol * max(1.0, other.abs().max().item() if other.numel() else 0.0)
        torch.testing.assert_close(
            one, other.to(one.dtype), rtol=rtol, atol=within, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert len(fast) == len(readable)


def test_a_step_leads_along_the_heading_before_it():
    d = torch.tensor([[[2.0, 0.0, math.pi / 2], [3.0, 1.0, 0.0]]])
    poses = compose(torch.tensor([[1.0, 1.0, 0.0]]), d, None)
    torch.testing.assert_close(poses[0], torch.tensor([[3.0, 1.0, math.pi / 2], [2.0, 4.0, math.pi / 2]]))


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (3, 0)])
def test_gradients_of_the_readable_twin_are_those_of_its_differences(shape):
    start, d, noise = (x.requires_grad_() for x in walk(*shape))
    assert torch.autograd.gradcheck(compose_by_sums, [start, d, noise])
    assert torch.autograd.gradcheck(lambda start, d: compose_by_sums(start, d, None), [start, d])


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("shape", SHAPES + EMPTY_SHAPES + (LONG_SHAPES if torch.cuda.is_available() else []))
def test_the_triton_twin_equals_the_readable_one(shape, noisy, triton_device):
    start, d, noise = walk(*shape, torch.float32, triton_device)
    inputs = start, d, noise if noisy else None
    with forced("triton"):
        fast = value_and_gradients(compose, *inputs)
    assert_equal_twins(fast, value_and_gradients(compose_by_sums, *inputs, torch.float64))


@pytest.mark.parametrize("heading", [0.0, 1e2, -7e2, 4e3, -1e4])
def test_headings_of_many_turns_still_point_the_right_way(heading, triton_device):
    """Every direction at once: each walk makes one step along the heading it starts with."""
    start = torch.zeros(60, 3, device=triton_device)
    start[:, 2] = heading + torch.linspace(-7, 7, 60, device=triton_device)
    d = torch.tensor([1.0, 0.0, 0.0], device=triton_device).expand(60, 1, 3)
    with forced("triton"):
        x, y, _ = compose(start, d, None)[:, 0].double().unbind(-1)
    exact = start[:, 2].double()
    torch.testing.assert_close(x, exact.cos(), rtol=0, atol=1.5e-7)
    torch.testing.assert_close(y, exact.sin(), rtol=0, atol=1.5e-7)


def test_turning_on_the_way_for_hundreds_of_radians_loses_no_more_than_rounding(triton_device):
    start, d, noise = walk(2, 600, torch.float32, triton_device)
    d[..., 2] = 1.0  # and exact: what is left is what sums of moves lose
    inputs = start.round(), d, (noise * 1024).round() / 1024
    with forced("triton"):
        fast = value_and_gradients(compose, *inputs)
    assert fast[0][..., 2].min() < 10 and fast[0][..., 2].max() > 590
    assert_equal_twins(fast, value_and_gradients(compose_by_sums, *inputs, torch.float64), rtol=1e-6, atol=2e-6)


def test_a_walk_far_from_the_origin_is_made_of_the_same_steps(triton_device):
    start, d, noise = walk(3, 40, torch.float32, triton_device)
    far = start + torch.tensor([1e4, -1e4, 0.0], device=triton_device)
    with forced("triton"):
        here, there = (value_and_gradients(compose, begin, d, noise) for begin in (start, far))
    assert_equal_twins(there[:1], value_and_gradients(compose_by_sums, far, d, noise, torch.float64)[:1], rtol=1e-7)
    assert all(torch.equal(one, other) for one, other in zip(here[1:], there[1:], strict=True))


def test_parts_of_something_wider_need_no_copy(triton_device):
    start, d, noise = walk(2, 6, torch.float32, triton_device)
    wide = [torch.cat([x, x + 1], -1) for x in (start, d, noise)]
    awkward = {
        "the first three columns": [x[..., :3] for x in wide],
        "every second column": [x[..., ::2] for x in wide],
        "axes stored backwards": [x.mT.contiguous().mT for x in (start, d, noise)],
        "one for the whole batch": [x[:1].expand_as(x) for x in (start, d, noise)],
        "one for all times": [start, d[:, :1].expand_as(d), noise[:, :1].expand_as(noise)],
    }  # fmt: skip
    for name, inputs in awkward.items():
        assert not inputs[1].is_contiguous(), name
        with forced("triton"):
            fast = value_and_gradients(compose, *inputs)
        assert_equal_twins(fast, value_and_gradients(compose_by_sums, *inputs, torch.float64))


def test_what_is_asked_of_poses_need_not_be_contiguous(triton_device):
    leaves = [x.requires_grad_() for x in walk(2, 7, torch.float32, triton_device)]
    with forced("triton"):
        poses = compose(*leaves)
    for read in (
        lambda s: s.sum(),
        lambda s: s[:, 2:5, 1].sum(),
        lambda s: torch.cat([s, 2 * s], -1).square()[..., :5].sum(),
        lambda s: (s.transpose(0, 1) @ s.new_ones(3, 2)).sum(),
    ):
        fast = torch.autograd.grad(read(poses), leaves, retain_graph=True)
        readable = torch.autograd.grad(read(compose_by_sums(*leaves)), leaves)
        assert_equal_twins(fast, readable)


@pytest.mark.parametrize("learns", [(True, False, False), (False, True, False), (False, False, True)])
def test_what_needs_no_gradient_gets_none(learns, triton_device):
    inputs = walk(2, 7, torch.float32, triton_device)
    expected = value_and_gradients(compose_by_sums, *inputs)[1:]
    leaves = [x.requires_grad_(needed) for x, needed in zip(inputs, learns, strict=True)]
    with forced("triton"):
        poses = compose(*leaves)
    (torch.linspace(-1, 2, poses.numel(), device=triton_device).view_as(poses) * poses).sum().backward()
    for leaf, needed, gradient in zip(leaves, learns, expected, strict=True):
        if needed:
            torch.testing.assert_close(leaf.grad, gradient, rtol=1e-5, atol=1e-5)
        else:
            assert leaf.grad is None


def test_candidates_are_tried_at_once_as_one_by_one(triton_device):
    start, d, _ = walk(3, 4, torch.float32, triton_device)
    candidates = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).to(triton_device)
    module = torch.nn.Module()
    module.scale = torch.nn.Parameter(candidates[0])
    module.forward = lambda: compose(start, module.scale * d, None)
    with forced("triton"), torch.no_grad():
        one_by_one = torch.stack([compose(start, scale * d, None) for scale in candidates])
        at_once = vmap(lambda scale: functional_call(module, {"scale": scale}, ()))(candidates)
    torch.testing.assert_close(at_once, one_by_one, rtol=1e-5, atol=1e-5)


def test_a_walk_can_be_linearised(triton_device):
    start, d, _ = walk(1, 3, torch.float32, triton_device)
    with forced("triton"):
        along = jacrev(compose, argnums=1)(start, d, None)
    expected = torch.autograd.functional.jacobian(lambda d: compose_by_sums(start, d, None), d)
    torch.testing.assert_close(along, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
def test_other_precisions_are_left_to_the_readable_twin(precision, triton_device):
    start, d, noise = walk(2, 5, torch.float32, triton_device)
    with forced("triton"):
        for inputs in ((start, d.to(precision), None), (start, d, noise.to(precision))):
            assert torch.equal(compose(*inputs), compose_by_sums(*inputs))


def test_the_same_gradients_come_out_to_the_bit(triton_device):
    inputs = walk(3, 200, torch.float32, triton_device)
    with forced("triton"):
        once, again = (value_and_gradients(compose, *inputs) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))


def test_a_gpu_can_keep_a_walk_in_a_graph(in_a_graph):
    leaves = [x.requires_grad_() for x in walk(64, 288, torch.float32, "cuda")]

    def update():
        poses = compose(*leaves)
        return [poses, *torch.autograd.grad(poses.square().mean(), leaves)]

    warm, replayed = in_a_graph(update)
    assert all(torch.equal(one, other) for one, other in zip(replayed, warm, strict=True))
