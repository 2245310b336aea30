"""Where columns of rays run, and its waves: the fast twin equals the readable one, in the order that weights expect."""

import math

import pytest
import torch
from torch.func import vmap

from gtmsm.kernels.choice import forced
from gtmsm.kernels.rays.ray_columns import ray_columns, ray_columns_by_parts

FREQUENCIES = (1.5, 3.0, 6.0, 12.0)
# views, columns, waves; more rows than a program makes, too
SHAPES = [(1, 1, 4), (1, 8, 4), (7, 3, 4), (7, 1, 3), (7, 8, 1), (33, 5, 4)]
EMPTY_SHAPES = [(0, 8, 4), (0, 1, 1), (3, 0, 4), (3, 5, 0)]
LONG_SHAPES = [(3360, 8, 4), (20_001, 7, 4)]  # too long to interpret


@pytest.fixture
def launches(triton_device, note_launches):
    from gtmsm.kernels.rays import ray_columns_triton

    return note_launches(ray_columns_triton, "_ray_columns")


def views(n, columns, waves, far=3.0, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(100 * n + 10 * columns + waves)
    place, heading = far * (2 * torch.rand(n, 2, generator=generator) - 1), 6 * torch.rand(n, 1, generator=generator)
    relative = torch.cat([place, heading.cos(), heading.sin()], -1)
    yaw, frequency = torch.linspace(0.7, -0.7, columns), torch.tensor((*FREQUENCIES, 0.25)[:waves])
    return [part.to(device, dtype) for part in (relative, yaw, frequency)]


def assert_equal_twins(fast, readable, frequency, far=1.0):
    """Six numbers up to their last bits, and waves to 1e-5; where lines run is as inexact as the places they pass."""
    assert fast.shape == readable.shape
    assert fast.is_contiguous()
    torch.testing.assert_close(fast[..., :6].double(), readable[..., :6].double(), rtol=0, atol=4e-7 * max(far, 1.0))
    # The wave of a number of 100 tells its last bit: so these are compared with those of the very numbers beside them.
    waves = fast[..., None, :6] * frequency[:, None]
    expected = torch.stack([waves.double().sin(), waves.double().cos()], -2).flatten(-3)
    torch.testing.assert_close(fast[..., 6:].double(), expected, rtol=0, atol=1e-5)


def test_features_come_in_the_order_that_weights_expect():
    x, y, heading, yaw = 2.0, -3.0, 0.4, (0.3, -0.2)
    frequencies = (1.5, 12.0)
    relative = torch.tensor([[x, y, math.cos(heading), math.sin(heading)]], dtype=torch.float64)
    made = ray_columns(relative, torch.tensor(yaw).double(), torch.tensor(frequencies).double(), torch.float64)
    assert made.shape == (1, 2, 30)
    for column, turn in enumerate(yaw):
        cos, sin = math.cos(heading + turn), math.sin(heading + turn)
        numbers = [x, y, cos, sin, x * sin - y * cos, x * cos + y * sin]
        told = list(numbers)
        for frequency in frequencies:
            told += [math.sin(frequency * number) for number in numbers]
            told += [math.cos(frequency * number) for number in numbers]
        assert made[0, column].tolist() == pytest.approx(told, abs=1e-6)


def test_gradients_of_the_readable_twin_are_those_of_its_differences():
    relative, yaw, frequency = views(3, 2, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda at: ray_columns_by_parts(at, yaw, frequency, torch.float64), [relative.requires_grad_()]
    )


@pytest.mark.parametrize("far", [1.0, 100.0])
@pytest.mark.parametrize("shape", SHAPES + EMPTY_SHAPES + (LONG_SHAPES if torch.cuda.is_available() else []))
def test_the_triton_twin_equals_the_readable_one(shape, far, triton_device):
    inputs = views(*shape, far, device=triton_device)
    with forced("triton"):
        fast = ray_columns(*inputs, torch.float32)
    assert_equal_twins(fast, ray_columns_by_parts(*inputs, torch.float32), inputs[2], far)


@pytest.mark.parametrize("shape", SHAPES)
def test_waves_of_near_places_agree_number_by_number(shape, triton_device):
    inputs = views(*shape, 3.0, device=triton_device)
    with forced("triton"):
        fast = ray_columns(*inputs, torch.float32)
    torch.testing.assert_close(fast, ray_columns_by_parts(*inputs, torch.float32), rtol=0, atol=1e-5)


def test_waves_of_far_places_are_not_lost(triton_device):
    inputs = views(7, 3, 4, 1e4, device=triton_device)
    with forced("triton"):
        fast = ray_columns(*inputs, torch.float32)
    assert_equal_twins(fast, ray_columns_by_parts(*inputs, torch.float32), inputs[2], 1e4)


def test_on_a_gpu_even_waves_of_far_places_agree_number_by_number():
    if not torch.cuda.is_available():
        pytest.skip("the interpreter's cosines of yaws differ by a bit, and those of far places with them")
    inputs = views(3360, 8, 4, 100.0, device="cuda")
    fast = ray_columns(*inputs, torch.float32)
    torch.testing.assert_close(fast, ray_columns_by_parts(*inputs, torch.float32), rtol=0, atol=1e-5)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [*SHAPES, (0, 8, 4)])
