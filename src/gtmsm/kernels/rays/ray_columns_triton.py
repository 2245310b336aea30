"""Columns of rays on a GPU: one launch, which writes everything once, as it is wanted.

Waves are of places times large frequencies, so the last bit of a number is many of its wave's. Hence products and sums
are rounded one by one, as the readable twin rounds them, and none are fused. Sines and cosines are the accurate ones of
CUDA's library, not those of its special function units, which are lost some turns from zero.
"""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16
"""Columns of views that a program makes: four waves in each of its threads, and programs enough for a whole GPU."""
PARTS = tl.constexpr(6)
"""x, y, cos, sin, passing, along."""


@triton.jit
def _ray_columns(
    relative, yaw, frequency, made, rows, view_stride, axis,
    COLUMNS: tl.constexpr, WAVES: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    used = row < rows
    relative += (row // COLUMNS).to(tl.int64) * view_stride
    x = tl.load(relative, used, 0.0)[:, None]
    y = tl.load(relative + axis, used, 0.0)[:, None]
    c = tl.load(relative + 2 * axis, used, 0.0)[:, None]
    s = tl.load(relative + 3 * axis, used, 0.0)[:, None]
    turn = tl.load(yaw + row % COLUMNS, used, 0.0)[:, None]
    yaw_cos, yaw_sin = tl.cos(turn), tl.sin(turn)
    cos = c * yaw_cos - s * yaw_sin
    sin = s * yaw_cos + c * yaw_sin
    passing = x * sin - y * cos
    along = x * cos + y * sin
    part = tl.arange(0, 8)[None, :]
    place = tl.where(part == 0, x, y)
    direction = tl.where(part == 2, cos, sin)
    line = tl.where(part == 4, passing, along)
    f = tl.where(part < 2, place, tl.where(part < 4, direction, line))
    made += row.to(tl.int64)[:, None] * (PARTS * (1 + 2 * WAVES))
    there = used[:, None] & (part < PARTS)
    tl.store(made + part, f.to(made.dtype.element_ty), there)
    wave = tl.arange(0, WIDE)
    f = f[:, None, :] * tl.load(frequency + wave, wave < WAVES, 0.0)[None, :, None]
    # side by side as they are wanted, so that neighbours in memory are written together
    both = tl.permute(tl.join(tl.sin(f), tl.cos(f)), (0, 1, 3, 2))
    kind = tl.arange(0, 2)[None, None, :, None]
    at = PARTS + (2 * wave[None, :, None, None] + kind) * PARTS + part[:, None, None, :]
    there = there[:, None, None, :] & (wave < WAVES)[None, :, None, None]
    tl.store(made[:, :, None, None] + at, both.to(made.dtype.element_ty), there)


def columns(relative: Tensor, yaw: Tensor, frequency: Tensor, made: torch.dtype) -> Tensor:
    """`ray_columns_by_parts` for float32, some views and no gradients."""
    yaw, frequency, views = yaw.contiguous(), frequency.contiguous(), relative.reshape(-1, 4)
    features, rows = PARTS.value * (1 + 2 * len(frequency)), len(views) * len(yaw)
    into = relative.new_empty((*relative.shape[:-1], len(yaw), features), dtype=made)
    _ray_columns[(triton.cdiv(rows, ROWS),)](
        views, yaw, frequency, into, rows, *views.stride(), COLUMNS=len(yaw), WAVES=len(frequency),
        ROWS=ROWS, WIDE=triton.next_power_of_2(max(len(frequency), 1)), num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return into
