"""Products and convolutions whose gradients go straight to the optimiser are those of PyTorch."""

import pytest
import torch
import torch.nn.functional as F

from gtmsm.kernels.gradients.aside import aside_allowed
from gtmsm.kernels.gradients.halves import halving
from gtmsm.kernels.gradients.sinks import has_sunk, sinking
from gtmsm.kernels.gradients.weighted import convolve, project

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def drawn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def shelved(*shapes, channels_last=False):
    """Parameters that lie side by side in one vector, the vector, and sinks for their gradients."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    vector, gradient = drawn(sum(sizes), seed=3), torch.zeros(sum(sizes), device=DEVICE)
    parameters, sinks, begin = [], {}, 0
    for shape, size in zip(shapes, sizes, strict=True):
        like = torch.empty(shape)
        if channels_last:
            like = like.contiguous(memory_format=torch.channels_last)
        parameter = torch.nn.Parameter(vector.as_strided(shape, like.stride(), begin))
        parameters.append(parameter)
        sinks[parameter.data_ptr()] = gradient.as_strided(shape, like.stride(), begin)
        begin += size
    return parameters, vector, sinks


def there_and_back(work, x, parameters, vector, sinks, times=1):
    """What is made of x, and gradients of x and of all parameters, wherever they went."""
    x = x.clone().requires_grad_()
    for sink in sinks.values():
        sink.zero_()
    with aside_allowed(x.device), sinking(sinks), halving(vector):
        with torch.autocast(DEVICE, torch.bfloat16):
            made = sum(work(x) for _ in range(times))
        (made.float() * torch.arange(made.numel(), device=DEVICE).view(made.shape).sin()).sum().backward()
    sunk = [has_sunk(parameter) for parameter in parameters]
    learned = [sinks[p.data_ptr()].clone() if has else p.grad for p, has in zip(parameters, sunk, strict=True)]
    for parameter in parameters:
        parameter.grad = None
    return made.detach().float(), x.grad, learned, sunk


def assert_same(one, other):
    for a, b in zip((one[0], one[1], *one[2]), (other[0], other[1], *other[2]), strict=True):
        assert (a - b).abs().max() <= 2e-2 * max(1.0, b.abs().max().item())


@pytest.mark.parametrize("outputs", [[4], [4, 8], [8, 1, 3]])
@pytest.mark.parametrize("lead", [(7,), (2, 5), (1, 3, 2)])
@pytest.mark.parametrize("times", [1, 2])
def test_a_product_learns_what_pytorch_learns(outputs, lead, times):
    parameters, vector, sinks = shelved(*[(some, 6) for some in outputs])
    x = drawn(*lead, 6, seed=1)
    fast, plain = (
        there_and_back(lambda x: project(x, *parameters), x, parameters, vector, where, times) for where in (sinks, {})
    )
    assert fast[3] == [True] * len(outputs) and plain[3] == [False] * len(outputs)
    assert fast[0].shape == (*lead, sum(outputs))
    assert_same(fast, plain)


@pytest.mark.parametrize("kernel, stride, transposed", [(1, 1, False), (3, 1, False), (4, 2, False), (4, 2, True)])
@pytest.mark.parametrize("shape", [(2, 8, 8), (1, 6, 4)])
@pytest.mark.parametrize("times", [1, 2])
def test_a_convolution_learns_what_pytorch_learns(kernel, stride, transposed, shape, times):
    size = (8, 16) if transposed else (16, 8)
    parameters, vector, sinks = shelved((*size, kernel, kernel), channels_last=True)
    n, high, wide = shape
    x = drawn(n, 8, high, wide, seed=2).contiguous(memory_format=torch.channels_last)
    fast, plain = (
        there_and_back(
            lambda x: convolve(x, parameters[0], stride, int(kernel > 1), transposed),
            x,
            parameters,
            vector,
            where,
            times,
        )
        for where in (sinks, {})
    )
    assert fast[3] == [True] and plain[3] == [False]
    way = F.conv_transpose2d if transposed else F.conv2d
    exact = way(x.double(), parameters[0].detach().double(), None, stride, int(kernel > 1))
    assert fast[0].shape == exact.shape
    assert_same(fast, plain)


def test_what_is_held_does_not_learn():
    parameters, vector, sinks = shelved((4, 6), (8, 6))
    parameters[0].requires_grad_(False)
    _, _, (held, learned), sunk = there_and_back(
        lambda x: project(x, *parameters), drawn(3, 6, seed=1), parameters, vector, sinks
    )
    assert held is None and sunk == [False, False]
    assert learned is not None


def test_in_full_precision_it_is_pytorchs_own():
    parameters, vector, sinks = shelved((4, 6))
    x = drawn(3, 6, seed=1)
    with sinking(sinks), halving(vector):
        torch.testing.assert_close(project(x, parameters[0]), F.linear(x, parameters[0]), rtol=0, atol=0)
        assert not has_sunk(parameters[0])


def test_sinks_of_several_tensors_are_not_taken_for_one():
    parameters, vector, sinks = shelved((4, 6), (8, 6))
    apart = {key: sink.clone() for key, sink in sinks.items()}
    x = drawn(5, 6, seed=1)
    one, other = (
        there_and_back(lambda x: project(x, *parameters), x, parameters, vector, where) for where in (sinks, apart)
    )
    assert_same(one, other)
