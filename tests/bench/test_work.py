"""Counting: what the least work is, and how long it must take."""

import pytest
import torch
from torch import nn

from gtmsm.bench.ceilings import Ceilings
from gtmsm.bench.work import (
    Work,
    bytes_of,
    count_flops,
    fuse_flops,
    gate_flops,
    search_flops,
    update_bytes,
    walled_step_flops,
    weight_bytes,
)
from gtmsm.kernels.scans.walled_scan import Gate, walled_scan

CEILINGS = Ceilings(bandwidth=100.0, flops={"float32": 1_000.0, "bfloat16": 10_000.0})


def test_a_linear_layer_takes_two_flops_for_each_weight_and_row():
    layer, x = nn.Linear(3, 5), torch.ones(7, 3)
    assert count_flops(lambda: layer(x)) == 2 * 7 * 3 * 5


def test_its_gradients_take_twice_as_many_again():
    layer, x = nn.Linear(3, 5), torch.ones(7, 3, requires_grad=True)
    assert count_flops(lambda: layer(x).sum().backward()) == 3 * 2 * 7 * 3 * 5


def test_a_convolution_takes_two_flops_for_each_weight_and_output_pixel():
    layer, x = nn.Conv2d(2, 4, 3, padding=1), torch.ones(1, 2, 8, 8)
    assert count_flops(lambda: layer(x)) == 2 * 8 * 8 * 2 * 4 * 9


def test_attention_is_counted_as_its_two_products():
    q, k, v = (torch.ones(1, 2, n, 8) for n in (3, 5, 5))
    flops = count_flops(lambda: nn.functional.scaled_dot_product_attention(q, k, v))
    assert flops == 2 * (2 * 3 * 5 * 8) + 2 * (2 * 3 * 5 * 8)


def test_what_fast_kernels_do_is_counted_on_their_readable_twins():
    gate = Gate(torch.ones(4, 2), torch.ones(4), torch.ones(4), torch.ones(()))
    start, steps = torch.zeros(3, 2), torch.ones(3, 5, 2)
    # Products of the readable twin: of the pose with W; PyTorch does not count a product with a vector, v.
    assert count_flops(lambda: walled_scan(start, steps, steps, gate)) >= 5 * 2 * 3 * 2 * 4


def test_bytes_are_those_of_every_number_once():
    assert bytes_of(torch.ones(3, 4), torch.ones(5, dtype=torch.uint8), torch.ones(2, dtype=torch.bfloat16)) == 57


def test_the_weights_of_a_layer_are_read_once():
    assert weight_bytes([nn.Linear(3, 5)]) == 4 * (3 * 5 + 5)


def test_an_update_reads_and_writes_every_weight_and_both_moments_and_reads_what_is_held():
    model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(5, 2, bias=False))
    model[1].requires_grad_(False)
    frames, actions = torch.ones(2, 7), torch.ones(2, 4)
    assert update_bytes(model, frames, actions) == 14 + 4 * 8 + 6 * 4 * 15 + 4 * 10


def test_a_gate_is_counted_by_hand():
    # two units: two products and two sums with the bias, a ReLU, a product and a sum
    assert gate_flops(hidden=2, size=2) == 2 * (2 * 2 + 1 + 1 + 2)
    assert walled_step_flops(hidden=2, size=2) == gate_flops(2, 2) + 8


def test_a_search_takes_a_difference_a_square_and_a_sum_for_each_coordinate():
    assert search_flops(queries=2, entries=10, size=4) == 2 * 10 * 12


def test_more_sights_take_more_in_proportion():
    assert fuse_flops(8, 2) == 8 * fuse_flops(1, 2) > 0


def test_a_floor_is_that_of_the_slower_of_arithmetic_and_memory():
    assert Work(5_000, 100).floor(CEILINGS) == 5.0
    assert Work(5_000, 900).floor(CEILINGS) == 9.0


def test_a_faster_precision_lowers_the_floor_until_memory_holds_it():
    assert Work(50_000, 100, "bfloat16").floor(CEILINGS) == 5.0
    assert Work(5_000, 100, "bfloat16").floor(CEILINGS) == 1.0


@pytest.mark.parametrize(
    ("work", "bound"),
    [
        (Work(5_000, 100), "float32"),
        (Work(5_000, 900), "memory"),
        (Work(50_000, 100, "bfloat16"), "bfloat16"),
        (Work(5_000, 100, "tf32"), "float32"),
    ],
)
def test_a_floor_says_where_it_comes_from(work: Work, bound: str):
    assert work.bound(CEILINGS) == bound
