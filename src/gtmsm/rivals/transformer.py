"""A causal transformer over the steps of a walk, which attends to all of them."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.rivals.rival import GaussianHead, Predicted, Rival, RivalDescription, as_tokens, token_size
from gtmsm.tensors import Actions, FutureActions, Gaussian, TruePoses

BASE = 10_000.0
"""Base of the frequencies of rotary position embeddings (Su et al., 2021)."""


class Block(nn.Module):
    """A pre-norm transformer block: attention and a dense layer, both residual.

    With `rotary`, half of every head has rotary embeddings, so that attention depends on the distance of steps; the
    other half depends on contents only. Such blocks are causal, others attend to all tokens.
    """

    def __init__(self, width: int, heads: int, rotary: bool) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, h: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        """The tokens after this layer."""
        query, key, value = self.asked(self.before(h)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.rotary:
            query, key = turned(query), turned(key)
        read = F.scaled_dot_product_attention(query, key, value, is_causal=self.rotary)
        h = h + self.out(read.transpose(1, 2).flatten(2))
        return h + self.dense(self.between(h))


def turned(x: Float[Tensor, "batch heads time size"]) -> Float[Tensor, "batch heads time size"]:
    """Apply rotary embeddings to the first half of each head."""
    quarter = x.shape[-1] // 4
    first, second, rest = x.split([quarter, quarter, x.shape[-1] - 2 * quarter], dim=-1)
    rates = BASE ** (-torch.arange(quarter, device=x.device) / quarter)
    angle = torch.arange(x.shape[-2], device=x.device)[:, None] * rates
    c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat([c * first - s * second, s * first + c * second, rest], dim=-1)


class Transformer(Rival):
    """Tokens (z_t or 0, a_t), causal attention, p(z_t | tokens up to t)."""

    context = "all steps"

    def __init__(self, about: RivalDescription) -> None:
        super().__init__(about)
        rival = about.rival
        self.embed = nn.Linear(token_size(about), rival.width)
        self.blocks = nn.Sequential(*(Block(rival.width, rival.heads, rotary=True) for _ in range(rival.layers)))
        self.norm, self.head = nn.LayerNorm(rival.width), GaussianHead(rival.width, self.code_size)

    def predict(
        self,
        code: Gaussian,
        a: Actions,
        plan: FutureActions,
        poses: TruePoses | None = None,
        generator: torch.Generator | None = None,
    ) -> Predicted:
        """See `Rival`; the prior is read from the plan's tokens after attention."""
        h = self.blocks(self.embed(as_tokens(code.mean, a, plan)))
        return Predicted(self.head(self.norm(h[:, a.shape[1] :])))
