"""The only place where code is replaced for speed: a readable function with fast implementations for some devices.

```python
@operator(cpu="gtmsm.kernels.search.nearest_cpu", cuda="gtmsm.kernels.search.nearest_triton")
def nearest_k(keys: Float[Tensor, "batch n P"], ..., k: int) -> Int64[Tensor, "batch m {k}"]:
    '''The specification, in plain PyTorch.'''
```

Each module named there holds a `Fast` of the same name. The operator is registered with `torch.library` as
`gtmsm::nearest_k`, with a fake implementation and gradients; `torch.compile` and `torch.export` see one operation.
PyTorch's dispatcher picks the implementation by device. If there is none, if it does not support the
arguments, and inside `torch.func`, the readable function runs and PyTorch differentiates it.

`GTMSM_KERNELS=off` in the environment leaves out all fast implementations.
"""

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, update_wrapper
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast, get_args

import numpy as np
import torch
from torch import Tensor

LIBRARY = torch.library.Library("gtmsm", "DEF")

P = ParamSpec("P")
R = TypeVar("R")
# What the backward pass of an operator takes and returns:
Arguments: TypeAlias = Sequence[Any]
Tensors: TypeAlias = Sequence[Tensor]
Needed: TypeAlias = Sequence[bool]
Gradients: TypeAlias = Sequence[Tensor | None]

ENABLED = os.environ.get("GTMSM_KERNELS", "on") != "off"
"""Whether fast implementations are used at all."""

OPERATORS: dict[str, "Operator[..., Any]"] = {}
"""Every operator by its name."""

_forced: list[str] = []  # not a context variable: the backward pass may run in a thread of PyTorch's own


@contextmanager
def forced(implementation: Literal["readable", "cpu", "cuda"]) -> Iterator[None]:
    """Within this context operators run this implementation on any device; operators without it run the readable one.

    For tests: "cuda" on a CPU runs Triton kernels by Triton's interpreter, if TRITON_INTERPRET is 1.
    """
    _forced.append(implementation)
    try:
        yield
    finally:
        _forced.pop()


def no_gradients(gradients: Tensors, args: Arguments, made: Tensors, needed: Needed) -> Gradients:
    """The `backward` of an operator that returns indices; PyTorch never calls it."""
    return [None] * len(args)


@dataclass(frozen=True)
class Fast:
    """A fast implementation of an operator for one device."""

    forward: Callable[..., Sequence[Tensor]]
    """Takes the operator's arguments; returns its outputs, followed by the tensors that only `backward` needs."""
    empty: Callable[..., Sequence[Tensor]] | None = None
    """The fake implementation: takes the same arguments; returns tensors like those of `forward`, with any values.
    None: the readable function, whose outputs have the same shapes and strides, is run instead."""
    backward: Callable[[Tensors, Arguments, Tensors, Needed], Gradients] | None = None
    """(gradients of the outputs, arguments, what `forward` returned, which arguments need a gradient) to a gradient or
    None for every argument. None: arguments that require gradients go to the readable function."""
    supports: Callable[..., bool] = lambda *args: True
    """Whether it can run with these arguments."""


