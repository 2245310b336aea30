"""Muon (Jordan et al. 2024): updates of weight matrices that are equally long in every direction."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

MOMENTUM = 0.95
ROUNDS = 5
"""Newton-Schulz iterations: after five, singular values lie between 0.7 and 1.2, except for the smallest."""


class Alike(NamedTuple):
    """Matrices of one shape, side by side in a vector."""

    number: int
    rows: int
    columns: int


def muon_step(
    weight: Float[Tensor, "size"],
    moment: Float[Tensor, "size"],
    gradient: Float[Tensor, "size"],
    shapes: Sequence[Alike],
    rate: Float[Tensor, ""],
    live: Float[Tensor, ""],
) -> None:
    """Update the matrices in a vector, and their moments, in place; if `live` is 0, nothing changes.

    A step is on average as long as one of Adam, so that both can share a learning rate (Liu et al. 2025). PyTorch's own
    Muon makes the same steps (`match_rms_adamw`), matrix by matrix; batching equal shapes takes far fewer launches.
    """
    gradient = torch.where(live > 0, gradient, 0.0)  # a product with 0 would keep values that are not finite
    moment.lerp_(gradient, (1 - MOMENTUM) * live)
    ways = _views(gradient.lerp(moment, MOMENTUM), shapes)
    homes = _views(weight, shapes)
    for size in dict.fromkeys(way.shape[1:] for way in ways):
        some = [number for number, way in enumerate(ways) if way.shape[1:] == size]
        steps = orthogonal(torch.cat([ways[number] for number in some])) * (-0.2 * size[1] ** 0.5 * rate * live)
        for number, step in zip(some, steps.split([len(ways[number]) for number in some]), strict=True):
            homes[number].add_(step)


def orthogonal(matrices: Float[Tensor, "n short long"]) -> Float[Tensor, "n short long"]:
    """Matrices with the same singular vectors, and singular values of about 1, by a Newton-Schulz iteration."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.to(matrices.dtype)


def _views(vector: Float[Tensor, "size"], shapes: Sequence[Alike]) -> list[Float[Tensor, "n short long"]]:
    """The matrices in a vector, one batch per shape; tall ones are transposed."""
    parts = vector.split([one.number * one.rows * one.columns for one in shapes])
    views = [part.view(tuple(one)) for part, one in zip(parts, shapes, strict=True)]
    return [view.mT if one.rows > one.columns else view for view, one in zip(views, shapes, strict=True)]
