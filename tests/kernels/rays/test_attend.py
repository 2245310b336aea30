"""Attention of few queries: the fast implementation equals the readable function, values and gradients."""

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from twins import assert_equal_twins

from gtmsm.errors import InputError
from gtmsm.kernels.operator import forced
from gtmsm.kernels.precision import float32_products
from gtmsm.kernels.rays.attend import attend

SHAPES = [
    (1, 1, 1, 1, 16),
    (2, 3, 5, 2, 16),
    (1, 16, 16, 1, 32),
    (2, 17, 33, 1, 64),
    (1, 64, 64, 2, 64),
    (1, 5, 130, 3, 16),
    (1, 30, 70, 1, 128),
]  # n, asking, asked, heads, head
HALF_SHAPES = [(1, 128, 70, 1, 16), (1, 65, 64, 1, 64), (1, 20, 130, 2, 128)]  # more than float32 has registers for
LARGE_SHAPES = [(336, 64, 640, 4, 64), (336, 64, 64, 4, 64), (37, 64, 641, 4, 64), (9, 50, 1000, 8, 32)]  # on a GPU
LARGE_HALF_SHAPES = [(40, 128, 640, 2, 128), (40, 100, 600, 4, 64), (40, 128, 640, 8, 16)]
ON_A_GPU = torch.cuda.is_available()
TOLERANCE = 1e-5 if not ON_A_GPU else 3e-5

on_a_gpu = pytest.mark.skipif(not ON_A_GPU, reason="Triton needs a CUDA device")


def tokens(n, asking, asked, heads, head, dtype=torch.float32, device="cpu"):
    """Queries, and keys beside values; some keys are far better than others."""
    generator = torch.Generator().manual_seed(1000 * n + 100 * asking + 10 * asked + head)

    def draw(length):
        return torch.randn(n, length, heads * head, dtype=torch.float64, generator=generator).to(device, dtype)

    return 2 * draw(asking), torch.cat([draw(asked), draw(asked)], -1)


def in_float64(inputs):
    return [x.double() for x in inputs]


def uneven(y):
    return torch.linspace(-1, 2, y.numel(), dtype=torch.float64, device=y.device).view_as(y).to(y.dtype)


def values_and_gradients(run, *inputs, like=uneven):
    """What is found, and the gradients of an uneven sum of it."""
    leaves = [x.detach().requires_grad_() for x in inputs]  # not cloned: strides are part of the case
    with forced("cuda"):
        y = run(*leaves)
        return [y.detach(), *torch.autograd.grad(y, leaves, like(y))]


def by_kernel(*inputs):
    with forced("cuda"):
        return attend(*inputs)


def assert_fast_equals_readable(inputs, head, tolerance=TOLERANCE, **how):
    fast = values_and_gradients(lambda *x: by_kernel(*x, head), *inputs, **how)
    assert all(part.dtype == inputs[0].dtype for part in fast)
    readable = values_and_gradients(lambda *x: attend.readable(*x, head), *in_float64(inputs), **how)
    assert_equal_twins(fast, readable, tolerance)


@pytest.fixture
def launched(triton_device, note_launches):
    from gtmsm.kernels.rays import attend_triton

    return note_launches(attend_triton, "_attend_forward", "_attend_backward")


def test_attention_is_a_softmax_of_scores_for_every_head():
    query, key_value = tokens(2, 3, 5, 2, 16, torch.float64)
    wanted = []
    for first in (0, 16):
        q, k, v = (x[..., first : first + 16] for x in (query, *key_value.chunk(2, -1)))
        wanted.append((q @ k.mT / math.sqrt(16)).softmax(-1) @ v)
    torch.testing.assert_close(attend(query, key_value, 16), torch.cat(wanted, -1))


def test_a_single_key_is_all_that_can_be_found():
    query, key_value = tokens(2, 3, 1, 2, 16)
    torch.testing.assert_close(attend(query, key_value, 16), key_value[..., 32:].expand(2, 3, 32))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 2), (2, 3, 4, 2, 3)])
def test_gradients_agree_with_finite_differences(shape):
    leaves = [x.requires_grad_() for x in tokens(*shape, torch.float64)]
    assert torch.autograd.gradcheck(lambda *inputs: attend.readable(*inputs, shape[-1]), leaves)


