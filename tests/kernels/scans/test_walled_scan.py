"""Walking between walls: fast implementations equal the readable function, values and gradients."""

import warnings

import pytest
import torch
from twins import strided

from gtmsm.kernels.operator import forced
from gtmsm.kernels.scans.walled_scan import walled_poses

SHAPES = [  # batch, time, S, hidden
    (1, 1, 1, 1),
    (1, 1, 2, 8),
    (1, 17, 2, 5),
    (2, 9, 3, 7),
    (3, 5, 1, 4),
    (5, 33, 2, 64),
    (7, 2, 3, 3),
    (4, 0, 2, 6),
    (1, 0, 3, 2),
]
TRITON_SHAPES = [(1, 1, 2, 1), (1, 7, 2, 8), (3, 33, 2, 5), (5, 12, 2, 100), (4, 2, 2, 3), (2, 0, 2, 4), (0, 3, 2, 4)]
NAMES = ("start", "displacement", "noise", "W", "b", "v", "c")

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton needs a CUDA device")


def walk(batch, time, size, hidden, dtype=torch.float64, scale=1.0):
    """Inputs of a scan: a start, displacements, noise, and a gate that is partly closed everywhere."""
    generator = torch.Generator().manual_seed(1000 * batch + 100 * time + 10 * size + hidden)

    def draw(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)

    gate = (scale * draw(hidden, size), scale * draw(hidden), scale * draw(hidden), scale * draw())
    return [draw(batch, size), 0.3 * draw(batch, time, size), 0.05 * draw(batch, time, size), *gate]


