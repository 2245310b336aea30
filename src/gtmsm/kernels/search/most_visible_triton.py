"""The choice of views on a GPU in one launch: one program per query.

A lane computes one view and keeps its scores of all points in registers, so that its gain is a sum within the lane;
only the maximum is taken across lanes. All lanes then need the scores of the chosen view, which are in the registers
of one lane: they are read from memory.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.operator import Fast, no_gradients
from gtmsm.kernels.search.most_visible import half_width, points, portions

FEWEST_VIEWS = 32
"""Minimum number of lanes: a program has at least one warp, with a lane for each view."""
MOST_VIEWS = 512
"""Maximum number of views: the scores of more do not fit into registers."""
REGISTERS = 128
"""Registers of a lane: with this many, two programs of 256 views fit on a multiprocessor."""

PER_ANGLE = tl.constexpr(2.0 * math.log2(math.e))
PER_SCALE = tl.constexpr(0.125 * math.log(2.0))


@triton.jit
def _how_well_seen(
    ahead, left, q_x, q_y, q_c, q_s, x, y, c, s, wide
):  # fmt: skip  # pragma: no cover - runs on the GPU
    """`how_well_seen`, for points down and views across; distances stay squared, and powers are of 2."""
    mine_x = q_c * ahead - q_s * left
    mine_y = q_s * ahead + q_c * left
    mine2 = mine_x * mine_x + mine_y * mine_y
    to_x = mine_x[:, None] + (q_x - x)[None, :]
    to_y = mine_y[:, None] + (q_y - y)[None, :]
    to2 = tl.maximum(to_x * to_x + to_y * to_y, 1e-6)
    depth_there = to_x * c[None, :] + to_y * s[None, :]
    side_there = to_y * c[None, :] - to_x * s[None, :]
    margin = wide - tl.abs(side_there) / tl.maximum(depth_there, 1e-3)
    inside = tl.where(depth_there > 0.1, tl.minimum(tl.maximum(4.0 * margin, 0.0), 1.0), 0.0)
    cosine = (to_x * mine_x[:, None] + to_y * mine_y[:, None]) * tl.rsqrt(to2 * mine2[:, None])
    scale = tl.log2(to2 * (1.0 / mine2)[:, None])  # twice that of the distances, hence an eighth of its square
    return inside * tl.exp2((cosine - 1.0) * PER_ANGLE - scale * scale * PER_SCALE)


@triton.jit
def _choose(
    place, query, ahead, left, scores, chosen, wide, time, n,
    place_batch, place_row, place_axis, query_batch, query_row, query_axis,
    P: tl.constexpr, K: tl.constexpr, POINTS: tl.constexpr, VIEWS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    # A constant, so that addresses cost nothing; odd, so that the compiler does not vectorise the stores of a lane.
    PITCH: tl.constexpr = VIEWS + 1
    program = tl.program_id(0).to(tl.int64)
    batch, t = program // time, program % time
    point, view = tl.arange(0, POINTS), tl.arange(0, VIEWS)
    there = view < n
    # Lanes past the last point or view compute with any values; they are masked below.
    point_ahead = tl.load(ahead + point, point < P, 1.0)
    point_left = tl.load(left + point, point < P, 0.0)
    at = place + batch * place_batch + view.to(tl.int64) * place_row
    x = tl.load(at, there, 0.0)
    y = tl.load(at + place_axis, there, 0.0)
    c = tl.load(at + 2 * place_axis, there, 0.0)
    s = tl.load(at + 3 * place_axis, there, 0.0)
    asked = query + batch * query_batch + t * query_row
    q_x, q_y = tl.load(asked), tl.load(asked + query_axis)
    q_c, q_s = tl.load(asked + 2 * query_axis), tl.load(asked + 3 * query_axis)
    score = _how_well_seen(point_ahead, point_left, q_x, q_y, q_c, q_s, x, y, c, s, wide)
    real = (point < P)[:, None] & there[None, :]
    score = tl.where(real & (score > 0.0), score, 0.0)  # NaN counts for nothing, too
    scores += program * P * PITCH
    tl.store(scores + point[:, None] * PITCH + view[None, :], score, real)
    tl.debug_barrier()
    best = tl.zeros([POINTS], tl.float32)
    for i in range(K):
        gain = tl.sum(tl.maximum(score - best[:, None], 0.0), 0)
        # Never the same view twice, even if nothing is left to gain.
        pick = tl.argmax(tl.where(there, gain, -1.0), 0)
        tl.store(chosen + program * K + i, pick.to(tl.int64))
        best = tl.maximum(best, tl.load(scores + pick + point * PITCH, point < P, 0.0))
        there = there & (view != pick)


def _forward(place: Tensor, query: Tensor, k: int, field_of_view: float) -> list[Tensor]:
    """One launch for each portion of the queries."""
    (batch, n, _), wide, parts = place.shape, half_width(field_of_view), []
    ahead, left = points(wide, place.device, place.dtype)
    views, count = max(FEWEST_VIEWS, triton.next_power_of_2(n)), len(ahead)
    for some in portions(place, query):
        time = some.shape[1]
        parts.append(place.new_empty(batch, time, k, dtype=torch.int64))
        scores = place.new_empty(batch, time, count, views + 1)
        _choose[(batch * time,)](
            place, some, ahead, left, scores, parts[-1], wide, time, n, *place.stride(), *some.stride(),
            P=count, K=k, POINTS=triton.next_power_of_2(count), VIEWS=views,
            num_warps=max(1, views // 32), maxnreg=REGISTERS,
        )  # fmt: skip
    return parts if len(parts) == 1 else [torch.cat(parts, dim=1)]


def _supports(place: Tensor, query: Tensor, k: int, field_of_view: float) -> bool:
    """Views whose scores fit into registers, single precision, and at least one query."""
    single = place.dtype == query.dtype == torch.float32
    return single and 0 < k <= place.shape[1] <= MOST_VIEWS and query.numel() > 0


most_visible = Fast(_forward, None, no_gradients, _supports)
