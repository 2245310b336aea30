"""The view from a single pose on a CPU, as the page needs it: the arithmetic of `RayAttention`, with caches.

Everything that does not depend on the pose is computed once: joined weights, queries of the first layer, and keys and
values of each view in every layer (`told_views.py`). Buffers as large as the views are reused: to allocate them takes
longer than to compute them.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from threading import Lock, local
from typing import TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.kernels.rays.attend import attend
from gtmsm.model.fingerprint import state_of, tensors_of
from gtmsm.model.mlp import weight_and_bias
from gtmsm.model.told_views import Cache, ToldViews

Pair: TypeAlias = tuple[Tensor, Tensor]
"""A weight and a bias."""


@dataclass(frozen=True)
class Layer:
    """The weights of attention to memory, and of the block of self-attention after it."""

    query: Tensor
    out: Pair
    norm: Pair
    asked_and_told: Tensor
    found: Pair
    think_norm: Pair
    think: Pair
    thought: Pair
    following: Pair

    @classmethod
    def of(cls, across: nn.Module, within: nn.Module, following: nn.Module, dtype: torch.dtype) -> "Layer":
        """The weights of these modules; matrices and their biases in `dtype`."""
        ask, think = across.get_submodule("attention"), within.get_submodule("attention")
        both = torch.cat([think.get_parameter("query.weight"), think.get_parameter("key_value.weight")])
        return cls(
            ask.get_parameter("query.weight").to(dtype),
            _linear(ask.get_submodule("out"), dtype),
            weight_and_bias(within.get_submodule("norm")),
            both.to(dtype),
            _linear(think.get_submodule("out"), dtype),
            weight_and_bias(within.get_submodule("think.0")),
            _linear(within.get_submodule("think.1"), dtype),
            _linear(within.get_submodule("think.3"), dtype),
            weight_and_bias(following),
        )

    def ask(self, x: Tensor, query: Tensor, told: Tensor, head: int, eps: float) -> Float[Tensor, "tokens width"]:
        """Add the output of this layer to x in place; return the norm of the sum for the next layer."""
        dtype, width = self.query.dtype, x.shape[-1:]
        found = _attend(query, told, head)
        x += F.linear(found, *self.out)
        normed = F.layer_norm(x, width, *self.norm, eps).to(dtype)
        query, own = F.linear(normed, self.asked_and_told).split([width[0], 2 * width[0]], dim=-1)
        x += F.linear(_attend(query, own, head), *self.found)
        normed = F.layer_norm(x, width, *self.think_norm, eps).to(dtype)
        x += F.linear(F.gelu(F.linear(normed, *self.think)), *self.thought)
        return F.layer_norm(x, width, *self.following, eps).to(dtype)


@dataclass(frozen=True)
class _Folded:
    """Everything that is computed from the weights alone."""

    made_of: Hashable
    start: Float[Tensor, "tokens width"]
    first: Float[Tensor, "tokens width"]
    """Queries of the first layer, which do not depend on the pose."""
    layers: Sequence[Layer]
    out: Pair


class OneView(Cache):
    """Predicts single views; several threads may call it at once."""

    def __init__(self) -> None:
        self._views, self._lock, self._buffers = ToldViews(), Lock(), local()
        self._folded: dict[torch.dtype, _Folded] = {}

    def ask(
        self,
        prior: nn.Module,
        digest: Float[Tensor, "K tokens width"],
        line: Float[Tensor, "K columns width"],
        head: int,
        eps: float,
        dtype: torch.dtype,
    ) -> Float[Tensor, "tokens both"]:
        """Mean and log-variance of the code of each patch; products in `dtype`, sums and norms in that of digests."""
        folded = self._known(prior, eps, dtype)
        blocks = prior.get_submodule("across").children()
        weights = [block.get_parameter("attention.key_value.weight") for block in blocks]
        told = self._views.tell(weights, digest, line, eps, dtype, self._buffers.__dict__)
        x, query = folded.start.clone(), folded.first
        for number, (layer, key_value) in enumerate(zip(folded.layers, told, strict=True)):
            normed = layer.ask(x, query, key_value, head, eps)
            if number + 1 < len(folded.layers):
                query = F.linear(normed, folded.layers[number + 1].query)
        return F.linear(normed, *folded.out).to(digest.dtype)

    def _known(self, prior: nn.Module, eps: float, dtype: torch.dtype) -> _Folded:
        """Everything that is computed from the weights, computed again if they have changed."""
        state = state_of(tensors_of(prior))
        with self._lock:
            known = self._folded.get(dtype)
        if known is None or known.made_of != state:
            across, within = (list(prior.get_submodule(name).children()) for name in ("across", "within_asked"))
            norms = [block.get_submodule("norm") for block in across]
            last = prior.get_submodule("out.0")
            start = prior.get_parameter("asked").detach()
            layers = [Layer.of(*some, dtype) for some in zip(across, within, [*norms[1:], last], strict=True)]
            normed = F.layer_norm(start, start.shape[-1:], *weight_and_bias(norms[0]), eps).to(dtype)
            out = _linear(prior.get_submodule("out.1"), dtype)
            known = _Folded(state, start, F.linear(normed, layers[0].query), layers, out)
            with self._lock:
                self._folded[dtype] = known
        return known


def _attend(
    query: Float[Tensor, "asking width"], told: Float[Tensor, "asked both"], head: int
) -> Float[Tensor, "asking width"]:
    """`attend` for a single view; in bfloat16 by separate products, which take half of the time."""
    if query.dtype != torch.bfloat16:
        return attend(query[None], told[None], head)[0]
    q, k, v = (x.unflatten(-1, (-1, head)).transpose(0, 1) for x in (query, *told.chunk(2, dim=-1)))
    weight = torch.baddbmm(q.new_zeros(()), q, k.mT, beta=0, alpha=head**-0.5).softmax(-1)
    return torch.bmm(weight, v).transpose(0, 1).flatten(1)


def _linear(layer: nn.Module, dtype: torch.dtype) -> Pair:
    return layer.get_parameter("weight").to(dtype), layer.get_parameter("bias").to(dtype)
