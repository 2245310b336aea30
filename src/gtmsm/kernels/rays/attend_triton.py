"""Attention of few queries on a GPU: one launch forward and one backward, a program for each head of each sequence.

A program holds all queries of its head and loops over the keys block by block, so that a gradient of keys or values is
complete when it is stored: nothing is added up between programs, and nothing is read twice. Programs of one sequence
come one after another, since their heads are adjacent in memory.

Scores are in units of log 2, since GPUs compute powers of 2. In the backward pass they are transposed, keys by queries:
their softmax stays in registers for the products that give gradients of keys and values, and only the product that
gives (transposed) gradients of queries needs it in shared memory. These products come one after another, so that few
results are held at a time.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
import math
import os
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtmsm.kernels.operator import Arguments, Fast, Gradients, Needed, Tensors
from gtmsm.kernels.precision import Precision, products_of

HEADS_OF = (16, 32, 64, 128)
"""Sizes of a head that are supported."""
MOST_QUERIES = 128
"""Maximum number of queries of one sequence: more would not fit into one program."""
MOST_IN_FLOAT32 = 64 * 64
"""Maximum size of one head's queries in float32, which take twice the bytes of bfloat16."""
FARTHEST = 2**24
"""Upper bound of the stride from one token to the next: 32 bits count the numbers of a block of tokens."""


class Pace(NamedTuple):
    """How a program loops over the keys."""

    keys: int
    """Number of keys taken at a time."""
    warps: int
    stages: int
    """Number of blocks of keys and values in flight at once."""


USUAL = Pace(keys=64, warps=4, stages=3)
"""For 64 queries of a head of 64 in bfloat16. Forward four programs then share a multiprocessor of an H200 (128 keys at
a time: three), backward two (with two stages three, which takes 168 us for the 640 keys of walk-strong, not 141)."""
MOST_FOR_FOUR_WARPS = 64
"""Maximum number of queries of a program, and maximum size of a head; beyond either, registers would spill."""
KEYS_IN_FLOAT32 = 32
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


def pace_for(asking: int, asked: int, head: int, precision: Precision) -> Pace:
    """The pace for these sizes."""
    keys, warps, stages = USUAL
    if max(_block(asking), head) > MOST_FOR_FOUR_WARPS:
        warps, stages = 8, min(stages, 2)
    if precision != "bfloat16":
        keys, stages = min(keys, KEYS_IN_FLOAT32), 1
    keys = min(keys, _block(asked))
    return Pace(keys, warps, 1 if asked <= keys else stages)  # a single block is not prefetched


def _block(tokens: int) -> int:
    return max(16, triton.next_power_of_2(tokens))


@triton.jit
def _load(
    x, row, rows, X_ROW: tl.constexpr, HEAD: tl.constexpr, WHOLE: tl.constexpr
):  # pragma: no cover - runs on the GPU
    """Load tokens of one head; WHOLE: no row needs a mask."""
    at = x + row[:, None] * X_ROW + tl.arange(0, HEAD)[None, :]
    return tl.load(at) if WHOLE else tl.load(at, (row < rows)[:, None], 0.0)


@triton.jit
def _store(
    x, tokens, row, rows, X_ROW: tl.constexpr, HEAD: tl.constexpr, WHOLE: tl.constexpr
):  # pragma: no cover - runs on the GPU
    at = x + row[:, None] * X_ROW + tl.arange(0, HEAD)[None, :]
    tl.store(at, tokens.to(x.dtype.element_ty), None if WHOLE else (row < rows)[:, None])


@triton.jit
def _product(a, b, total, PRECISION: tl.constexpr):  # pragma: no cover - runs on the GPU
    """Add the product of a, in the precision of b, with b to a total in float32."""
    a = a.to(b.dtype)
    if INTERPRETED:  # the interpreter would multiply the bits of a bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee" if PRECISION == "bfloat16" else PRECISION)


