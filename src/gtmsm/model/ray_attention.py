"""A prior with geometry: each ray of the queried view attends to the rays of the retrieved views."""

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gtmsm.kernels.layers.activation import activated
from gtmsm.kernels.layers.normed_sum import normed_sum
from gtmsm.kernels.rays.attend import attend
from gtmsm.kernels.rays.gathered_views import gathered_views
from gtmsm.model.mlp import between_layers
from gtmsm.model.one_view import OneView
from gtmsm.model.recall import Prior, RecallConfig, Retrieved, SingleView
from gtmsm.tensors import Gaussian, have_values

FREQUENCIES = (1.5, 3.0, 6.0, 12.0)
HEAD = 64
"""Size of an attention head."""
DIGEST_LAYERS = 1
EPSILON = 1e-5
"""Added to variances by layer norms."""
VIEWS = 1_024
"""Views that are digested at once without gradients: the activations of each take a megabyte or more."""
AT_ONCE = 256
"""Views that are predicted at once without gradients: some 400 MB of tokens."""


class RayAttention(Prior):
    """Attention between rays: spatial codes have a vector for each patch, a bundle of rays from a place in a direction.

    Tokens of a view are computed once, when it is written to memory (`digest`). A read adds the lines of the columns of
    rays relative to the query pose, and lets the rays of that pose attend to all of them.
    """

    def __init__(self, settings: RecallConfig, code_size: int, grid: tuple[int, int]) -> None:
        super().__init__()
        width, (rows, columns) = settings.width, grid
        self.channels, self.grid = code_size // (rows * columns), grid
        self.digest_sizes = rows * columns, width
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
        self.one_view = OneView()
        wide = math.tan(math.radians(settings.field_of_view) / 2)
        across = (torch.arange(columns) + 0.5) / columns * 2 - 1
        self.register_buffer("number", torch.eye(rows * columns), persistent=False)
        self.number: Tensor
        self.register_buffer("yaw", -torch.atan(across * wide), persistent=False)
        self.yaw: Tensor
        self.register_buffer("frequency", torch.tensor(FREQUENCIES), persistent=False)
        self.frequency: Tensor

    @property
    def matrices(self) -> list[nn.Parameter]:
        """Weights of all layers of attention."""
        blocks = nn.ModuleList([self.within, self.across, self.within_asked])
        return [parameter for parameter in blocks.parameters() if parameter.dim() == 2]

    def digest(self, code: Gaussian) -> Float[Tensor, "n tokens width"]:
        """A token for each patch of each view, computed from that view alone; without gradients, in portions."""
        n = len(code.mean)
        if n > VIEWS and not torch.is_grad_enabled():
            return torch.cat([self.digest(code[some : some + VIEWS]) for some in range(0, n, VIEWS)])
        mean, log_var = self._patches(code.mean), 0.1 * self._patches(code.log_var)
        # The place of a patch is an input of the first layer: adding it to each view would take another pass.
        place = self.number.to(mean.dtype).expand(len(mean), -1, -1)
        weight = torch.cat([self.patch.weight, (self.where_in_view + self.patch.bias).T], dim=1)
        x = F.linear(torch.cat([mean, log_var, place], dim=-1), weight)
        for block in cast(list[_SelfBlock], list(self.within)):
            x, _ = block(*block.norm(x), self.memory_norm)  # normalised when read, after columns are added
        return x

    def forward(self, retrieved: Retrieved) -> SingleView:
        """Attend to the retrieved views, ray by ray; without gradients, in portions, since tokens are large."""
        assert retrieved.digest is not None
        relative, row = retrieved.relative.flatten(0, 1), retrieved.row.flatten(0, 1)
        at_once = len(row) if retrieved.digest.requires_grad else AT_ONCE
        views = [
            self._ask(retrieved.digest, *some) for some in zip(row.split(at_once), relative.split(at_once), strict=True)
        ]
        mean, log_var = torch.cat(views).to(retrieved.bank.mean.dtype).chunk(2, dim=-1)
        lead = retrieved.row.shape[:2]
        parts = (part.mT.flatten(1).unflatten(0, lead) for part in (mean, F.hardtanh(log_var, -8.0, 4.0)))
        return SingleView(Gaussian(*parts), retrieved.neighbours)

    def _ask(
        self, digest: Float[Tensor, "rows tokens width"], row: Int[Tensor, "n K"], relative: Float[Tensor, "n K 4"]
    ) -> Float[Tensor, "n tokens both"]:
        """Mean and log-variance of the code of each patch."""
        lines = _gelu_layer(self._columns(relative).flatten(0, 2), self.column[0])
        lines = F.linear(lines, self.column.get_parameter("2.weight")).unflatten(0, (*row.shape, self.grid[1]))
        if len(row) == 1 and self._lasting(digest, lines):
            made = self.one_view.ask(self, digest[row[0]], lines[0].to(digest.dtype), HEAD, EPSILON, lines.dtype)
            return made[None]
        across, within = cast(list[_CrossBlock], list(self.across)), cast(list[_SelfBlock], list(self.within_asked))
        last, out = self.out
        following = [*(block.norm for block in across[1:]), cast(_Norm, last)]
        x, normed = across[0].norm(self.asked.to(lines.dtype).expand(len(row), -1, -1).contiguous())
        keys_values = self._keys_values(digest, row, lines)
        for ask, think, after, told in zip(across, within, following, keys_values, strict=True):
            x, normed = ask(x, normed, *told, think.norm)
            x, normed = think(x, normed, after)
        return cast(Tensor, out(normed))

    def _lasting(self, digest: Float[Tensor, "rows tokens width"], lines: Float[Tensor, "n K columns width"]) -> bool:
        """Whether keys and values of views are cached for the next read: on a CPU, without gradients."""
        as_weights = digest.dtype == self.asked.dtype
        return not torch.is_grad_enabled() and digest.device.type == "cpu" and as_weights and have_values(digest, lines)

    def _keys_values(
        self,
        digest: Float[Tensor, "rows tokens width"],
        row: Int[Tensor, "n K"],
        lines: Float[Tensor, "n K columns width"],
    ) -> Iterable[tuple[Tensor, Tensor | None]]:
        """Keys and values of each layer, and the tensor that their gradient is to be written to."""
        weights = [block.attention.key_value.weight for block in cast(list[_CrossBlock], list(self.across))]
        memory = gathered_views(digest.to(lines.dtype), row, lines, EPSILON)  # digests may be of another precision
        if not torch.is_grad_enabled():  # no backward pass needs them: one layer at a time takes the least memory
            return ((F.linear(memory, weight), None) for weight in weights)
        return _slices(F.linear(memory, torch.cat(weights)), len(weights))

    def _patches(self, code: Float[Tensor, "n Z"]) -> Float[Tensor, "n tokens channels"]:
        """The code of a frame, patch by patch."""
        return code.unflatten(-1, (self.channels, -1)).mT

    def _columns(self, relative: Float[Tensor, "*views 4"]) -> Float[Tensor, "*views columns features"]:
        """The lines of a view's columns of rays, in the frame of the query pose, in the next layer's precision.

        Origin and direction, and coordinates of the line: its distance from the query's eye, and the distance along it
        to the point nearest to that eye. Then sines and cosines of all six at several frequencies, which attention can
        compare finely. The slope of a ray follows from its row alone, which the digest encodes.
        """
        x, y, c, s = (part[..., None] for part in relative.unbind(-1))
        yaw_cos, yaw_sin = self.yaw.cos(), self.yaw.sin()
        cos, sin = c * yaw_cos - s * yaw_sin, s * yaw_cos + c * yaw_sin
        distance, along = x * sin - y * cos, x * cos + y * sin
        line = torch.stack([x.expand_as(cos), y.expand_as(cos), cos, sin, distance, along], dim=-1)
        waves = line[..., None, :] * self.frequency[:, None]
        features = torch.cat([line, torch.stack([waves.sin(), waves.cos()], dim=-2).flatten(-3)], dim=-1)
        return features.to(between_layers(relative))


