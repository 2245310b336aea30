"""Slices are slices, and the gradient of the whole is that of its parts side by side, copied or not."""

import pytest
import torch

from gtmsm.kernels.choice import forced
from gtmsm.kernels.rays.apart import apart


class Tripled(torch.autograd.Function):
    """Three times what comes in; gradients are written where they are wanted."""

    @staticmethod
    def forward(ctx, x, wanted):
        ctx.wanted = wanted
        return 3 * x

    @staticmethod
    def backward(ctx, dy):
        return (3 * dy if ctx.wanted is None else ctx.wanted.copy_(3 * dy)), None


@pytest.mark.parametrize("twin", ["readable", "triton"])
@pytest.mark.parametrize("in_place", [(True, True, True), (False, False, False), (True, False, True)])
def test_gradients_come_back_side_by_side(twin, in_place, triton_device):
    x = torch.randn(2, 5, 12, device=triton_device, requires_grad=True)
    weight = torch.randn(2, 5, 12, device=triton_device)
    with forced(twin):
        parts = apart(1 * x, 3)
        assert [part.values.shape for part in parts] == [(2, 5, 4)] * 3
        assert [part.gradient is None for part in parts] == [twin == "readable"] * 3
        made = [
            Tripled.apply(part.values, part.gradient if placed else None)
            for part, placed in zip(parts, in_place, strict=True)
        ]
        (torch.cat(made, -1) * weight).sum().backward()
    torch.testing.assert_close(x.grad, 3 * weight, rtol=0, atol=0)


def test_where_nobody_learns_nothing_is_wanted():
    with forced("triton"):
        for part in apart(torch.randn(2, 6), 2):
            assert part.gradient is None
        with torch.no_grad():
            assert apart(torch.randn(2, 6, requires_grad=True), 2)[0].gradient is None
