"""Products in the precision that is asked for."""

import pytest
import torch
import torch.nn.functional as F

from gtmsm.kernels.precision import linear

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.mark.parametrize("device", DEVICES)
def test_a_rounded_input_gives_a_sum_that_is_not_rounded(device):
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(size, generator=generator).to(device) for size in ((6, 5, 256), (32, 256), (32,)))
    x, weight = x.bfloat16(), weight.bfloat16().float()  # rounding the weights changes nothing, then
    x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        y = linear(x, weight, bias)
    exact = F.linear(x.double(), weight.double(), bias.double())
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-4)
    found, wanted = (torch.autograd.grad(z.square().sum(), (x, weight, bias)) for z in (y, exact))
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert (one - other).norm() < 5e-3 * other.norm()


@pytest.mark.parametrize("device", DEVICES)
def test_it_can_be_mapped_over(device):
    x, weight, bias = torch.rand(3, 4, 8, device=device).bfloat16(), torch.rand(2, 8, device=device), torch.zeros(2)
    mapped = torch.func.vmap(lambda each: linear(each, weight, bias.to(device)))(x)
    torch.testing.assert_close(mapped, linear(x, weight, bias.to(device)))