def values_and_gradients(implementation, inputs):
    """Poses, and the gradients of an uneven sum of them."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    with forced(implementation):
        poses = walled_poses(*leaves)
        if not inputs[1].shape[1]:  # without a step the readable function depends on nothing
            return [poses, *(torch.zeros_like(x) for x in inputs)]
        return [poses, *uneven_gradients(poses, leaves)]


def uneven_gradients(poses, leaves):
    uneven = torch.linspace(0.5, 2, poses.numel(), dtype=poses.dtype, device=poses.device).view_as(poses)
    return torch.autograd.grad((uneven * poses.square()).sum(), leaves)


def assert_all_close(fast, readable, **tolerance):
    for name, one, other in zip(("poses", *NAMES), fast, readable, strict=True):
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_numpy_scan_equals_the_scan_by_steps(shape):
    inputs = walk(*shape)
    fast, readable = (values_and_gradients(which, inputs) for which in ("cpu", "readable"))
    assert_all_close(fast, readable, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_is_as_good_as_float32_can_be(shape):
    inputs = walk(*shape, dtype=torch.float32)
    fast, readable = (values_and_gradients(which, inputs) for which in ("cpu", "readable"))
    assert all(part.dtype == torch.float32 for part in fast)
    assert_all_close(fast, readable, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("implementation", ["readable", "cpu"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 4, 2, 3), (1, 5, 3, 4), (3, 3, 1, 2)])
def test_gradients_agree_with_finite_differences(implementation, shape):
    inputs = [x.requires_grad_() for x in walk(*shape)]
    with forced(implementation):
        assert torch.autograd.gradcheck(walled_poses, inputs)


def test_pytorch_accepts_its_registration():
    torch.library.opcheck(torch.ops.gtmsm.walled_poses.default, [x.requires_grad_() for x in walk(3, 5, 2, 4)])


def test_gradients_are_laid_out_as_pytorch_is_told():
    inputs = walk(3, 5, 2, 4)
    made = torch.ops.gtmsm.walled_poses(*inputs)
    given = ([torch.ones_like(made[0])], made, [True] * 7, *inputs)
    torch.library.opcheck(torch.ops.gtmsm.walled_poses_backward.default, given, test_utils="test_faketensor")


def test_one_step_is_the_equation_of_the_paper():
    start, d, noise, W, b, v, c = walk(3, 1, 2, 4)
    logit = torch.relu((start + d[:, 0]) @ W.T + b) @ v + c
    by_hand = start + d[:, 0] / (1 + (-logit).exp())[:, None] + noise[:, 0]
    torch.testing.assert_close(walled_poses(start, d, noise, W, b, v, c)[:, 0], by_hand, rtol=1e-12, atol=1e-12)


def test_inputs_need_not_be_contiguous():
    inputs = walk(3, 11, 2, 5)
    spread = [strided(x) if x.dim() else x for x in inputs]
    assert not any(x.is_contiguous() for x in spread if x.dim())
    leaves = [x.requires_grad_() for x in spread]
    poses = walled_poses(*leaves)
    fast = [poses, *uneven_gradients(poses, leaves)]
    assert_all_close(fast, values_and_gradients("readable", inputs), rtol=1e-10, atol=1e-11)


def test_inputs_may_be_expanded():
    start, d, noise, *gate = walk(1, 6, 2, 5)
    gradients = []
    for scan in (walled_poses, walled_poses.readable):
        leaves = [x.clone().requires_grad_() for x in (start, d, noise, *gate)]
        poses = scan(*(x.expand(4, *x.shape[1:]) for x in leaves[:3]), *leaves[3:])
        gradients.append([poses, *uneven_gradients(poses, leaves)])
    assert_all_close(*gradients, rtol=1e-10, atol=1e-11)


def test_an_expanded_gradient_may_come_in():
    gradients = []
    for scan in (walled_poses, walled_poses.readable):
        leaves = [x.requires_grad_() for x in walk(3, 5, 2, 4)]
        poses = scan(*leaves)
        gradients.append([poses, *torch.autograd.grad(poses.sum(), leaves)])
    assert_all_close(*gradients, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(("batch", "time"), [(1, 6), (6, 1), (3, 4)])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_inputs_are_left_alone(batch, time, which):
    inputs = walk(batch, time, 2, 4)
    before = inputs[which].clone()
    walled_poses(*inputs)
    assert torch.equal(inputs[which], before)


def test_poses_that_change_before_the_backward_pass_are_noticed():
    leaves = [x.requires_grad_() for x in walk(1, 6, 2, 4)]
    poses = walled_poses(*leaves)
    loss = poses.sum()
    poses.detach().mul_(3.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("scan", [walled_poses, walled_poses.readable])
def test_weights_that_change_before_the_backward_pass_are_noticed(scan):
    leaves = [x.requires_grad_() for x in walk(2, 5, 2, 4)]
    poses = scan(*leaves)
    with torch.no_grad():
        leaves[3].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        poses.sum().backward()


def test_an_empty_horizon_has_no_poses_and_no_gradients():
    leaves = [x.requires_grad_() for x in walk(4, 0, 2, 6)]
    poses = walled_poses(*leaves)
    assert poses.shape == (4, 0, 2)
    assert not any(gradient.any() for gradient in torch.autograd.grad(poses.sum(), leaves))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_gate_that_is_all_but_shut_or_open_stays_finite_and_silent(dtype, sign):
    start, d, noise, W, b, v, _ = walk(2, 9, 2, 4, dtype=dtype)
    inputs = [start, d, noise, 1e3 * W, b, sign * 1e5 * v.abs(), torch.tensor(sign * 1e6, dtype=dtype)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast = values_and_gradients("cpu", inputs)
    assert all(torch.isfinite(part).all() for part in fast)
    moved = noise if sign < 0 else d + noise
    torch.testing.assert_close(fast[0], start[:, None] + moved.cumsum(1), rtol=1e-5, atol=1e-6)
    assert_all_close(fast, values_and_gradients("readable", inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_cpu_gets_the_numpy_scan(dtype):
    poses = walled_poses(*(x.requires_grad_() for x in walk(2, 3, 2, 4, dtype=dtype)))
    assert "walled_poses" in poses.grad_fn.name()


def test_the_same_walk_twice_is_the_same_to_the_bit():
    first, second = (values_and_gradients("cpu", walk(5, 33, 2, 64)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("implementation", ["readable", "cpu"])
def test_without_noise_the_mean_path_is_walked(implementation):
    start, d, _, *gate = walk(3, 7, 2, 5)
    with forced(implementation):
        still = walled_poses(start, d, torch.zeros_like(d), *gate)
        leaves = [x.requires_grad_() for x in (start, d, *gate)]
        poses = walled_poses(start, d, None, *gate)
        assert torch.equal(poses, still)
        assert all(gradient.any() for gradient in uneven_gradients(poses, leaves))


def for_triton(device, *shape):
    return [x.to(device) for x in walk(*shape, dtype=torch.float32, scale=0.5)]


@pytest.mark.parametrize("shape", TRITON_SHAPES)
def test_the_triton_scan_equals_the_scan_by_steps(shape, triton_device):
    inputs = for_triton(triton_device, *shape)
    fast = values_and_gradients("cuda", inputs)
    readable = values_and_gradients("readable", [x.double() for x in inputs])
    assert all(part.dtype == torch.float32 for part in fast)
    # Of thousands of gradients a few are small differences of large numbers: they are measured by the largest.
    for one, other in zip(fast, readable, strict=True):
        assert other.numel() == 0 or (one.double() - other).abs().max() <= 1e-3 * max(1.0, other.abs().max())


@pytest.mark.parametrize("steps", [128, 129, 260])
def test_the_triton_scan_differentiates_a_long_walk_in_rounds(steps, triton_device, monkeypatch):
    from gtmsm.kernels.scans import walled_scan_triton

    monkeypatch.setattr(walled_scan_triton, "STEPS_AT_ONCE", 128)
    inputs = for_triton(triton_device, 1, steps, 2, 3)
    fast = values_and_gradients("cuda", inputs)
    readable = values_and_gradients("readable", [x.double() for x in inputs])
    assert_all_close(fast, [part.float() for part in readable], rtol=1e-3, atol=1e-3)


def test_the_triton_scan_walks_the_mean_path_without_noise(triton_device):
    start, d, _, *gate = for_triton(triton_device, 3, 7, 2, 5)
    made = []
    for implementation in ("cuda", "readable"):
        leaves = [x.clone().requires_grad_() for x in (start, d, *gate)]
        with forced(implementation):
            poses = walled_poses(*leaves[:2], None, *leaves[2:])
            made.append([poses, *uneven_gradients(poses, leaves)])
    torch.testing.assert_close(*made, rtol=1e-4, atol=1e-4)


def test_the_triton_scan_is_exact_far_from_the_origin(triton_device):
    start, d, noise, W, b, v, c = for_triton(triton_device, 3, 9, 2, 5)
    inputs = [start + 1e4, d, noise, W, b - 1e4 * W.sum(1), v, c]
    fast = values_and_gradients("cuda", inputs)[0]
    readable = walled_poses.readable(*(x.double() for x in inputs))
    torch.testing.assert_close(fast.double(), readable, rtol=0, atol=0.02)


def test_the_triton_scan_takes_strided_and_expanded_inputs(triton_device):
    start, d, noise, *gate = for_triton(triton_device, 1, 6, 2, 5)
    inputs = [start.expand(4, 2), strided(d.expand(4, 6, 2)), noise.expand(4, 6, 2), strided(gate[0]), *gate[1:]]
    made = []
    for implementation in ("cuda", "readable"):
        leaves = [x.detach().requires_grad_() for x in inputs]
        with forced(implementation):
            poses = walled_poses(*leaves)
            made.append([poses, *torch.autograd.grad(poses.sum(), leaves)])  # an expanded gradient comes in
    assert_all_close(*made, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_triton_scan_stays_finite_where_the_gate_is_all_but_shut_or_open(sign, triton_device):
    start, d, noise, W, b, v, c = for_triton(triton_device, 2, 9, 2, 4)
    inputs = [start, d, noise, 1e3 * W, b, sign * 1e5 * v.abs(), torch.full_like(c, sign * 1e6)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the interpreter's exponentials overflow aloud
        fast = values_and_gradients("cuda", inputs)
    assert_all_close(fast, values_and_gradients("readable", inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton's interpreter knows no races")
def test_the_triton_scan_twice_is_the_same_to_the_bit(triton_device):
    first, second = (values_and_gradients("cuda", for_triton(triton_device, 3, 9, 2, 5)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("size", [1, 3])
def test_poses_that_are_not_of_two_dimensions_walk_by_steps(size, triton_device):
    inputs = [x.to(triton_device) for x in walk(2, 5, size, 4, dtype=torch.float32)]
    fast, readable = (values_and_gradients(which, inputs) for which in ("cuda", "readable"))
    assert_all_close(fast, readable, rtol=0, atol=0)


@on_a_gpu
@pytest.mark.parametrize("shape", [(128, 288, 2, 64), (3, 1500, 2, 64), (2, 40, 2, 1030), (4097, 5, 2, 16)])
def test_long_walks_are_as_good_as_float32_can_be(shape):
    inputs = for_triton("cuda", *shape)
    fast = values_and_gradients("cuda", inputs)
    readable = values_and_gradients("readable", [x.double() for x in inputs])
    for name, one, other in zip(("poses", *NAMES), fast, readable, strict=True):
        # relative to the largest: where a pose is near the edge of a hidden unit, rounding decides which side it is on
        assert (one - other).abs().max() <= 2e-3 * other.abs().max(), name


def test_a_gpu_gets_the_triton_scan_and_can_keep_it_in_a_graph(in_a_graph):
    leaves = [x.requires_grad_() for x in for_triton("cuda", 4, 33, 2, 16)]

    def update():
        poses = walled_poses(*leaves)
        return [poses, *uneven_gradients(poses, leaves)]

    warm, replayed = in_a_graph(update)
    assert all(torch.equal(one, other) for one, other in zip(replayed, warm, strict=True))
