"""Attention of few queries: the fast twin equals the readable one, values and gradients, wherever these are put."""

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from twins import assert_equal_twins

from gtmsm.errors import InputError
from gtmsm.kernels.choice import float32_products, forced
from gtmsm.kernels.rays import attend as module
from gtmsm.kernels.rays.attend import attend, attend_by_parts

SHAPES = [
    (1, 1, 1, 1, 16),
    (2, 3, 5, 2, 16),
    (1, 16, 16, 1, 32),
    (2, 17, 33, 1, 64),
    (1, 64, 64, 2, 64),
    (1, 5, 130, 3, 16),
    (1, 30, 70, 1, 128),
]  # n, asking, asked, heads, head
HALF_SHAPES = [(1, 128, 70, 1, 16), (1, 65, 64, 1, 64), (1, 20, 130, 2, 128)]  # more than float32 has room for
LARGE_SHAPES = [(336, 64, 640, 4, 64), (336, 64, 64, 4, 64), (37, 64, 641, 4, 64), (9, 50, 1000, 8, 32)]  # on a GPU
LARGE_HALF_SHAPES = [(40, 128, 640, 2, 128), (40, 100, 600, 4, 64), (40, 128, 640, 8, 16)]
NAMES = ("out", "query", "key", "value")
ON_A_GPU = torch.cuda.is_available()
TOLERANCE = 1e-5 if not ON_A_GPU else 3e-5

on_a_gpu = pytest.mark.skipif(not ON_A_GPU, reason="Triton needs a CUDA device")


def tokens(n, asking, asked, heads, head, dtype=torch.float32, device="cpu"):
    """Query, key and value; some keys are far better than others."""
    generator = torch.Generator().manual_seed(1000 * n + 100 * asking + 10 * asked + head)

    def draw(length):
        return torch.randn(n, length, heads * head, dtype=torch.float64, generator=generator).to(device, dtype)

    return 2 * draw(asking), draw(asked), draw(asked)


def in_float64(inputs):
    return [x.double() for x in inputs]


def uneven(y):
    return torch.linspace(-1, 2, y.numel(), dtype=torch.float64, device=y.device).view_as(y).to(y.dtype)


def values_and_gradients(run, *inputs, like=uneven):
    """What is found, and the gradients of an uneven sum of it."""
    leaves = [x.detach().requires_grad_() for x in inputs]  # not cloned: strides are part of the case
    y = run(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, like(y))]


def by_triton(*inputs):
    with forced("triton"):
        return attend(*inputs)


def assert_fast_equals_readable(inputs, head, tolerance=TOLERANCE, **how):
    fast = values_and_gradients(lambda *x: by_triton(*x, head), *inputs, **how)
    assert all(part.dtype == inputs[0].dtype for part in fast)
    readable = values_and_gradients(lambda *x: attend_by_parts(*x, head), *in_float64(inputs), **how)
    assert_equal_twins(fast, readable, tolerance)


@pytest.fixture
def launched(triton_device, note_launches):
    from gtmsm.kernels.rays import attend_triton

    return note_launches(attend_triton, "_attend_forward", "_attend_backward")


def test_attention_is_a_softmax_of_scores_for_every_head():
    query, key, value = tokens(2, 3, 5, 2, 16, torch.float64)
    wanted = []
    for first in (0, 16):
        q, k, v = (x[..., first : first + 16] for x in (query, key, value))
        wanted.append((q @ k.mT / math.sqrt(16)).softmax(-1) @ v)
    torch.testing.assert_close(attend(query, key, value, 16), torch.cat(wanted, -1))


def test_a_single_key_is_all_that_can_be_found():
    query, key, value = tokens(2, 3, 1, 2, 16)
    torch.testing.assert_close(attend(query, key, value, 16), value.expand(2, 3, 32))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 2), (2, 3, 4, 2, 3)])
def test_gradients_agree_with_finite_differences(shape):
    leaves = [x.requires_grad_() for x in tokens(*shape, torch.float64)]
    assert torch.autograd.gradcheck(lambda *inputs: attend_by_parts(*inputs, shape[-1]), leaves)


def test_pytorch_counts_the_products_of_the_readable_twin():
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


def test_a_cpu_gets_plain_pytorch(monkeypatch):
    asked = []
    original = module.attend_by_parts
    monkeypatch.setattr(module, "attend_by_parts", lambda *inputs: asked.append(1) or original(*inputs))
    attend(*tokens(2, 3, 5, 2, 16), 16)
    assert asked == [1]


@pytest.mark.parametrize("shape", SHAPES + (LARGE_SHAPES if ON_A_GPU else []))
def test_triton_attention_equals_attention_by_parts(shape, triton_device, launched):
    assert_fast_equals_readable(tokens(*shape, device=triton_device), shape[-1])
    assert launched == ["_attend_forward", "_attend_backward"]