def test_pytorch_counts_the_products_of_the_readable_function():
    leaves = [x.requires_grad_() for x in tokens(2, 3, 5, 2, 16)]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, forced("readable"):
        attend(*leaves, 16).sum().backward()
    forward = 2 * 2 * (2 * 3 * 5 * 32)  # scores and what is found, a multiplication and an addition each
    assert counter.get_total_flops() == 3 * forward


def test_attention_keeps_the_precision_of_its_input_under_autocast():
    inputs = tokens(2, 3, 5, 2, 16)
    plain = attend(*inputs, 16)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attend(*inputs, 16), plain)


def test_a_cpu_gets_plain_pytorch(launched):
    attend(*tokens(2, 3, 5, 2, 16), 16)
    assert not launched


@pytest.mark.parametrize("shape", SHAPES + (LARGE_SHAPES if ON_A_GPU else []))
def test_fast_attention_equals_the_readable_one(shape, triton_device, launched):
    assert_fast_equals_readable(tokens(*shape, device=triton_device), shape[-1])
    assert launched == ["_attend_forward", "_attend_backward"]


@pytest.mark.parametrize("shape", SHAPES + HALF_SHAPES + (LARGE_SHAPES + LARGE_HALF_SHAPES if ON_A_GPU else []))
def test_half_precision_rounds_weights_and_results_only(shape, triton_device, launched):
    assert_fast_equals_readable(tokens(*shape, torch.bfloat16, triton_device), shape[-1], tolerance=2e-2)
    assert launched == ["_attend_forward", "_attend_backward"]


def test_what_is_found_is_contiguous(triton_device):
    inputs = tokens(2, 3, 5, 2, 16, device=triton_device)
    for implementation in ("readable", "cuda"):
        with forced(implementation):
            assert attend(*inputs, 16).is_contiguous()


def test_slices_of_one_product_are_read_where_they_lie(triton_device, launched):
    whole = tokens(2, 7, 7, 3, 32, device=triton_device)[0]
    parts = whole.split([32, 64], -1)
    assert_fast_equals_readable(parts, 32)
    assert_fast_equals_readable([x[:, 1::2] for x in parts], 16)
    assert launched == ["_attend_forward", "_attend_backward"] * 2


def test_one_memory_may_be_asked_by_many(triton_device, launched):
    query, key_value = tokens(3, 4, 6, 1, 16, device=triton_device)
    same = key_value[:1].expand(3, -1, -1)
    assert_fast_equals_readable([query, same], 16)
    assert_fast_equals_readable([query[:, :1].expand(-1, 4, -1), same], 16)
    assert launched == ["_attend_forward", "_attend_backward"] * 2


@pytest.mark.parametrize(
    "like", [lambda y: torch.ones((), dtype=y.dtype, device=y.device).expand_as(y), lambda y: uneven(y.mT).mT]
)
def test_gradients_may_come_in_any_layout(like, triton_device, launched):
    assert_fast_equals_readable(tokens(2, 3, 5, 2, 16, device=triton_device), 16, like=like)
    assert launched == ["_attend_forward", "_attend_backward"]


@pytest.mark.parametrize("size", [1e2, -1e2, 1e4])
def test_large_scores_neither_overflow_nor_vanish(size, triton_device):
    query, key_value = tokens(1, 3, 37, 1, 16, device=triton_device)
    key, value = key_value.chunk(2, -1)
    # all scores are far from 0, on one side of it, and those of one query still differ by little
    inputs = query.abs() * size, torch.cat([1 + key / abs(size), value], -1)
    fast = values_and_gradients(lambda *x: by_kernel(*x, 16), *inputs)
    readable = values_and_gradients(lambda *x: attend.readable(*x, 16), *in_float64(inputs))
    for parts in (fast, readable):
        parts[2][..., :16] /= size  # the gradient of a key is a sum of queries
    assert_equal_twins(fast, readable, 1e-6 * abs(size))


def test_far_values_are_averaged_as_exactly_as_near_ones(triton_device):
    query, key_value = tokens(1, 3, 37, 1, 16, device=triton_device)
    far = key_value.clone()
    far[..., 16:] += 1e4
    found = by_kernel(query, far, 16)
    torch.testing.assert_close(found - 1e4, by_kernel(query, key_value, 16), rtol=0, atol=5e-3)


