"""Prefix scans: every partial product of an associative operation, in log2(T) batched rounds."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Combine: TypeAlias = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]


def prefix_scan_by_steps(combine: Combine, elements: Sequence[Tensor]) -> list[Tensor]:
    """The readable twin: combine one step of time (axis 1) after the other."""
    so_far: list[Tensor] = [part[:, :1] for part in elements]
    steps = [so_far]
    for t in range(1, elements[0].shape[1]):
        so_far = list(combine(so_far, [part[:, t : t + 1] for part in elements]))
        steps.append(so_far)
    return [torch.cat(parts, dim=1) for parts in zip(*steps, strict=True)]


def prefix_scan(combine: Combine, elements: Sequence[Tensor]) -> list[Tensor]:
    """All prefixes along time (axis 1): out[t] = combine(combine(e[0], e[1]), ... e[t]).

    `combine(earlier, later)` must be associative. Each round doubles the stretch a prefix covers
    (Hillis and Steele, 1986), so T steps take log2(T) rounds of whole-tensor work on any device.
    """
    scanned = list(elements)
    stretch = 1
    while stretch < scanned[0].shape[1]:
        longer = combine([part[:, :-stretch] for part in scanned], [part[:, stretch:] for part in scanned])
        scanned = [torch.cat([part[:, :stretch], new], dim=1) for part, new in zip(scanned, longer, strict=True)]
        stretch *= 2
    return scanned
