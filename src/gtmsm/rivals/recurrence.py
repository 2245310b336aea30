"""Loops over time in few kernels: a GPU spends longer on launching a small one than on computing it.

A step of a loop is left with its products by a state and what lies between them. What layers add to these products is
computed for all steps before the loop, gradients of weights and of memorised rows for all steps after it.
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
    """The step as it is; while training on a GPU compiled, so that what lies between two products is one kernel.

    Its inputs should have the same strides at all steps and in all stages, since it is compiled anew for others.
    """
    return _compiled(step) if ENABLED and device.type == "cuda" and torch.is_grad_enabled() else step


@cache
def _compiled(step: Step) -> Step:
    # In this process: a pool of compilers for each of several trainings at once would fill the machine.
    return torch.compile(step, dynamic=False, options={"compile_threads": 1})


def by_time(x: Float[Tensor, "batch time size"]) -> Float[Tensor, "time batch size"]:
    """Step by step, so that the strides of a step are the same however many there are."""
    return x.transpose(0, 1).contiguous()


def summed(added: Sequence[Tensor], products: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a layer's output, each the sum of what is added and a product.

    In parts of one size all that is done with them is one kernel. The sum of whole outputs would be compiled to a
    product into a copy of what is added, which is two.
    """
    return [one + other for one, other in zip(added, products, strict=True)]


def started(like: Float[Tensor, "batch *any"], size: int) -> Float[Tensor, "batch {size}"]:
    """A state of zeros before the first step, with gradients as later ones have: nothing is compiled for it alone."""
    return like.new_zeros(len(like), size).requires_grad_(torch.is_grad_enabled())


class LoopLayer:
    """A linear layer of states: y_t = added_t + x_t weight'. The loop notes every x_t, whose product it takes itself.

    `weight` has no gradient there. It gets one from all steps at once, after the backward pass of the loop.
    """

    def __init__(self, weight: Float[Tensor, "out in"], added: Float[Tensor, "time batch out"]) -> None:
        self._inputs: list[Tensor] = []
        self.added = _WeightLater.apply(added, weight, self._inputs).unbind(0)  # type: ignore[no-untyped-call]

    def note(self, x: Float[Tensor, "batch in"]) -> None:
        """What the layer reads at this step."""
        if torch.is_grad_enabled():
            self._inputs.append(x.detach())


class _WeightLater(torch.autograd.Function):
    """Identity of what is added at every step; its gradient is that of the outputs, and so tells that of the weight."""

    @staticmethod
    def forward(ctx: Any, added: Tensor, weight: Tensor, inputs: list[Tensor]) -> Tensor:
        ctx.inputs = inputs
        return added.view_as(added)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x = torch.stack(ctx.inputs)
        return d, d.flatten(0, 1).mT @ x.flatten(0, 1), None


class Rows:
    """A memory that a loop reads and adds to, the latest row first; rows that are not there are 0."""

    def __init__(self, rows: Float[Tensor, "batch n size"], most: int, spare: int) -> None:
        """Holds `rows`, the latest of them last, and later up to `most`; so many more may be read, of zeros."""
        self._most = most
        self._held = rows.new_zeros(len(rows), most + spare, rows.shape[-1])
        self._gradient = torch.zeros_like(self._held)
        self._written: Tensor | None = None
        self.write(rows, 0)

    def write(self, rows: Float[Tensor, "batch m size"], there: int) -> None:
        """Add rows where `there` are held already."""
        part = slice(self._most - there - rows.shape[1], self._most - there)
        where = self._held[:, part], self._gradient[:, part]
        self._written = _Write.apply(rows.flip(1), self._written, *where)  # type: ignore[no-untyped-call]

    def times(
        self, left: Float[Tensor, "batch heads reach"], there: int, columns: slice
    ) -> Float[Tensor, "batch heads size"]:
        """Weights of the latest rows times some columns of these, where `there` rows are held."""
        return self._product(left, there, left.shape[-1], columns, False)

    def alike(
        self, left: Float[Tensor, "batch heads size"], there: int, columns: slice, reach: int
    ) -> Float[Tensor, "batch heads reach"]:
        """Keys times some columns of each of the latest `reach` rows, where `there` rows are held."""
        return self._product(left, there, reach, columns, True)

    def _product(self, left: Tensor, there: int, reach: int, columns: slice, across: bool) -> Tensor:
        part = slice(self._most - there, self._most - there + reach)
        held, gradient = self._held[:, part, columns], self._gradient[:, part, columns]
        if across:
            held, gradient = held.mT, gradient.mT
        return _Product.apply(left, self._written, held, gradient)  # type: ignore[no-untyped-call,no-any-return]


class _Write(torch.autograd.Function):
    """Rows into the memory, in place. Its output only tells that products come later, and their gradients first."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, before: Tensor | None, held: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        held.copy_(rows)
        return rows.new_zeros(())

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor | None, None, None]:  # type: ignore[override]
        found = ctx.gradient.clone()
        ctx.gradient.zero_()  # another backward pass of the same loop begins anew
        return found, d if ctx.needs_input_grad[1] else None, None, None


class _Product(torch.autograd.Function):
    """left @ held, where the gradient of what is held is added to a memory of gradients."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, written: Tensor, held: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(left)
        # No later row is written where these lie, which PyTorch cannot know: it is not told to guard them.
        ctx.held, ctx.gradient = held, gradient
        return left @ held

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        (left,) = ctx.saved_tensors
        ctx.gradient.baddbmm_(left.mT, d)
        return d @ ctx.held.mT, None, None, None
