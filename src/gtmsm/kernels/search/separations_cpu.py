"""Squared distances on a CPU: by hand, axis by axis, since a place is too few numbers for a loop of its own."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Separations(torch.autograd.Function):
    """Squared distances and their gradients; axes come first throughout."""

    @staticmethod
    def forward(ctx: Any, place: Tensor, query: Tensor, index: Tensor) -> Tensor:
        (batch, m, K), (_, n, P) = index.shape, place.shape
        entry = index.reshape(1, batch, m * K).expand(P, -1, -1)
        away = place.permute(2, 0, 1).gather(2, entry).view(P, batch, m, K).sub_(query.permute(2, 0, 1)[..., None])
        ctx.save_for_backward(entry, away)
        ctx.n = n
        return (away * away).sum(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        entry, away = ctx.saved_tensors
        P, batch = away.shape[:2]
        into_place, into_query, _ = ctx.needs_input_grad
        share = away * (2 * incoming)
        g_place = g_query = None
        if into_query:
            g_query = share.sum(3).neg_().permute(1, 2, 0)
        if into_place:
            g_place = share.new_zeros(P, batch, ctx.n).scatter_add_(2, entry, share.view(P, batch, -1)).permute(1, 2, 0)
        return g_place, g_query, None


def measure(place: Tensor, query: Tensor, index: Tensor) -> Tensor:
    """`separations_by_parts`, faster on a CPU."""
    return _Separations.apply(place, query, index)  # type: ignore[no-any-return]
