"""The spatial coder is the layers that it is made of, one after the other."""

import pytest
import torch
import torch.nn.functional as F
from twins import assert_equal_twins

from gtmsm.kernels.choice import forced
from gtmsm.model.spatial_coder import SpatialDecoder, SpatialEncoder


def perturbed(coder):
    """With weights that are nowhere zero, as those of residual blocks are at first, and lie as a model's do."""
    generator = torch.Generator().manual_seed(0)
    for parameter in coder.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return coder.double().to(memory_format=torch.channels_last)


def layer_by_layer(coder, x):
    for layer in coder:
        x = x + layer.second(F.silu(layer.first(F.silu(x)))) if hasattr(layer, "second") else layer(x)
    return x


def there_and_back(run, coder, x):
    """What is made of x, and gradients of it and of all weights."""
    x = x.clone().requires_grad_()
    made = run(x)
    weight = torch.linspace(-1, 2, made.numel(), dtype=made.dtype).view(made.shape)
    return [made, *torch.autograd.grad((made * weight).sum(), [x, *coder.parameters()])]


@pytest.mark.parametrize("frame", [(3, 8, 8), (1, 4, 12), (3, 16, 4)])
@pytest.mark.parametrize("n", [1, 3])
def test_an_encoder_is_its_layers(frame, n):
    coder = perturbed(SpatialEncoder(frame[0], 8, 6))
    x = torch.rand(n, *frame, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    fast, plain = there_and_back(coder, coder, x), there_and_back(lambda x: layer_by_layer(coder, x), coder, x)
    torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-10)


def values_and_weights_gradients(coder, *inputs):
    made = coder(*inputs)
    weight = torch.linspace(-1, 2, made.numel(), dtype=made.dtype, device=made.device).view(made.shape)
    return [made, *torch.autograd.grad((made * weight).sum(), list(coder.parameters()))]


@pytest.mark.parametrize("wanted", [[1], [3, 0, 3], [0, 1, 2, 3]])
def test_an_encoder_gathers_the_frames_that_it_is_asked_for(wanted):
    coder, rows = perturbed(SpatialEncoder(3, 8, 6)), torch.tensor(wanted)
    x = torch.rand(4, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gathered, given = values_and_weights_gradients(coder, x, rows), values_and_weights_gradients(coder, x[rows])
    assert all(torch.equal(one, other) for one, other in zip(gathered, given, strict=True))
    fast = there_and_back(lambda x: coder(x, rows), coder, x)
    torch.testing.assert_close(fast, there_and_back(lambda x: coder(x[rows]), coder, x), rtol=1e-9, atol=1e-10)


def test_frames_gathered_by_a_kernel_are_the_same_frames(triton_device, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    coder, rows = perturbed(SpatialEncoder(3, 8, 6)).float().to(triton_device), torch.tensor([3, 0, 3])
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    made = []
    for twin in ("triton", "readable"):
        with forced(twin):
            made.append(values_and_weights_gradients(coder, x.to(triton_device), rows.to(triton_device)))
    assert_equal_twins(*made, tolerance=1e-4)


@pytest.mark.parametrize("grid", [(2, 2), (1, 3), (4, 1)])
@pytest.mark.parametrize("n", [1, 3])
def test_a_decoder_is_its_layers(grid, n):
    coder = perturbed(SpatialDecoder(3, 8, grid, 2))
    z = torch.randn(n, 2 * grid[0] * grid[1], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    fast, plain = there_and_back(coder, coder, z), there_and_back(lambda z: layer_by_layer(coder, z), coder, z)
    torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-10)


def test_gradients_lie_in_memory_as_their_weights_do():
    coder = perturbed(SpatialEncoder(3, 8, 6))
    coder(torch.rand(2, 3, 8, 8, dtype=torch.float64)).sum().backward()
    for weight in coder.parameters():
        assert weight.grad.stride() == weight.stride()