class Operator(Generic[P, R]):
    """A readable function, and the implementations by which PyTorch's dispatcher replaces it."""

    def __init__(self, readable: Callable[P, R], modules: dict[str, str], mutates: Sequence[str] = ()) -> None:
        self.readable = readable
        self._mutates = mutates
        self.name = readable.__name__
        self.enabled = True
        """Set to False to run the readable function everywhere, to measure what the fast one saves."""
        self._modules = modules
        self.devices = list(modules)
        """Devices that have a fast implementation."""
        self._loaded: dict[str, Fast | None] = {}
        signature = inspect.signature(readable)
        self._outputs = len(get_args(signature.return_annotation)) or 1
        self._default = {name: p.default for name, p in signature.parameters.items()}
        self._op, self._back = self._register(signature)
        update_wrapper(self, readable)
        OPERATORS[self.name] = self

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the fastest implementation for the device of the tensors."""
        defaults = list(self._default.items())[len(args) :]
        given: list[Any] = [*args, *(kwargs.get(name, default) for name, default in defaults)]
        fast = self.fast(next(x for x in given if isinstance(x, Tensor)).device.type)
        learning = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in given)
        # vmap and jacrev look through plain PyTorch only.
        transformed = torch._C._are_functorch_transforms_active()
        if fast is None or transformed or (learning and fast.backward is None) or not fast.supports(*given):
            return self.readable(*args, **kwargs)
        made = self._op(*given)[: self._outputs]
        return cast(R, made[0] if self._outputs == 1 else tuple(made))

    def fast(self, device: str) -> Fast | None:
        """The fast implementation for a device, if there is one."""
        device = _forced[-1] if _forced else device
        if not (ENABLED and self.enabled and device in self._modules):
            return None
        return self._loaded[device] if device in self._loaded else self.load(device)

    def load(self, device: str) -> Fast | None:
        """Import the implementation for a device when it is needed: only CUDA builds of PyTorch bring Triton."""
        there = device != "cuda" or find_spec("triton") is not None
        self._loaded[device] = getattr(import_module(self._modules[device]), self.name) if there else None
        return self._loaded[device]

    def _register(self, signature: inspect.Signature) -> tuple[Any, Any]:
        """Define `gtmsm::name` and `gtmsm::name_backward`, each with all implementations that PyTorch may call."""
        schema = ", ".join(
            f"{_torch_type(p.annotation, name in self._mutates and name)} {name}"
            for name, p in signature.parameters.items()
        )
        name, back = self.name, f"{self.name}_backward"
        LIBRARY.define(f"{name}({schema}) -> Tensor[]")
        for device in ("cpu", "cuda"):
            LIBRARY.impl(name, partial(self._fast_outputs, device), device.upper())
        if self._mutates:
            LIBRARY.impl(name, self._fake_outputs, "Meta")
            return getattr(torch.ops.gtmsm, name).default, None
        LIBRARY.define(f"{back}(Tensor[] gradients, Tensor[] made, bool[] needed, {schema}) -> Tensor[]")
        LIBRARY.impl(name, self._readable_outputs, "CompositeExplicitAutograd")
        LIBRARY.impl(back, self._readable_gradients, "CompositeExplicitAutograd")
        for device in ("cpu", "cuda"):
            LIBRARY.impl(back, partial(self._fast_gradients, device), device.upper())
        torch.library.register_fake(f"gtmsm::{name}", self._fake_outputs, lib=LIBRARY)
        torch.library.register_fake(f"gtmsm::{back}", _fake_gradients, lib=LIBRARY)
        torch.library.register_autograd(
            f"gtmsm::{name}", self._differentiate, setup_context=self._remember, lib=LIBRARY
        )
        return getattr(torch.ops.gtmsm, name).default, getattr(torch.ops.gtmsm, back).default

    def _readable_outputs(self, *args: Any) -> list[Tensor]:
        """The default implementation; nothing is kept for the backward pass."""
        made = cast(Callable[..., Any], self.readable)(*args)
        return [x.clone() for x in ([made] if isinstance(made, Tensor) else made)]

    def _readable_gradients(self, gradients: Tensors, made: Tensors, needed: Needed, *args: Any) -> list[Tensor]:
        """The gradients of the readable function, by running it again."""
        leaves = _chosen(args, needed)

        def outputs(*values: Tensor) -> tuple[Tensor, ...]:
            rest = iter(values)
            return tuple(
                self._readable_outputs(*(next(rest) if need else x for x, need in zip(args, needed, strict=True)))
            )

        found = torch.func.vjp(outputs, *leaves)[1](tuple(gradients))
        return [torch.empty_like(x).copy_(gradient) for x, gradient in zip(leaves, found, strict=True)]

    def _fast_outputs(self, device: str, *args: Any) -> list[Tensor]:
        """Outputs of the fast implementation for this device."""
        fast = self.fast(device)
        with np.errstate(all="ignore"):  # overflow is left to the caller, as in PyTorch
            return self._readable_outputs(*args) if fast is None else list(fast.forward(*args))

    def _fast_gradients(
        self, device: str, gradients: Tensors, made: Tensors, needed: Needed, *args: Any
    ) -> list[Tensor]:
        """Gradients by the fast implementation for this device."""
        fast = self.fast(device)
        if fast is None or fast.backward is None:
            return self._readable_gradients(gradients, made, needed, *args)
        with np.errstate(all="ignore"):
            found = fast.backward(gradients, args, made, needed)
        pairs = zip(_chosen(args, needed), _chosen(found, needed), strict=True)
        return [_laid_out_as(x, gradient, args) for x, gradient in pairs]

    def _fake_outputs(self, *args: Any) -> list[Tensor]:
        """Tensors of the right shapes."""
        fast = self.fast(next(x for x in args if isinstance(x, Tensor)).device.type)
        return self._readable_outputs(*args) if fast is None or fast.empty is None else list(fast.empty(*args))

    def _remember(self, ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        """Keep arguments and outputs for the backward pass."""
        ctx.set_materialize_grads(False)  # no zeros for outputs that nobody used
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, Tensor)), *output)
        ctx.rest = [None if isinstance(x, Tensor) else x for x in inputs]
        ctx.is_tensor = [isinstance(x, Tensor) for x in inputs]
        for extra in output[self._outputs :]:
            ctx.mark_non_differentiable(extra)

    def _differentiate(self, ctx: Any, gradients: Gradients) -> tuple[Tensor | None, ...]:
        """A gradient for every argument that needs one."""
        if all(gradient is None for gradient in gradients[: self._outputs]):
            return (None,) * len(ctx.rest)
        saved = iter(ctx.saved_tensors)
        args = [next(saved) if is_one else x for x, is_one in zip(ctx.rest, ctx.is_tensor, strict=True)]
        needed, made = list(ctx.needs_input_grad), list(saved)
        pairs = zip(gradients[: self._outputs], made, strict=False)
        incoming = [torch.zeros_like(x) if gradient is None else gradient for gradient, x in pairs]
        found = iter(self._back(incoming, made, needed, *args))
        return tuple(next(found) if need else None for need in needed)


def _fake_gradients(gradients: Tensors, made: Tensors, needed: Needed, *args: Any) -> list[Tensor]:
    """Gradients of the right shapes, with the memory layout of their arguments."""
    return [torch.empty_like(x) for x in _chosen(args, needed)]


def _laid_out_as(x: Tensor, gradient: Tensor | None, args: Arguments) -> Tensor:
    """A gradient with the memory layout of its argument x, as in the fake implementation.

    A gradient that was written into another argument, given for this purpose, is returned unchanged.
    """
    if gradient is None:
        return torch.zeros_like(x)
    if gradient.stride() == x.stride() or any(gradient is other for other in args):
        return gradient
    like = torch.empty_like(x)
    return gradient if gradient.stride() == like.stride() else like.copy_(gradient)


def load_operators() -> None:
    """Import all implementations for this machine now: `torch.compile` cannot look into an import."""
    for each in OPERATORS.values():
        for device in each.devices:
            if device == "cpu" or torch.cuda.is_available():
                each.load(device)


def operator(*, mutates: Sequence[str] = (), **modules: str) -> Callable[[Callable[P, R]], Operator[P, R]]:
    """Make a readable function an operator; `modules` name its fast implementations by device.

    A function that writes to some of its arguments names them in `mutates`; it has no gradients.
    """
    return lambda readable: Operator(readable, modules, mutates)


def _chosen(each: Arguments, needed: Needed) -> list[Any]:
    """The arguments, or their gradients, for which a gradient is needed."""
    return [x for x, need in zip(each, needed, strict=True) if need]


def _torch_type(annotation: Any, alias: str | bool = False) -> str:
    """An annotation in the language of operator schemas, without shapes; an `alias` marks what is written to."""
    options = [option for option in get_args(annotation) if option is not type(None)]
    optional = "?" if len(options) < len(get_args(annotation)) else ""
    kind = options[0] if options else annotation
    if getattr(kind, "array_type", kind) is Tensor:  # with a shape, or without
        return f"Tensor{f'({alias}!)' if alias else ''}{optional}"
    return {bool: "bool", int: "int", float: "float", str: "str", torch.dtype: "ScalarType"}[kind] + optional