def test_the_gradient_of_keys_and_values_is_written_where_it_is_wanted(triton_device):
    inputs = tokens(2, 7, 7, 1, 32, device=triton_device)
    whole = torch.full((2, 7, 100), float("nan"), device=triton_device)
    fast = values_and_gradients(lambda *x: attend(*x, 32, whole[..., 33:97]), *inputs)
    assert fast[2].data_ptr() == whole[..., 33:97].data_ptr()
    assert whole[..., :33].isnan().all() and whole[..., 97:].isnan().all()
    assert_equal_twins(fast, values_and_gradients(lambda *x: attend.readable(*x, 32), *in_float64(inputs)), TOLERANCE)


def test_the_readable_function_writes_gradients_nowhere_else():
    inputs = tokens(2, 3, 5, 1, 16)
    gradient = torch.full_like(inputs[1], 7.0)
    found = values_and_gradients(lambda *x: attend.readable(*x, 16, gradient), *inputs)
    assert_equal_twins(found, values_and_gradients(lambda *x: attend.readable(*x, 16), *inputs), 0.0)
    assert (gradient == 7).all()


def test_the_same_gradients_come_out_every_time(triton_device):
    inputs = tokens(2, 16, 70, 1, 16, torch.bfloat16, triton_device)
    first, again = (values_and_gradients(lambda *x: by_kernel(*x, 16), *inputs) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize(
    "shape, dtype",
    [
        ((2, 129, 3, 1, 16), torch.float32),
        ((2, 65, 3, 1, 64), torch.float32),
        ((2, 3, 5, 2, 24), torch.float32),
        ((2, 3, 5, 2, 8), torch.float32),
        ((2, 3, 5, 2, 16), torch.float64),
        ((0, 3, 5, 2, 16), torch.float32),
        ((2, 0, 5, 2, 16), torch.float32),
        ((2, 3, 0, 2, 16), torch.float32),
    ],
)
def test_other_cases_are_left_to_the_readable_function(shape, dtype, triton_device, launched):
    inputs = tokens(*shape, dtype, triton_device)
    fast = values_and_gradients(lambda *x: by_kernel(*x, shape[-1]), *inputs)
    assert launched == []
    readable = values_and_gradients(lambda *x: attend.readable(*x, shape[-1]), *inputs)
    assert all(torch.equal(one, other) for one, other in zip(fast, readable, strict=True))


def test_tokens_with_gaps_between_their_numbers_are_left_to_the_readable_function(triton_device, launched):
    query, key_value = tokens(2, 3, 5, 2, 16, device=triton_device)
    scattered = key_value.mT.contiguous().mT
    torch.testing.assert_close(by_kernel(query, scattered, 16), attend.readable(query, key_value, 16))
    assert launched == []


def test_a_head_that_does_not_divide_the_width_is_refused():
    with pytest.raises(InputError, match="width of 32 is not a whole number of heads of 24"):
        attend(*tokens(2, 3, 5, 2, 16), 24)


def test_a_program_takes_no_more_than_there_is(triton_device):
    from gtmsm.kernels.rays.attend_triton import USUAL, pace_for

    assert pace_for(64, 640, 64, "bfloat16") == USUAL
    assert pace_for(64, 20, 64, "bfloat16") == USUAL._replace(keys=32, stages=1)
    assert pace_for(65, 640, 64, "bfloat16").warps == pace_for(9, 640, 128, "bfloat16").warps == 8
    assert pace_for(64, 640, 64, "ieee").keys <= 32


@on_a_gpu
def test_products_may_round_to_tf32():
    inputs = tokens(3, 64, 640, 4, 64, device="cuda")
    with float32_products("high"):
        assert_fast_equals_readable(inputs, 64, tolerance=1e-2)


@pytest.mark.parametrize("asked", [64, 640])
def test_a_captured_update_finds_the_same(asked, in_a_graph):
    inputs = [x.requires_grad_() for x in tokens(8, 64, asked, 4, 64, torch.bfloat16, "cuda")]
    gradient = torch.empty(8, asked, 512, dtype=torch.bfloat16, device="cuda")

    def update():
        y = attend(*inputs, 64, gradient)
        return [y.detach(), *(x.clone() for x in torch.autograd.grad(y, inputs, uneven(y)))]

    alone, replayed = in_a_graph(update)
    assert all(torch.equal(one, other) for one, other in zip(alone, replayed, strict=True))
