"""The choice of views on a GPU, all of it in one launch: a program does one query.

A lane does one view, with how well it sees every point in registers, so that what it would add is a sum within the
lane; only the best of all is found across lanes. What was picked then lowers what the others would add: its scores are
read back from memory, since they lie in the registers of one lane and all need them.
"""

# What Triton compiles is not Python, and has no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

import math
import os

import torch
import triton
import triton.language as tl
from torch import Tensor

FEWEST_VIEWS = 32
"""A program has a lane for each of a whole warp."""
VIEWS_PER_LANE = 1
"""More of them is fewer lanes, with more registers each."""
REGISTERS = 128
"""Of a lane: so many are enough, and two programs of 256 views fit on a multiprocessor."""

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
PER_ANGLE = tl.constexpr(2.0 * math.log2(math.e))
PER_SCALE = tl.constexpr(0.125 * math.log(2.0))


@triton.jit
def _log2(x):  # pragma: no cover - runs on the GPU
    """Without the care for the smallest numbers of all that is a third of the work."""
    if INTERPRETED:
        y = tl.log2(x)
    else:
        y = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )  # fmt: skip
    return y


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
    scale = _log2(to2 * (1.0 / mine2)[:, None])  # twice that of the distances, hence an eighth of its square
    return inside * tl.exp2((cosine - 1.0) * PER_ANGLE - scale * scale * PER_SCALE)


@triton.jit
def _choose(
    place, query, ahead, left, scores, chosen, wide, time, n,
    place_batch, place_row, place_axis, query_batch, query_row, query_axis,
    P: tl.constexpr, K: tl.constexpr, POINTS: tl.constexpr, VIEWS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    # Known beforehand, it costs nothing to add up; odd, it does not invite to store several scores of a lane at once.
    PITCH: tl.constexpr = VIEWS + 1
    program = tl.program_id(0).to(tl.int64)
    batch, t = program // time, program % time
    point, view = tl.arange(0, POINTS), tl.arange(0, VIEWS)
    there = view < n
    # Points and views that are not there look at something all the same, and count for nothing.
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
    score = tl.where(real & (score > 0.0), score, 0.0)  # nor does what is no number
    scores += program * P * PITCH
    tl.store(scores + point[:, None] * PITCH + view[None, :], score, real)
    tl.debug_barrier()
    best = tl.zeros([POINTS], tl.float32)
    for i in range(K):
        gain = tl.sum(tl.maximum(score - best[:, None], 0.0), 0)
        # Never the same view twice, also where nothing is left to gain.
        pick = tl.argmax(tl.where(there, gain, -1.0), 0)
        tl.store(chosen + program * K + i, pick.to(tl.int64))
        best = tl.maximum(best, tl.load(scores + pick + point * PITCH, point < P, 0.0))
        there = there & (view != pick)


def chosen(place: Tensor, query: Tensor, points: tuple[Tensor, Tensor], k: int, wide: float) -> Tensor:
    """`most_visible_by_parts` for float32 CUDA tensors and as many views as fit into registers; something is asked."""
    (batch, n, _), time, count = place.shape, query.shape[1], len(points[0])
    found = place.new_empty(batch, time, k, dtype=torch.int64)
    views = max(FEWEST_VIEWS, triton.next_power_of_2(n))
    scores = place.new_empty(batch, time, count, views + 1)
    _choose[(batch * time,)](
        place, query, *points, scores, found, wide, time, n, *place.stride(), *query.stride(),
        P=count, K=k, POINTS=triton.next_power_of_2(count), VIEWS=views,
        num_warps=max(1, views // (32 * VIEWS_PER_LANE)), maxnreg=REGISTERS,
    )  # fmt: skip
    return found
