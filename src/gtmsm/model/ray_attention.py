"""A prior with geometry: every ray of the view asked for attends to the rays of the retrieved views."""

import math
from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from gtmsm.kernels.choice import between_layers
from gtmsm.kernels.gradients.weighted import project
from gtmsm.kernels.layers.activation import activated
from gtmsm.kernels.layers.normed_sum import normed_sum
from gtmsm.kernels.rays.apart import Apart, apart
from gtmsm.kernels.rays.attend import attend
from gtmsm.kernels.rays.ray_columns import ray_columns
from gtmsm.kernels.rays.seen_from import seen_from
from gtmsm.model.recall import Prior, RecallConfig, Retrieved, SingleView
from gtmsm.tensors import Gaussian

FREQUENCIES = (1.5, 3.0, 6.0, 12.0)
HEAD = 64
"""Size of an attention head."""
DIGEST_LAYERS = 1
EPSILON = 1e-5
"""Of norms."""
AT_ONCE = 256
"""Views made at once where no gradients are wanted: some 400 MB of tokens."""


class RayAttention(Prior):
    """Codes are spatial, a vector for every patch of a frame; a patch is a bundle of rays with a place and a direction.

    What a view says by itself is worked out once, when it is written (`digest`). A read adds where its columns of rays
    run, seen from the pose asked for, and lets the rays of that pose ask all of them.
    """

    def __init__(self, settings: RecallConfig, code_size: int, grid: tuple[int, int]) -> None:
        super().__init__()
        width, (rows, columns) = settings.width, grid
        self.channels, self.grid = code_size // (rows * columns), grid
        self.patch = nn.Linear(2 * self.channels, width)
        self.where_in_view = nn.Parameter(0.02 * torch.randn(rows * columns, width))
        self.within = nn.ModuleList([_SelfBlock(width) for _ in range(DIGEST_LAYERS)])
        self.column = nn.Sequential(
            nn.Linear(6 * (1 + 2 * len(FREQUENCIES)), width), nn.GELU(), nn.Linear(width, width, bias=False)
        )
        self.asked = nn.Parameter(0.02 * torch.randn(rows * columns, width))
        self.memory_norm = _Norm(width, learned=False)
        self.across = nn.ModuleList([_CrossBlock(width) for _ in range(settings.layers)])
        self.within_asked = nn.ModuleList([_SelfBlock(width) for _ in range(settings.layers)])
        self.out = nn.Sequential(_Norm(width), nn.Linear(width, 2 * self.channels))
        wide = math.tan(math.radians(settings.field_of_view) / 2)
        across = (torch.arange(columns) + 0.5) / columns * 2 - 1
        self.register_buffer("number", torch.eye(rows * columns), persistent=False)
        self.number: Tensor
        self.register_buffer("yaw", -torch.atan(across * wide), persistent=False)
        self.yaw: Tensor
        self.register_buffer("frequency", torch.tensor(FREQUENCIES), persistent=False)
        self.frequency: Tensor

    def digest(self, code: Gaussian) -> Float[Tensor, "n tokens width"]:
        """What each view says by itself: a token for every patch."""
        mean, log_var = self._patches(code.mean), 0.1 * self._patches(code.log_var)
        # Where a patch is comes in as one of many inputs: adding it to every view would be a pass of its own.
        place = self.number.to(mean.dtype).expand(len(mean), -1, -1)
        weight = torch.cat([self.patch.weight, (self.where_in_view + self.patch.bias).T], dim=1)
        x = F.linear(torch.cat([mean, log_var, place], dim=-1), weight)
        for block in cast(list[_SelfBlock], list(self.within)):
            x, _ = block(*block.norm(x), self.memory_norm)  # a norm comes later, when it is known from where it is seen
        return x

    def forward(self, retrieved: Retrieved) -> SingleView:
        """Ask the retrieved views, ray by ray; in portions where nobody learns from it, since tokens are large."""
        assert retrieved.digest is not None
        relative, row = retrieved.relative.flatten(0, 1), retrieved.row.flatten(0, 1)
        at_once = len(row) if retrieved.digest.requires_grad else AT_ONCE
        views = [
            self._ask(retrieved.digest, *some) for some in zip(row.split(at_once), relative.split(at_once), strict=True)
        ]
        mean, log_var = torch.cat(views).to(retrieved.bank.mean.dtype).chunk(2, dim=-1)
        lead = retrieved.row.shape[:2]
        parts = (part.mT.flatten(1).unflatten(0, lead) for part in (mean, log_var.clamp(-8.0, 4.0)))
        return SingleView(Gaussian(*parts), retrieved.neighbours)

    def _ask(
        self, digest: Float[Tensor, "rows tokens width"], row: Int[Tensor, "n K"], relative: Float[Tensor, "n K 4"]
    ) -> Float[Tensor, "n tokens both"]:
        """Mean and log-variance of the code of every patch."""
        lines = _bent(self._columns(relative).flatten(0, 2), self.column[0])
        lines = project(lines, self.column.get_parameter("2.weight")).unflatten(0, (*row.shape, self.grid[1]))
        memory = seen_from(digest.to(lines.dtype), row, lines, EPSILON)  # it may have been made in another precision
        across, within = cast(list[_CrossBlock], list(self.across)), cast(list[_SelfBlock], list(self.within_asked))
        last, out = self.out
        following = [*(block.norm for block in across[1:]), cast(_Norm, last)]
        x, normed = across[0].norm(self.asked.to(memory.dtype).expand(len(row), -1, -1).contiguous())
        for ask, think, after, told in zip(across, within, following, self._keys_values(memory), strict=True):
            x, normed = ask(x, normed, *told, think.norm)
            x, normed = think(x, normed, after)
        return cast(Tensor, out(normed))

    def _keys_values(self, memory: Float[Tensor, "n asked width"]) -> Iterator[tuple[Apart, Apart]]:
        """Those of every layer: by one product where they are learned from, for then they are kept anyway."""
        weights = [block.attention.key_value.weight for block in cast(list[_CrossBlock], list(self.across))]
        if torch.is_grad_enabled():
            parts = apart(project(memory, *weights), 2 * len(weights))
            yield from zip(parts[::2], parts[1::2], strict=True)
        else:
            for weight in weights:
                key, value = apart(project(memory, weight), 2)
                yield key, value

    def _patches(self, code: Float[Tensor, "n Z"]) -> Float[Tensor, "n tokens channels"]:
        """The code of a frame, patch by patch."""
        return code.unflatten(-1, (self.channels, -1)).mT

    def _columns(self, relative: Float[Tensor, "*views 4"]) -> Float[Tensor, "*views columns features"]:
        """Where the columns of rays of a view run, in the frame of the pose asked for; as the next layer takes it.

        The slope of a ray follows from its row alone, which the digest knows.
        """
        return ray_columns(relative, self.yaw, self.frequency, between_layers(relative))


