"""An operator: its fast implementation runs where it can, and PyTorch's transforms see through it."""

import runpy
import sys
import types

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gtmsm.kernels import operator as seam
from gtmsm.kernels.operator import OPERATORS, Fast, forced, operator
from gtmsm.kernels.search.nearest import nearest_k

CALLS: list[str] = []


def _forward(x, w):
    CALLS.append("forward")
    product = x * w
    return [product.sin(), product.clone()]


def _backward(gradients, args, made, needed):
    CALLS.append("backward")
    (x, w), slope = args, gradients[0] * made[1].cos()
    return slope * w, (slope * x).sum(0)


fast_module = types.ModuleType("fast_sine")
fast_module.scaled_sine = Fast(
    _forward,
    lambda x, w: [torch.empty_like(x), torch.empty_like(x)],
    _backward,
    lambda x, w: x.dtype == torch.float64,
)
sys.modules["fast_sine"] = fast_module


@operator(cpu="fast_sine")
def scaled_sine(x: Float[Tensor, "n d"], w: Float[Tensor, "d"]) -> Float[Tensor, "n d"]:
    """sin(w x)."""
    return (x * w).sin()


@pytest.fixture(autouse=True)
def calls():
    CALLS.clear()
    return CALLS


@pytest.fixture
def x():
    return torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()


@pytest.fixture
def w():
    return torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)


def test_the_fast_implementation_runs_and_its_gradients_are_used(x, w, calls):
    made = scaled_sine(x, w)
    torch.testing.assert_close(made, (x * w).sin())
    found = torch.autograd.grad(made.sum(), [x, w])
    assert calls == ["forward", "backward"]
    torch.testing.assert_close(found, torch.autograd.grad((x * w).sin().sum(), [x, w]))


def test_no_gradients_are_made_of_what_only_the_backward_pass_needs(x, w):
    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(function.name())
            return function(*args, **(kwargs or {}))

    made, names = scaled_sine(x, w).sum(), []
    with Noted():
        made.backward()
    assert "gtmsm::scaled_sine_backward" in names
    assert not any("zeros" in name for name in names)


def test_arguments_that_are_not_supported_go_to_the_readable_function(x, w, calls):
    scaled_sine(x.float(), w.float())
    assert calls == []


@pytest.mark.parametrize("off", ["forced", "disabled"])
def test_fast_implementations_can_be_left_out(x, w, calls, off, monkeypatch):
    if off == "disabled":
        monkeypatch.setattr(scaled_sine, "enabled", False)
        scaled_sine(x, w)
    else:
        with forced("readable"):
            scaled_sine(x, w)
    assert calls == []


def test_vmap_and_jacrev_see_through_it(x, w):
    many = torch.stack([x.detach(), 2 * x.detach()])
    torch.testing.assert_close(torch.func.vmap(lambda each: scaled_sine(each, w))(many), (many * w).sin())
    jacobian = torch.func.jacrev(lambda each: scaled_sine(each, w).sum(0))(x.detach())
    torch.testing.assert_close(jacobian.diagonal(dim1=0, dim2=2), (w * (x * w).cos()))


def test_compiled_functions_call_it_whole(x, w, calls):
    compiled = torch.compile(lambda x, w: 2 * scaled_sine(x, w), backend="aot_eager", fullgraph=True)
    made = compiled(x, w)
    torch.testing.assert_close(made, 2 * (x * w).sin())
    found = torch.autograd.grad(made.sum(), [x, w])
    torch.testing.assert_close(found, torch.autograd.grad(2 * (x * w).sin().sum(), [x, w]))
    assert "forward" in calls
    assert "backward" in calls


def test_exported_programs_name_it(x, w):
    class Model(torch.nn.Module):
        def forward(self, x, w):
            return scaled_sine(x, w)

    program = torch.export.export(Model(), (x.detach(), w.detach()))
    assert "gtmsm.scaled_sine" in program.graph_module.code


def test_pytorch_accepts_its_registration(x, w):
    torch.library.opcheck(torch.ops.gtmsm.scaled_sine.default, (x, w))


def test_every_operator_is_listed_by_name():
    assert OPERATORS["scaled_sine"] is scaled_sine


@pytest.mark.parametrize("word", ["on", "off"])
def test_an_environment_variable_leaves_out_all_fast_implementations(monkeypatch, word):
    monkeypatch.setenv("GTMSM_KERNELS", word)
    monkeypatch.setattr(torch.library, "Library", lambda *words: None)  # there is one of a name in a process
    enabled = runpy.run_path(seam.__file__)["ENABLED"]
    monkeypatch.setattr(seam, "ENABLED", enabled)
    assert (nearest_k.fast("cpu") is None) == (word == "off")
