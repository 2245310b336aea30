"""The spatial coder is the layers that it is made of, one after the other."""

import pytest
import torch
import torch.nn.functional as F
from twins import assert_equal_twins

from gtmsm.kernels.operator import forced
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


def values_and_gradients(run, coder, x):
    """The output for x, and gradients of x and of all weights."""
    x = x.clone().requires_grad_()
    made = run(x)
    weight = torch.linspace(-1, 2, made.numel(), dtype=made.dtype, device=made.device).view(made.shape)
    return [made, *torch.autograd.grad((made * weight).sum(), [x, *coder.parameters()])]


@pytest.mark.parametrize(
    ("frame", "patch"), [((3, 8, 8), 4), ((1, 4, 12), 4), ((3, 16, 4), 4), ((3, 16, 8), 8), ((1, 8, 24), 8)]
)
@pytest.mark.parametrize("n", [1, 3])
def test_an_encoder_is_its_layers(frame, patch, n):
    coder = perturbed(SpatialEncoder(frame[0], 8, 6, patch))
    x = torch.rand(n, *frame, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    fast, plain = (
        values_and_gradients(coder, coder, x),
        values_and_gradients(lambda x: layer_by_layer(coder, x), coder, x),
    )
    torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("coder", "inputs"),
    [
        (lambda: SpatialEncoder(3, 8, 6), (4, 3, 8, 8)),
        (lambda: SpatialEncoder(3, 8, 6, 8), (2, 3, 16, 16)),
        (lambda: SpatialDecoder(3, 8, (2, 1), 2, 8), (2, 4)),
    ],
)
def test_kernels_make_the_same_values_and_gradients(coder, inputs, triton_device, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    coder = perturbed(coder()).float().to(triton_device)
    x = torch.rand(inputs, generator=torch.Generator().manual_seed(1)).to(triton_device)
    made = []
    for implementation in ("cuda", "readable"):
        with forced(implementation):
            made.append(values_and_gradients(coder, coder, x))
    assert_equal_twins(*made, tolerance=1e-4)


@pytest.mark.parametrize(("grid", "patch"), [((2, 2), 4), ((1, 3), 4), ((4, 1), 4), ((2, 1), 8)])
@pytest.mark.parametrize("n", [1, 3])
def test_a_decoder_is_its_layers(grid, patch, n):
    coder = perturbed(SpatialDecoder(3, 8, grid, 2, patch))
    z = torch.randn(n, 2 * grid[0] * grid[1], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    fast, plain = (
        values_and_gradients(coder, coder, z),
        values_and_gradients(lambda z: layer_by_layer(coder, z), coder, z),
    )
    torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("deep", [32, 128])
def test_what_passes_through_three_stages_hardly_shrinks_at_first(deep):
    torch.manual_seed(0)
    encoder, decoder = SpatialEncoder(3, deep, 8, 8), SpatialDecoder(3, deep, (4, 4), 4, 8)
    for coder, last, x in ((encoder, -2, torch.randn(4, 3, 32, 32)), (decoder, -1, torch.randn(4, 64))):
        layers = list(coder)[:last]
        with torch.no_grad():
            assert 0.15 < layer_by_layer(layers, x).std(0).mean() < 1


def test_gradients_lie_in_memory_as_their_weights_do():
    coder = perturbed(SpatialEncoder(3, 8, 6))
    coder(torch.rand(2, 3, 8, 8, dtype=torch.float64)).sum().backward()
    for weight in coder.parameters():
        assert weight.grad.stride() == weight.stride()
