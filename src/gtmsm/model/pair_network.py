"""A network of two codes: what each shows by itself, their sum and, where they are wanted, their products."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.pose import Space
from gtmsm.tensors import EntryIndex, PerEntry, gather


class Match(NamedTuple):
    """What the comparison of an entry and a query says, for every pair of a lookup."""

    log_odds: PerEntry
    """That both show the same place."""
    offset: Float[Tensor, "batch time K D"]
    """The displacement from the entry's pose to the query's, in the frame of the entry."""
    noise: Float[Tensor, "batch time K G"]
    """Its variance."""


class PairNetwork(nn.Module):
    """Do two codes show the same place, and from which relative pose?"""

    def __init__(self, code_size: int, width: int, products: int, space: Space) -> None:
        super().__init__()
        self.width, self.space = width, space
        outputs = 1 + space.size + len(space.groups)
        # Layers of one view alone are computed once per view, not once per pair.
        self.view = nn.Sequential(nn.Linear(code_size, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.alike = nn.Linear(1, width, bias=False)
        self.net = nn.Sequential(
            nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, outputs)
        )
        self.products = _Products(code_size, width, products) if products else None

    @property
    def matrices(self) -> list[nn.Parameter]:
        """Weights of the layers between the first and the last."""
        layers = [self.view, self.first, self.second, self.net]
        square = [p for layer in layers for p in layer.parameters() if p.shape == (self.width, self.width)]
        return square + ([] if self.products is None else self.products.matrices)

    def match(
        self,
        entries: Float[Tensor, "batch n Z"],
        query: Float[Tensor, "batch time Z"],
        index: EntryIndex,
        distance: PerEntry,
        grain: float,
    ) -> Match:
        """What each query and the entries `index` say of each other; `distance` is that of their codes."""
        apart = distance[..., None]
        summed = gather(self.first(self.view(entries)), index) + self.second(self.view(query))[:, :, None]
        summed = summed + self.alike((apart + 1e-4).log())
        if self.products is not None:
            summed = summed + self.products(entries, query, index)
        made = self.net(summed).to(apart)
        log_odds, offset, log_noise = made.split([1, self.space.size, len(self.space.groups)], dim=-1)
        # Equal codes show the same place, whatever the network has learned.
        other = apart / (apart + 0.1)
        least = min(-5.0, math.log(grain) - 1)  # what lies far below the grain does not matter
        noise = grain**2 + other * (2 * log_noise.clamp(least, 3.0)).exp()
        return Match(log_odds[..., 0], offset * other, noise)


class _Products(nn.Module):
    """Features of one view times features of the other: how two views differ is in products, not in sums."""

    def __init__(self, code_size: int, width: int, number: int) -> None:
        super().__init__()
        self.near = nn.Linear(code_size, width)
        self.there, self.here = nn.Linear(code_size + width, number), nn.Linear(code_size + width, number)
        self.out = nn.Linear(number, width, bias=False)

    @property
    def matrices(self) -> list[nn.Parameter]:
        """Weights of its layers but for the first."""
        return [layer.get_parameter("weight") for layer in (self.there, self.here, self.out)]

    def forward(
        self, entries: Float[Tensor, "batch n Z"], query: Float[Tensor, "batch time Z"], index: EntryIndex
    ) -> Float[Tensor, "batch time K width"]:
        """Products of each query with the entries `index`."""
        return self.out(
            gather(self.there(self._features(entries)), index) * self.here(self._features(query))[:, :, None]
        )

    def _features(self, code: Float[Tensor, "batch n Z"]) -> Float[Tensor, "batch n F"]:
        return torch.cat([code, nn.functional.silu(self.near(code))], dim=-1)