@triton.jit(do_not_specialize=["asking", "asked"])
def _attend_forward(
    query, key, value, out, log_sum, asking, asked, q_n, k_n, v_n,
    Q_ROW: tl.constexpr, K_ROW: tl.constexpr, V_ROW: tl.constexpr,
    SCALE: tl.constexpr, PRECISION: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WHOLE_QUERIES: tl.constexpr, WHOLE_KEYS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    WIDTH: tl.constexpr = HEADS * HEAD
    program = tl.program_id(0)
    n, column = (program // HEADS).to(tl.int64), program % HEADS * HEAD
    asks, k = tl.arange(0, QUERIES), tl.arange(0, KEYS)
    key += n * k_n + column
    value += n * v_n + column
    q = _load(query + n * q_n + column, asks, asking, Q_ROW, HEAD, WHOLE_QUERIES)
    most, weight = tl.full([QUERIES], float("-inf"), tl.float32), tl.zeros([QUERIES], tl.float32)
    total = tl.zeros([QUERIES, HEAD], tl.float32)
    for begin in range(0, asked, KEYS):
        left = asked - begin
        keys = _load(key, k, left, K_ROW, HEAD, WHOLE_KEYS)
        values = _load(value, k, left, V_ROW, HEAD, WHOLE_KEYS)
        score = _product(q, tl.trans(keys), tl.zeros([QUERIES, KEYS], tl.float32), PRECISION)
        if not WHOLE_KEYS:
            score = tl.where((k < left)[None, :], score, float("-inf"))
        # the first key of each block exists, so that this is never -inf
        higher = tl.maximum(most, tl.max(score, 1) * SCALE)
        p = tl.exp2(score * SCALE - higher[:, None])
        fade = tl.exp2(most - higher)
        weight = weight * fade + tl.sum(p, 1)
        total = _product(p, values, total * fade[:, None], PRECISION)
        most = higher
        key += KEYS * K_ROW
        value += KEYS * V_ROW
    total *= (1.0 / weight)[:, None]
    _store(out + n * asking * WIDTH + column, total, asks, asking, WIDTH, HEAD, WHOLE_QUERIES)
    tl.store(log_sum + program.to(tl.int64) * asking + asks, most + tl.log2(weight), asks < asking)


@triton.jit(do_not_specialize=["asking", "asked"])
def _attend_backward(
    query, key, value, out, log_sum, d_out, d_query, d_key, d_value, asking, asked,
    q_n, k_n, v_n, do_n, dq_n, dk_n, dv_n,
    Q_ROW: tl.constexpr, K_ROW: tl.constexpr, V_ROW: tl.constexpr,
    DO_ROW: tl.constexpr, DQ_ROW: tl.constexpr, DK_ROW: tl.constexpr, DV_ROW: tl.constexpr,
    SCALE: tl.constexpr, PRECISION: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WHOLE_QUERIES: tl.constexpr, WHOLE_KEYS: tl.constexpr,
):  # fmt: skip  # pragma: no cover - runs on the GPU
    LN_2: tl.constexpr = 0.6931471805599453
    WIDTH: tl.constexpr = HEADS * HEAD
    program = tl.program_id(0)
    n, column = (program // HEADS).to(tl.int64), program % HEADS * HEAD
    asks, k = tl.arange(0, QUERIES), tl.arange(0, KEYS)
    key += n * k_n + column
    value += n * v_n + column
    d_key += n * dk_n + column
    d_value += n * dv_n + column
    # masked queries are 0, and so are their incoming gradients: they add nothing to any gradient
    q = _load(query + n * q_n + column, asks, asking, Q_ROW, HEAD, WHOLE_QUERIES)
    g = _load(d_out + n * do_n + column, asks, asking, DO_ROW, HEAD, WHOLE_QUERIES)
    made = _load(out + n * asking * WIDTH + column, asks, asking, WIDTH, HEAD, WHOLE_QUERIES)
    average = tl.sum(g.to(tl.float32) * made.to(tl.float32), 1)
    log_weight = tl.load(log_sum + program.to(tl.int64) * asking + asks, asks < asking, 0.0)
    dq = tl.zeros([HEAD, QUERIES], tl.float32)
    for begin in range(0, asked, KEYS):
        left = asked - begin
        keys = _load(key, k, left, K_ROW, HEAD, WHOLE_KEYS)
        values = _load(value, k, left, V_ROW, HEAD, WHOLE_KEYS)
        score = _product(keys, tl.trans(q), tl.zeros([KEYS, QUERIES], tl.float32), PRECISION)
        if not WHOLE_KEYS:
            # a masked score of 0 might get an infinite weight if all true ones are low
            score = tl.where((k < left)[:, None], score, float("-inf"))
        p = tl.exp2(score * SCALE - log_weight[None, :])
        dv = _product(p, g, tl.zeros([KEYS, HEAD], tl.float32), PRECISION)
        _store(d_value, dv, k, left, DV_ROW, HEAD, WHOLE_KEYS)
        dp = _product(values, tl.trans(g), tl.zeros([KEYS, QUERIES], tl.float32), PRECISION)
        ds = (p * (dp - average[None, :])).to(q.dtype)
        dk = _product(ds, q, tl.zeros([KEYS, HEAD], tl.float32), PRECISION) * (SCALE * LN_2)
        _store(d_key, dk, k, left, DK_ROW, HEAD, WHOLE_KEYS)
        dq = _product(tl.trans(keys), ds, dq, PRECISION)
        key += KEYS * K_ROW
        value += KEYS * V_ROW
        d_key += KEYS * DK_ROW
        d_value += KEYS * DV_ROW
    dq = tl.trans(dq * (SCALE * LN_2))
    _store(d_query + n * dq_n + column, dq, asks, asking, DQ_ROW, HEAD, WHOLE_QUERIES)


def _rows(**tensors: Tensor) -> dict[str, int]:
    """Strides from one token to the next, as constants of a kernel: otherwise addresses take registers."""
    return {f"{name}_ROW": x.stride(1) for name, x in tensors.items()}


def _settings(asking: int, asked: int, head: int, heads: int, precision: Precision) -> dict[str, Any]:
    """Constants with which a kernel is compiled."""
    queries, (keys, warps, stages) = _block(asking), pace_for(asking, asked, head, precision)
    return {
        "SCALE": head**-0.5 * math.log2(math.e), "PRECISION": precision, "HEADS": heads, "HEAD": head,
        "QUERIES": queries, "KEYS": keys, "WHOLE_QUERIES": asking == queries, "WHOLE_KEYS": asked % keys == 0,
        "num_warps": warps, "num_stages": stages,
    }  # fmt: skip


def _empty(query: Tensor, key_value: Tensor, head: int, gradient: Tensor | None) -> list[Tensor]:
    """The result of each query, and the logarithm of the sum of each softmax."""
    n, asking, width = query.shape
    return [query.new_empty(n, asking, width), query.new_empty(n, width // head, asking, dtype=torch.float32)]


def _forward(query: Tensor, key_value: Tensor, head: int, gradient: Tensor | None) -> list[Tensor]:
    (n, asking, width), asked = query.shape, key_value.shape[1]
    key, value = key_value.chunk(2, dim=-1)
    out, log_sum = _empty(query, key_value, head, gradient)
    _attend_forward[(n * (width // head),)](
        query, key, value, out, log_sum, asking, asked, *(x.stride(0) for x in (query, key, value)),
        **_rows(Q=query, K=key, V=value),
        **_settings(asking, asked, head, width // head, products_of(query.dtype)),
    )  # fmt: skip
    return [out, log_sum]


def _backward(gradients: Tensors, args: Arguments, made: Tensors, needed: Needed) -> Gradients:
    (query, key_value, head, gradient), (out, log_sum), (d_out,) = args, made, gradients
    (n, asking, width), asked = query.shape, key_value.shape[1]
    if d_out.stride(2) != 1 or d_out.stride(1) >= FARTHEST:
        d_out = d_out.contiguous()
    d_query = torch.empty_like(query, memory_format=torch.contiguous_format)
    d_both = torch.empty_like(key_value, memory_format=torch.contiguous_format) if gradient is None else gradient
    (key, value), (d_key, d_value) = key_value.chunk(2, dim=-1), d_both.chunk(2, dim=-1)
    _attend_backward[(n * (width // head),)](
        query, key, value, out, log_sum, d_out, d_query, d_key, d_value, asking, asked,
        *(x.stride(0) for x in (query, key, value, d_out, d_query, d_key, d_value)),
        **_rows(Q=query, K=key, V=value, DO=d_out, DQ=d_query, DK=d_key, DV=d_value),
        **_settings(asking, asked, head, width // head, products_of(query.dtype)),
    )  # fmt: skip
    return d_query, d_both, None, None


def _supports(query: Tensor, key_value: Tensor, head: int, gradient: Tensor | None) -> bool:
    (_, asking, width), used = query.shape, (query, key_value) if gradient is None else (query, key_value, gradient)
    precise = query.dtype in (torch.float32, torch.bfloat16) and all(x.dtype == query.dtype for x in used)
    laid_out = all(x.stride(2) == 1 and x.stride(1) < FARTHEST for x in used)
    if head not in HEADS_OF or width % head or not precise or not laid_out or 0 in (query.numel(), key_value.numel()):
        return False
    return asking <= MOST_QUERIES and (query.dtype == torch.bfloat16 or _block(asking) * head <= MOST_IN_FLOAT32)


attend = Fast(_forward, _empty, _backward, _supports)
