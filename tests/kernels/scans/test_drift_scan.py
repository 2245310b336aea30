"""Momentum that is damped and saturates."""

import math

import pytest
import torch

from gtmsm.kernels.choice import forced
from gtmsm.kernels.scans import drift_scan_cpu
from gtmsm.kernels.scans.drift_scan import drift_scan, drift_scan_by_steps

SHAPES = [(1, 1, 1), (1, 9, 3), (4, 17, 3), (7, 2, 2), (13, 5, 3), (0, 4, 3), (3, 0, 2)]  # batch, time, D
LONG_SHAPES = [(32, 182, 3), (1000, 33, 3)]  # too long to interpret


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("batch", "time", "size"), [(1, 1, 1), (1, 9, 3), (4, 17, 3), (7, 2, 2)])
def test_every_velocity_follows_from_the_one_before(batch, time, size):
    start, push, keep = drawn(batch, size), drawn(batch, time, size, seed=1), torch.rand(size, dtype=torch.float64)
    velocities = drift_scan(start, push, keep)
    before = torch.cat([start[:, None], velocities[:, :-1]], dim=1)
    torch.testing.assert_close(velocities, torch.tanh(keep * before + push), rtol=1e-14, atol=1e-14)


def test_without_steps_there_are_no_velocities():
    assert drift_scan(drawn(4, 3), drawn(4, 0, 3), drawn(3)).shape == (4, 0, 3)


def test_a_steady_push_ends_in_a_steady_velocity():
    keep, push = torch.tensor([0.8], dtype=torch.float64), torch.full((1, 400, 1), 0.3, dtype=torch.float64)
    v = drift_scan(torch.zeros(1, 1, dtype=torch.float64), push, keep)[0, -1, 0].item()
    assert v == pytest.approx(math.tanh(0.8 * v + 0.3), abs=1e-12)


@pytest.mark.parametrize("scan", [drift_scan, drift_scan_by_steps])
def test_gradients_agree_with_finite_differences(scan):
    inputs = [x.requires_grad_() for x in (drawn(2, 3), drawn(2, 5, 3, seed=1), drawn(3, seed=2).sigmoid())]
    assert torch.autograd.gradcheck(scan, inputs)


def inputs_of(batch, time, size, dtype=torch.float64, device="cpu"):
    inputs = (drawn(batch, size), drawn(batch, time, size, seed=1), drawn(size, seed=2).sigmoid())
    return [x.to(dtype).to(device) for x in inputs]


def values_and_gradients(twin, inputs):
    """Velocities, and the gradients of an uneven sum of them."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    with forced(twin):
        v = drift_scan(*leaves)
    if not v.shape[1]:  # nothing the readable twin could be differentiated by
        return [v, *(torch.zeros_like(x) for x in inputs)]
    uneven = torch.linspace(0.5, 2, v.numel(), dtype=v.dtype, device=v.device).view_as(v)
    return [v, *torch.autograd.grad((uneven * v.square()).sum(), leaves)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_numpy_scan_equals_the_scan_by_steps(shape):
    fast, readable = (values_and_gradients(twin, inputs_of(*shape)) for twin in ("cpu", "readable"))
    torch.testing.assert_close(fast, readable, rtol=1e-12, atol=1e-12)


def test_the_cpu_gets_the_numpy_scan(monkeypatch):
    asked = []
    original = drift_scan_cpu.scan
    monkeypatch.setattr(drift_scan_cpu, "scan", lambda *inputs: asked.append(1) or original(*inputs))
    drift_scan(*inputs_of(2, 3, 3))
    assert asked == [1]


@pytest.mark.parametrize("shape", SHAPES + (LONG_SHAPES if torch.cuda.is_available() else []))
def test_the_triton_scan_equals_the_scan_by_steps(shape, triton_device):
    inputs = inputs_of(*shape, dtype=torch.float32, device=triton_device)
    fast = values_and_gradients("triton", inputs)
    readable = values_and_gradients("readable", [x.double() for x in inputs])
    torch.testing.assert_close(fast, [part.float() for part in readable], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 0.3, 1e2, 1e4])
def test_the_triton_scan_saturates_as_exactly_as_the_other(scale, triton_device):
    start, push, keep = inputs_of(3, 5, 3, dtype=torch.float32, device=triton_device)
    inputs = [scale * start.clamp(-1, 1), scale * push, keep]
    with forced("triton"):
        v = drift_scan(*inputs)
    torch.testing.assert_close(v.double(), drift_scan_by_steps(*(x.double() for x in inputs)), rtol=3e-6, atol=0)


@pytest.mark.parametrize("twin", ["cpu", "triton"])
def test_inputs_may_be_strided_and_expanded(twin, triton_device):
    start, push, keep = inputs_of(1, 6, 3, dtype=torch.float32, device=triton_device if twin == "triton" else "cpu")
    backwards = push.expand(4, 6, 3).transpose(0, 2).contiguous().transpose(0, 2)
    inputs = [start.expand(4, 3), backwards, keep[:1].expand(3)]
    fast, readable = (values_and_gradients(which, inputs) for which in (twin, "readable"))
    torch.testing.assert_close(fast, readable, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("twin", ["cpu", "triton"])
def test_an_expanded_gradient_may_come_in(twin, triton_device):
    gradients = []
    for which in (twin, "readable"):
        device = triton_device if twin == "triton" else "cpu"
        leaves = [x.requires_grad_() for x in inputs_of(2, 4, 3, dtype=torch.float32, device=device)]
        with forced(which):
            gradients.append(torch.autograd.grad(drift_scan(*leaves).sum(), leaves))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)
