"""Work put aside: only what nobody looks at before the end."""

import pytest
import torch

from gtmsm.kernels.gradients.aside import _uses, aside, aside_allowed, noted


def test_on_a_cpu_nothing_is_put_aside_and_all_is_done_in_order():
    done = []
    with aside_allowed(torch.device("cpu")):
        with aside(torch.zeros(1)):
            done.append("first")
        done.append("then")
    assert done == ["first", "then"]


def test_what_was_made_from_parameters_is_no_parameter():
    parameter = torch.nn.Parameter(torch.ones(3))
    assert noted(parameter) is not None
    assert noted(parameter, 2 * parameter) is None


def test_uses_of_a_parameter_are_counted():
    parameter = torch.nn.Parameter(torch.ones(3))
    (key,) = noted(parameter)
    before = _uses[key]
    noted(parameter)
    assert _uses[key] == before + 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="streams are a GPU's")
@pytest.mark.parametrize("times", [1, 3])
def test_gradients_put_aside_are_those_of_the_way_straight_on(times):
    from gtmsm.kernels.layers.dense_layer import dense_layer

    torch.manual_seed(0)
    x = torch.randn(4096, 256, device="cuda")
    layers = [torch.nn.Linear(256, 256, device="cuda") for _ in range(6)]

    def gradients(allowed):
        for layer in layers:
            layer.weight.grad = layer.bias.grad = None
        with aside_allowed(x.device if allowed else torch.device("cpu")):
            y = x
            for _ in range(times):  # used several times, their gradients are added up on the way
                for layer in layers:
                    y = dense_layer(y, layer.weight, layer.bias, True)
            y.square().mean().backward()
        return [parameter.grad.clone() for layer in layers for parameter in layer.parameters()]

    straight = gradients(False)
    for _ in range(20):
        torch.testing.assert_close(gradients(True), straight, rtol=1e-4, atol=1e-7)
