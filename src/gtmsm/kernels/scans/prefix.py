"""Prefix scans: all partial products of an associative operation along time, in log2(T) batched rounds."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Combine: TypeAlias = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]


def prefix_scan(combine: Combine, elements: Sequence[Tensor]) -> list[Tensor]:
    """All prefixes along time (axis 1): out[t] = combine(combine(e[0], e[1]), ... e[t]).

    `combine(earlier, later)` must be associative. Each round doubles the length that a prefix covers
    (Hillis and Steele, 1986), so T steps take log2(T) rounds.
    """
    scanned = list(elements)
    length = 1
    while length < scanned[0].shape[1]:
        longer = combine([part[:, :-length] for part in scanned], [part[:, length:] for part in scanned])
        scanned = [torch.cat([part[:, :length], new], dim=1) for part, new in zip(scanned, longer, strict=True)]
        length *= 2
    return scanned
