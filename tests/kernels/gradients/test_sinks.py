"""Gradients that go straight to the optimiser are the gradients that would have come by themselves."""

import pytest
import torch

from gtmsm.kernels.choice import forced
from gtmsm.kernels.gradients.adam import Schedule
from gtmsm.kernels.gradients.sinks import has_sunk, sinking, sinks_of
from gtmsm.kernels.layers.dense_layer import dense_layer
from gtmsm.training.optimiser import Adam


def layers(device, count=2):
    torch.manual_seed(0)
    return [torch.nn.Linear(5, 5).to(device) for _ in range(count)]


def learned(device, with_sinks, times=1, beside=False, frozen=False):
    """Weights after one step of Adam; layers may be used several times, and by PyTorch as well."""
    made = layers(device)
    if frozen:
        made[0].requires_grad_(False)
    optimiser = Adam({"rest": [p for layer in made for p in layer.parameters()]}, Schedule(0.1, 0.1, 1, 0), 1e9)
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(1)).to(device)
    with forced("triton"), sinking(optimiser.sinks if with_sinks else {}):
        y = x
        for _ in range(times):
            for layer in made:
                y = dense_layer(y, layer.weight, layer.bias, True)
        loss = y.square().sum()
        if beside:
            loss = loss + sum(layer.weight.square().sum() for layer in made)
        loss.backward()
    sunk = [has_sunk(layer.weight) for layer in made]
    length = optimiser.step(loss)
    return [p.detach().clone() for layer in made for p in layer.parameters()], length, sunk


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_sunk_gradients_teach_the_same(triton_device, times, beside, frozen):
    sunk, straight = (learned(triton_device, sinks, times, beside, frozen) for sinks in (True, False))
    torch.testing.assert_close(sunk[0], straight[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sunk[1], straight[1], rtol=1e-4, atol=1e-5)
    assert sunk[2] == [True, True] and straight[2] == [False, False]


def test_what_is_no_parameter_has_no_sink():
    parameter = torch.nn.Parameter(torch.ones(3))
    with sinking({parameter.data_ptr(): torch.zeros(3)}):
        assert sinks_of(parameter) is not None
        assert sinks_of(parameter, 2 * parameter) is None
        assert sinks_of(torch.nn.Parameter(torch.ones(2))) is None
    assert sinks_of(parameter) is None


@pytest.mark.parametrize("programs", [1, 256, 257, 700])
def test_what_many_programs_found_is_added_to_what_a_sink_holds(triton_device, programs):
    from gtmsm.kernels.gradients.sums_triton import sink

    shares = torch.randn(programs, 2, 19, generator=torch.Generator().manual_seed(2)).to(triton_device)
    sinks = [torch.ones(19, device=triton_device), torch.zeros(19, device=triton_device)]
    sink(shares, sinks)
    expected = shares.double().sum(0) + torch.tensor([[1.0], [0.0]], device=triton_device)
    torch.testing.assert_close(torch.stack(sinks).double(), expected, rtol=1e-5, atol=1e-4)
