"""Loops over time in few kernels, since a GPU spends longer on launching a small kernel than on computing it.

A step of a loop only computes products with a state, and the functions between them. The parts of layers that do not
depend on the state are computed for all steps before the loop; gradients of weights and of memorised rows are computed
for all steps after it.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.kernels.operator import ENABLED

Step = Callable[..., Any]


def fused(step: Step, device: torch.device) -> Step:
    """`step`, compiled in training on a GPU, so that all operations between two products are one kernel.

    Its inputs should have the same strides at all steps and in all stages, since other strides compile it again.
    """
    return _compiled(step) if ENABLED and device.type == "cuda" and torch.is_grad_enabled() else step


@cache
def _compiled(step: Step) -> Step:
    # Compile in this process: a pool of compiler processes per training would overload the machine.
    return torch.compile(step, dynamic=False, options={"compile_threads": 1})


def by_time(x: Float[Tensor, "batch time size"]) -> Float[Tensor, "time batch size"]:
    """Time first and contiguous, so that the strides of a step do not depend on the number of steps."""
    return x.transpose(0, 1).contiguous()


def summed(added: Sequence[Tensor], products: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a layer's output: each is the sum of the part computed before the loop and a product.

    With parts of equal size, all further operations are one kernel. The sum of whole outputs would be compiled to two:
    a copy of the added part, and a product accumulated into it.
    """
    return [one + other for one, other in zip(added, products, strict=True)]


def started(like: Float[Tensor, "batch *any"], size: int) -> Float[Tensor, "batch {size}"]:
    """A state of zeros before the first step; it requires gradients like later ones, to be compiled only once."""
    return like.new_zeros(len(like), size).requires_grad_(torch.is_grad_enabled())


class LoopLayer:
    """A linear layer of states: y_t = added_t + x_t weight'. The loop computes the product itself and notes every x_t.

    `weight` is detached in the loop. Its gradient is computed for all steps at once, after the loop's backward pass.
    """

    def __init__(self, weight: Float[Tensor, "out in"], added: Float[Tensor, "time batch out"]) -> None:
        self._inputs: list[Tensor] = []
        self.added = _WeightLater.apply(added, weight, self._inputs).unbind(0)  # type: ignore[no-untyped-call]

    def note(self, x: Float[Tensor, "batch in"]) -> None:
        """Record the layer's input at this step."""
        if torch.is_grad_enabled():
            self._inputs.append(x.detach())


class _WeightLater(torch.autograd.Function):
    """Identity of `added`; its gradient is that of the layer's outputs, from which the weight's is computed."""

    @staticmethod
    def forward(ctx: Any, added: Tensor, weight: Tensor, inputs: list[Tensor]) -> Tensor:
        ctx.inputs = inputs
        return added.view_as(added)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x = torch.stack(ctx.inputs)
        return d, d.flatten(0, 1).mT @ x.flatten(0, 1), None


class Rows:
    """A memory that a loop reads and writes, the latest row first; rows that do not exist yet are 0."""

    def __init__(self, rows: Float[Tensor, "batch n size"], most: int, spare: int) -> None:
        """Begin with `rows`, the latest one last. Up to `most` rows can be held; `spare` more rows read as zeros."""
        self._most = most
        self._held = rows.new_zeros(len(rows), most + spare, rows.shape[-1])
        self._gradient = torch.zeros_like(self._held)
        self._written: Tensor | None = None
        self.write(rows, 0)

    def write(self, rows: Float[Tensor, "batch m size"], there: int) -> None:
        """Add rows after the `there` rows that are held."""
        part = slice(self._most - there - rows.shape[1], self._most - there)
        where = self._held[:, part], self._gradient[:, part]
        self._written = _Write.apply(rows.flip(1), self._written, *where)  # type: ignore[no-untyped-call]

    def times(
        self, left: Float[Tensor, "batch heads reach"], there: int, columns: slice
    ) -> Float[Tensor, "batch heads size"]:
        """Product of weights and some columns of the latest rows; `there` rows are held."""
        return self._product(left, there, left.shape[-1], columns, False)

    def alike(
        self, left: Float[Tensor, "batch heads size"], there: int, columns: slice, reach: int
    ) -> Float[Tensor, "batch heads reach"]:
        """Inner products of keys and some columns of the latest `reach` rows; `there` rows are held."""
        return self._product(left, there, reach, columns, True)

    def _product(self, left: Tensor, there: int, reach: int, columns: slice, across: bool) -> Tensor:
        part = slice(self._most - there, self._most - there + reach)
        held, gradient = self._held[:, part, columns], self._gradient[:, part, columns]
        if across:
            held, gradient = held.mT, gradient.mT
        return _Product.apply(left, self._written, held, gradient)  # type: ignore[no-untyped-call,no-any-return]


class _Write(torch.autograd.Function):
    """Write rows into the memory, in place. Its output only makes autograd order products after it, and their gradients
    before its own."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, before: Tensor | None, held: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        held.copy_(rows)
        return rows.new_zeros(())

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor | None, None, None]:  # type: ignore[override]
        found = ctx.gradient.clone()
        ctx.gradient.zero_()  # for another backward pass of the same loop
        return found, d if ctx.needs_input_grad[1] else None, None, None


class _Product(torch.autograd.Function):
    """left @ held; the gradient of `held` is accumulated in a memory of gradients."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, written: Tensor, held: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(left)
        # Not saved by `save_for_backward`, whose check would fail: later rows are written in place, but not to these.
        ctx.held, ctx.gradient = held, gradient
        return left @ held

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        (left,) = ctx.saved_tensors
        ctx.gradient.baddbmm_(left.mT, d)
        return d @ ctx.held.mT, None, None, None
