"""A prior with geometry: every ray of the view asked for attends to the rays of the retrieved views."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from gtmsm.model.compiled import compiled_to_learn
from gtmsm.model.recall import Prior, RecallConfig, Retrieved, SingleView
from gtmsm.tensors import Gaussian

FREQUENCIES = (1.5, 3.0, 6.0, 12.0)
HEAD = 64
"""Size of an attention head."""
DIGEST_LAYERS = 1
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
        self.memory_norm = _Norm(width, elementwise_affine=False)
        self.across = nn.ModuleList([_CrossBlock(width) for _ in range(settings.layers)])
        self.within_asked = nn.ModuleList([_SelfBlock(width) for _ in range(settings.layers)])
        self.out = nn.Sequential(_Norm(width), nn.Linear(width, 2 * self.channels))
        self._say: Callable[..., Tensor] = self._say_slowly
        self._ask: Callable[..., Tensor] = self._ask_slowly
        wide = math.tan(math.radians(settings.field_of_view) / 2)
        across = (torch.arange(columns) + 0.5) / columns * 2 - 1
        self.register_buffer("yaw", -torch.atan(across * wide), persistent=False)
        self.yaw: Tensor

    def compile_to_learn(self) -> None:
        """Compile what a view says by itself, and what it is asked."""
        self._say, self._ask = compiled_to_learn(self._say_slowly), compiled_to_learn(self._ask_slowly)

    def digest(self, code: Gaussian) -> Float[Tensor, "n tokens width"]:
        """A token for every patch of each view."""
        return self._say(code.mean, code.log_var)

    def _say_slowly(self, mean: Float[Tensor, "n Z"], log_var: Float[Tensor, "n Z"]) -> Float[Tensor, "n tokens width"]:
        """What each view says by itself."""
        x = self.patch(torch.cat([self._patches(mean), 0.1 * self._patches(log_var)], dim=-1))
        x = x + self.where_in_view.to(x.dtype)
        for block in self.within:
            x = block(x)
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

    def _ask_slowly(
        self, digest: Float[Tensor, "rows tokens width"], row: Int[Tensor, "n K"], relative: Float[Tensor, "n K 4"]
    ) -> Float[Tensor, "n tokens both"]:
        """Mean and log-variance of the code of every patch."""
        tokens = digest.index_select(0, row.flatten()).view(*row.shape, *self.grid, -1)
        memory = self.memory_norm(tokens + self.column(self._columns(relative))[:, :, None]).flatten(1, -2)
        x = self.asked.to(memory.dtype).expand(len(row), -1, -1)
        for ask, think in zip(self.across, self.within_asked, strict=True):
            x = think(ask(x, memory))
        return self.out(x)

    def _patches(self, code: Float[Tensor, "n Z"]) -> Float[Tensor, "n tokens channels"]:
        """The code of a frame, patch by patch."""
        return code.unflatten(-1, (self.channels, -1)).mT

    def _columns(self, relative: Float[Tensor, "*views 4"]) -> Float[Tensor, "*views columns features"]:
        """Where the columns of rays of a view run, in the frame of the pose asked for.

        Origin and direction, and the line's own coordinates: how far it passes from the asking eye, and how far
        along it the eye is abreast. All also as waves of several lengths, which attention can compare finely. The slope
        of a ray follows from its row alone, which the digest knows.
        """
        x, y, c, s = (part[..., None] for part in relative.unbind(-1))
        cos = c * self.yaw.cos() - s * self.yaw.sin()
        sin = s * self.yaw.cos() + c * self.yaw.sin()
        passing, along = x * sin - y * cos, x * cos + y * sin
        f = torch.stack([x.expand_as(cos), y.expand_as(cos), cos, sin, passing, along], dim=-1)
        return torch.cat([f, *(wave(f * n) for n in FREQUENCIES for wave in (torch.sin, torch.cos))], dim=-1)


class _Norm(nn.LayerNorm):
    """Layer norm in the precision of what comes in; PyTorch's would turn half precision into full and back."""

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        weight, bias = (None if part is None else part.to(x.dtype) for part in (self.weight, self.bias))
        with torch.autocast(x.device.type, enabled=False):
            return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class _Attention(nn.Module):
    """Queries from one sequence, keys and values from another."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(
        self, x: Float[Tensor, "n asking width"], memory: Float[Tensor, "n asked width"]
    ) -> Float[Tensor, "n asking width"]:
        query = _heads(self.query(x))
        key, value = (_heads(part) for part in self.key_value(memory).chunk(2, dim=-1))
        return self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class _CrossBlock(nn.Module):
    """Look at memory."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = _Norm(width)
        self.attention = _Attention(width)

    def forward(
        self, x: Float[Tensor, "n asking width"], memory: Float[Tensor, "n asked width"]
    ) -> Float[Tensor, "n asking width"]:
        return x + self.attention(self.norm(x), memory)


class _SelfBlock(nn.Module):
    """Look at each other, then think."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = _Norm(width)
        self.attention = _Attention(width)
        self.think = nn.Sequential(_Norm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Float[Tensor, "n tokens width"]) -> Float[Tensor, "n tokens width"]:
        normed = self.norm(x)
        x = x + self.attention(normed, normed)
        return x + self.think(x)


def _heads(x: Float[Tensor, "n tokens width"]) -> Float[Tensor, "n heads tokens head"]:
    """Split the width into attention heads."""
    return x.unflatten(-1, (-1, HEAD)).transpose(1, 2)