class _Norm(nn.Module):
    """Layer norm of a sum, in the precision of what comes in; without weights of its own if not `learned`."""

    def __init__(self, width: int, learned: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width)) if learned else None
        self.bias = nn.Parameter(torch.zeros(width)) if learned else None

    def forward(
        self,
        x: Float[Tensor, "n tokens width"],
        more: Float[Tensor, "n tokens width"] | None = None,
        bias: Float[Tensor, "width"] | None = None,
    ) -> tuple[Float[Tensor, "n tokens width"], Float[Tensor, "n tokens width"]]:
        """x + more + bias, and the norm of that."""
        return normed_sum(x, more, bias, self.weight, self.bias, EPSILON)


class _Attention(nn.Module):
    """Queries from one sequence, keys and values from another."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, query: Apart, key: Apart, value: Apart) -> Float[Tensor, "n asking width"]:
        """What was found, without the bias of `out`."""
        wanted = query.gradient, key.gradient, value.gradient
        return project(attend(query.values, key.values, value.values, HEAD, wanted), self.out.weight)


class _CrossBlock(nn.Module):
    """Look at memory."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = _Norm(width)
        self.attention = _Attention(width)

    def forward(
        self,
        x: Float[Tensor, "n asking width"],
        normed: Float[Tensor, "n asking width"],
        key: Apart,
        value: Apart,
        following: _Norm,
    ) -> tuple[Float[Tensor, "n asking width"], Float[Tensor, "n asking width"]]:
        """The result, and its norm for what follows; `normed` is that of x by this block's own."""
        query = Apart(project(normed, self.attention.query.weight), None)
        return following(x, self.attention(query, key, value), self.attention.out.bias)


class _SelfBlock(nn.Module):
    """Look at each other, then think."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = _Norm(width)
        self.attention = _Attention(width)
        self.think = nn.Sequential(_Norm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(
        self, x: Float[Tensor, "n tokens width"], normed: Float[Tensor, "n tokens width"], following: _Norm
    ) -> tuple[Float[Tensor, "n tokens width"], Float[Tensor, "n tokens width"]]:
        """As in `_CrossBlock`."""
        all_three = project(normed, self.attention.query.weight, self.attention.key_value.weight)
        found = self.attention(*apart(all_three, 3))
        x, normed = self.think[0](x, found, self.attention.out.bias)
        thought = project(_bent(normed, self.think[1]), self.think.get_parameter("3.weight"))
        return following(x, thought, self.think.get_parameter("3.bias"))


def _bent(x: Float[Tensor, "*batch inputs"], layer: nn.Module) -> Float[Tensor, "*batch outputs"]:
    """A linear layer with GELU."""
    return activated(project(x, layer.get_parameter("weight")), layer.get_parameter("bias"), "gelu")