def test_half_precision_is_full_precision_rounded_once(shape, half, triton_device):
    inputs = views(*shape, device=triton_device)
    with forced("triton"):
        rough, exact = ray_columns(*inputs, half), ray_columns(*inputs, torch.float32)
    readable = ray_columns_by_parts(*inputs, half)
    assert rough.dtype == readable.dtype == half
    if half == torch.float16 or triton_device == "cuda":  # the interpreter cuts bfloat16 off instead of rounding it
        assert torch.equal(rough, exact.to(half))
    # one unit in the last place: the twins' float32 may lie on different sides of where rounding turns
    torch.testing.assert_close(rough, readable, rtol=torch.finfo(half).eps, atol=1e-5)


def test_views_may_lie_anywhere_in_memory(triton_device):
    relative, yaw, frequency = views(7, 3, 4, device=triton_device)
    straight = relative[:6].view(2, 3, 4)
    with forced("triton"):
        expected = ray_columns(straight, yaw, frequency, torch.float32)
        for strided in (
            straight.transpose(0, 1).contiguous().transpose(0, 1),
            straight.mT.contiguous().mT,
            torch.cat([straight, straight + 1], -1)[..., :4],
            relative.repeat_interleave(2, 0)[::2][:6].unflatten(0, (2, 3)),
        ):
            assert not strided.is_contiguous()
            assert torch.equal(ray_columns(strided, yaw, frequency, torch.float32), expected)
        one = relative[:1].expand(5, 4)
        assert torch.equal(ray_columns(one, yaw, frequency, torch.float32)[3], expected[0, 0])
        assert torch.equal(ray_columns(relative[0], yaw, frequency, torch.float32), expected[0, 0])
        back, every_other = yaw.repeat_interleave(2)[::2], frequency.repeat_interleave(2)[::2]
        assert torch.equal(ray_columns(straight, back, every_other, torch.float32), expected)


def test_it_takes_one_launch(triton_device, launches):
    with forced("triton"):
        ray_columns(*views(7, 3, 4, device=triton_device), torch.bfloat16)
        assert launches == ["_ray_columns"]
        ray_columns(*views(0, 3, 4, device=triton_device), torch.bfloat16)
    assert launches == ["_ray_columns"]


@pytest.mark.parametrize("made", [torch.float32, torch.bfloat16])
def test_poses_that_learn_feel_where_rays_run(made, triton_device):
    relative, yaw, frequency = views(7, 3, 4, device=triton_device)
    told = []
    for function in (ray_columns, ray_columns_by_parts):
        leaf = relative.clone().requires_grad_()
        with forced("triton"):
            function(leaf, yaw, frequency, made).float().square().sum().backward()
        told.append(leaf.grad)
    assert torch.equal(*told)
    assert (told[0].abs().amax(0) > 0).all()


def test_poses_that_could_learn_but_are_only_looked_at_go_the_fast_way(triton_device, launches):
    relative, yaw, frequency = views(7, 3, 4, device=triton_device)
    with forced("triton"), torch.no_grad():
        assert not ray_columns(relative.requires_grad_(), yaw, frequency, torch.float32).requires_grad
    assert launches == ["_ray_columns"]


def test_other_precisions_are_left_to_the_readable_twin(triton_device, launches):
    inputs = views(7, 3, 4, dtype=torch.float64, device=triton_device)
    with forced("triton"):
        assert torch.equal(ray_columns(*inputs, torch.float64), ray_columns_by_parts(*inputs, torch.float64))
        assert ray_columns(inputs[0].bfloat16(), *inputs[1:], torch.float32).dtype == torch.float32
    assert not launches


def test_several_poses_are_tried_at_once_as_one_by_one(triton_device):
    relative, yaw, frequency = views(7, 3, 4, device=triton_device)
    candidates = torch.stack([relative, relative + 1])
    with forced("triton"):
        at_once = vmap(lambda at: ray_columns(at, yaw, frequency, torch.float32))(candidates)
        one_by_one = ray_columns(candidates, yaw, frequency, torch.float32)
    torch.testing.assert_close(at_once, one_by_one, rtol=0, atol=2e-5)


def test_a_gpu_can_keep_columns_in_a_graph(in_a_graph):
    inputs = views(3360, 8, 4, device="cuda")
    warm, replayed = in_a_graph(lambda: [ray_columns(*inputs, torch.bfloat16)])
    assert torch.equal(*warm, *replayed)