@pytest.mark.parametrize("shape", SHAPES + HALF_SHAPES + (LARGE_SHAPES + LARGE_HALF_SHAPES if ON_A_GPU else []))
def test_half_precision_rounds_weights_and_results_only(shape, triton_device, launched):
    assert_fast_equals_readable(tokens(*shape, torch.bfloat16, triton_device), shape[-1], tolerance=2e-2)
    assert launched == ["_attend_forward", "_attend_backward"]


def test_what_is_found_is_contiguous(triton_device):
    query, key, value = tokens(2, 3, 5, 2, 16, device=triton_device)
    for twin in ("readable", "triton"):
        with forced(twin):
            assert attend(query.expand(2, 3, 32), key, value, 16).is_contiguous()


def test_slices_of_one_product_are_read_where_they_lie(triton_device, launched):
    both = tokens(2, 7, 7, 3, 32, device=triton_device)[0]
    parts = both.split(32, -1)
    assert_fast_equals_readable(parts, 32)
    assert_fast_equals_readable([x[:, 1::2] for x in parts], 16)
    assert launched == ["_attend_forward", "_attend_backward"] * 2


def test_one_memory_may_be_asked_by_many(triton_device, launched):
    query, key, value = tokens(3, 4, 6, 1, 16, device=triton_device)
    same = [x[:1].expand(3, -1, -1) for x in (key, value)]
    assert_fast_equals_readable([query, *same], 16)
    assert_fast_equals_readable([query[:, :1].expand(-1, 4, -1), *same], 16)
    assert launched == ["_attend_forward", "_attend_backward"] * 2


@pytest.mark.parametrize(
    "like", [lambda y: torch.ones((), dtype=y.dtype, device=y.device).expand_as(y), lambda y: uneven(y.mT).mT]
)
def test_what_comes_back_may_be_laid_out_in_any_way(like, triton_device, launched):
    assert_fast_equals_readable(tokens(2, 3, 5, 2, 16, device=triton_device), 16, like=like)
    assert launched == ["_attend_forward", "_attend_backward"]


@pytest.mark.parametrize("size", [1e2, -1e2, 1e4])
def test_large_scores_neither_overflow_nor_vanish(size, triton_device):
    query, key, value = tokens(1, 3, 37, 1, 16, device=triton_device)
    # all scores are far from 0, on one side of it, and those of one query still differ by little
    inputs = query.abs() * size, 1 + key / abs(size), value
    fast = values_and_gradients(lambda *x: by_triton(*x, 16), *inputs)
    readable = values_and_gradients(lambda *x: attend_by_parts(*x, 16), *in_float64(inputs))
    for parts in (fast, readable):
        parts[2] = parts[2] / size  # what a key learns is a sum of queries
    assert_equal_twins(fast, readable, 1e-6 * abs(size))


def test_far_values_are_averaged_as_exactly_as_near_ones(triton_device):
    query, key, value = tokens(1, 3, 37, 1, 16, device=triton_device)
    found = by_triton(query, key, value + 1e4, 16)
    torch.testing.assert_close(found - 1e4, by_triton(query, key, value, 16), rtol=0, atol=5e-3)


class Parted(torch.autograd.Function):
    """Slices of one product, whose gradients are already where those of the product belong."""

    @staticmethod
    def forward(ctx, whole, into, size):
        ctx.into = into
        return tuple(part.detach() for part in whole.split(size, -1))

    @staticmethod
    def backward(ctx, *found):
        assert all(part.data_ptr() == room.data_ptr() for part, room in zip(found, ctx.into.split(16, -1), strict=True))
        return ctx.into, None, None


def test_gradients_of_all_layers_keys_and_values_lie_in_one_tensor(triton_device):
    """Two layers ask one memory, whose keys and values of both layers are made at once."""
    query, memory, _ = tokens(2, 3, 5, 4, 16, device=triton_device)
    query = query[..., :16].contiguous()

    def asked(parts, into):
        first = attend(query, *parts[:2], 16, (None, *into[:2]))
        return attend(first, *parts[2:], 16, (None, *into[2:]))

    whole = memory.clone().requires_grad_()
    room = torch.full_like(memory, float("nan"))
    with forced("triton"):
        y = asked(Parted.apply(whole, room, 16), room.split(16, -1))
    (gradient,) = torch.autograd.grad(y, whole, uneven(y))
    assert gradient.data_ptr() == room.data_ptr()
    wanted = memory.clone().requires_grad_()
    y = asked(wanted.split(16, -1), [None] * 4)
    torch.testing.assert_close(room, torch.autograd.grad(y, wanted, uneven(y))[0], rtol=1e-4, atol=1e-5)