class _Norm(nn.Module):
    """Layer norm of a sum, in the precision of its input; `learned`: with weight and bias."""

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

    def forward(
        self,
        query: Float[Tensor, "n asking width"],
        key_value: Float[Tensor, "n asked both"],
        gradient: Float[Tensor, "n asked both"] | None = None,
    ) -> Float[Tensor, "n asking width"]:
        """The values attended to, projected by `out` without its bias; `gradient`: see `attend`."""
        return F.linear(attend(query, key_value, HEAD, gradient), self.out.weight)


class _CrossBlock(nn.Module):
    """Attention to memory."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = _Norm(width)
        self.attention = _Attention(width)

    def forward(
        self,
        x: Float[Tensor, "n asking width"],
        normed: Float[Tensor, "n asking width"],
        key_value: Float[Tensor, "n asked both"],
        gradient: Float[Tensor, "n asked both"] | None,
        following: _Norm,
    ) -> tuple[Float[Tensor, "n asking width"], Float[Tensor, "n asking width"]]:
        """The result, and its norm by `following`, the norm of the next block; `normed`: x by this block's own norm."""
        query = F.linear(normed, self.attention.query.weight)
        return following(x, self.attention(query, key_value, gradient), self.attention.out.bias)


class _SelfBlock(nn.Module):
    """Attention of tokens to each other, then two layers for each token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = _Norm(width)
        self.attention = _Attention(width)
        self.think = nn.Sequential(_Norm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(
        self, x: Float[Tensor, "n tokens width"], normed: Float[Tensor, "n tokens width"], following: _Norm
    ) -> tuple[Float[Tensor, "n tokens width"], Float[Tensor, "n tokens width"]]:
        """As in `_CrossBlock`."""
        found = self.attention(*self._asked_and_told(normed))
        x, normed = self.think[0](x, found, self.attention.out.bias)
        thought = F.linear(_gelu_layer(normed, self.think[1]), self.think.get_parameter("3.weight"))
        return following(x, thought, self.think.get_parameter("3.bias"))

    def _asked_and_told(self, normed: Float[Tensor, "n tokens width"]) -> Iterable[Tensor]:
        """Queries, and keys with values; by one product if gradients are needed."""
        weights = self.attention.query.weight, self.attention.key_value.weight
        if not torch.is_grad_enabled():  # for a few views, joining the weights takes longer than a second product
            return (F.linear(normed, weight) for weight in weights)
        width = normed.shape[-1]
        return F.linear(normed, torch.cat(weights)).split([width, 2 * width], dim=-1)


def _gelu_layer(x: Float[Tensor, "*batch inputs"], layer: nn.Module) -> Float[Tensor, "*batch outputs"]:
    """A linear layer with GELU."""
    return activated(F.linear(x, layer.get_parameter("weight")), layer.get_parameter("bias"), "gelu")


def _slices(x: Float[Tensor, "n asked width"], count: int) -> list[tuple[Tensor, Tensor | None]]:
    """The last axis in `count` equal slices, each to be used once, and the tensor that its gradient is written to."""
    if not x.requires_grad or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return [(part, None) for part in x.chunk(count, dim=-1)]
    gradient = torch.empty_like(x)
    return list(zip(_Slices.apply(x, gradient, count), gradient.chunk(count, dim=-1), strict=True))


class _Slices(torch.autograd.Function):
    """Slices of x, whose gradients are written side by side into one tensor by the backward pass of `attend`.

    The backward pass of `chunk` would copy them together: 1.3 GB in an update of walk-strong, 7% of its time.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: Tensor, count: int) -> tuple[Tensor, ...]:
        """Slices of the last axis, without a copy."""
        ctx.gradient, ctx.count = gradient, count
        return x.chunk(count, dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *found: Tensor) -> tuple[Tensor, None, None]:
        """The tensor that the gradients were written to, or a joined copy if any of them lies elsewhere."""
        wanted = ctx.gradient.chunk(ctx.count, dim=-1)
        written = all(one.data_ptr() == other.data_ptr() for one, other in zip(found, wanted, strict=True))
        return ctx.gradient if written else torch.cat(found, dim=-1), None, None