def test_gradients_of_query_key_and_value_lie_in_one_tensor(triton_device):
    inputs = tokens(2, 7, 7, 1, 32, device=triton_device)
    room = torch.full((2, 7, 100), float("nan"), device=triton_device)
    into = (room[..., :32], room[..., 33:65], room[..., 68:])
    fast = values_and_gradients(lambda *x: by_triton(*x, 32, into), *inputs)
    assert [x.data_ptr() for x in fast[1:]] == [x.data_ptr() for x in into]
    assert room[..., 32].isnan().all() and room[..., 65:68].isnan().all()
    assert_equal_twins(fast, values_and_gradients(lambda *x: attend_by_parts(*x, 32), *in_float64(inputs)), TOLERANCE)


def test_the_readable_twin_leaves_room_for_gradients_alone():
    inputs = tokens(2, 3, 5, 1, 16)
    into = tuple(torch.full_like(x, 7.0) for x in inputs)
    with forced("readable"):
        found = values_and_gradients(lambda *x: attend(*x, 16, into), *inputs)
    assert_equal_twins(found, values_and_gradients(lambda *x: attend_by_parts(*x, 16), *inputs), 0.0)
    assert all((x == 7).all() for x in into)


def test_a_leaf_keeps_its_gradient_when_the_room_for_it_is_reused(triton_device):
    query, key, value = (x.requires_grad_() for x in tokens(2, 3, 5, 1, 16, device=triton_device))
    room = torch.empty_like(key)
    (2 * by_triton(query, key, value, 16, (None, room, None))).sum().backward()
    before = key.grad.clone()
    room.zero_()
    assert torch.equal(key.grad, before)


def test_the_same_gradients_come_out_every_time(triton_device):
    inputs = tokens(2, 16, 70, 1, 16, torch.bfloat16, triton_device)
    first, again = (values_and_gradients(lambda *x: by_triton(*x, 16), *inputs) for _ in range(2))
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
def test_other_cases_are_left_to_the_readable_twin(shape, dtype, triton_device, launched):
    inputs = tokens(*shape, dtype, triton_device)
    fast = values_and_gradients(lambda *x: by_triton(*x, shape[-1]), *inputs)
    assert launched == []
    readable = values_and_gradients(lambda *x: attend_by_parts(*x, shape[-1]), *inputs)
    assert all(torch.equal(one, other) for one, other in zip(fast, readable, strict=True))


def test_tokens_whose_numbers_lie_apart_are_left_to_the_readable_twin(triton_device, launched):
    query, key, value = tokens(2, 3, 5, 2, 16, device=triton_device)
    apart = key.mT.contiguous().mT
    torch.testing.assert_close(by_triton(query, apart, value, 16), attend_by_parts(query, key, value, 16))
    assert launched == []


def test_a_head_that_does_not_divide_the_width_is_refused():
    with pytest.raises(InputError, match="width of 32 is not a whole number of heads of 24"):
        attend(*tokens(2, 3, 5, 2, 16), 24)


@pytest.mark.parametrize("twin", ["readable", "triton"])
@pytest.mark.parametrize(
    "room",
    [torch.empty(2, 3, 32), torch.empty(2, 5, 32, dtype=torch.bfloat16), torch.empty(2, 32, 5).mT],
    ids=["shape", "precision", "layout"],
)
def test_room_that_cannot_hold_gradients_is_refused(room, twin):
    with forced(twin), pytest.raises(InputError, match=r"cannot hold the gradients of key; give one \(2, 5, 32\)"):
        attend(*tokens(2, 3, 5, 2, 16), 16, (None, room, None))


def test_a_program_takes_no_more_than_there_is(triton_device):
    from gtmsm.kernels.rays.attend_triton import BACKWARD, FORWARD, pace_for

    for usual in (FORWARD, BACKWARD):
        assert pace_for(usual, 64, 640, 64, "bfloat16") == usual
        assert pace_for(usual, 64, 20, 64, "bfloat16") == usual._replace(keys=32, stages=1)
        assert pace_for(usual, 65, 640, 64, "bfloat16").warps == pace_for(usual, 9, 640, 128, "bfloat16").warps == 8
        assert pace_for(usual, 64, 640, 64, "ieee").keys <= 32


@on_a_gpu
def test_products_may_round_to_tf32():
    inputs = tokens(3, 64, 640, 4, 64, device="cuda")
    with float32_products("high"):
        assert_fast_equals_readable(inputs, 64, tolerance=1e-2)


@pytest.mark.parametrize("asked", [64, 640])
def test_a_captured_update_finds_the_same(asked, in_a_graph):
    inputs = [x.requires_grad_() for x in tokens(8, 64, asked, 4, 64, torch.bfloat16, "cuda")]
    room = torch.empty(8, asked, 512, dtype=torch.bfloat16, device="cuda")

    def update():
        y = attend(*inputs, 64, (None, room[..., :256], room[..., 256:]))
        return [y.detach(), *(x.clone() for x in torch.autograd.grad(y, inputs, uneven(y)))]

    alone, replayed = in_a_graph(update)
    assert all(torch.equal(one, other) for one, other in zip(alone, replayed, strict=True))
