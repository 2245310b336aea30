"""Actions that are held for a while: the fast twin equals the readable one to the bit."""

import pytest
import torch

from gtmsm.kernels.choice import forced
from gtmsm.kernels.walks.held_actions import MOST_STEPS, held_actions, held_actions_by_search
from gtmsm.worlds.walkers import poisson_cdf

SHAPES = [  # n, time, mean number of repeats
    (1, 1, 3.0),
    (3, 7, 0.0),
    (4, 128, 3.0),
    (3, 129, 3.0),
    (2, 9, 1000.0),
    (2, 300, 40.0),
    (0, 3, 1.0),
    (2, 0, 1.0),
]
LONG_SHAPES = [(64, 288, 3.0), (5000, 33, 1.0), (3, 4096, 3.0), (2, MOST_STEPS, 0.5), (2, MOST_STEPS + 1, 3.0)]


def runs(n, time, mean, device="cpu"):
    """Choices that can be told apart, chances, and the table of how often they are repeated."""
    generator = torch.Generator().manual_seed(1000 * n + time)
    choices = torch.randint(1_000_000, (n, time), generator=generator)
    uniform = torch.rand(n, time, dtype=torch.float64, generator=generator)
    return choices.to(device), uniform.to(device), poisson_cdf(mean, torch.device("cpu")).to(device)


def by_triton(*inputs):
    with forced("triton"):
        return held_actions(*inputs)


@pytest.mark.parametrize("shape", SHAPES[:-2])
def test_choices_follow_each_other_and_each_is_done_as_often_as_its_chance_says(shape):
    choices, uniform, cdf = runs(*shape)
    for row, chances, actions in zip(choices.tolist(), uniform, held_actions(choices, uniform, cdf), strict=True):
        by_hand = [a for a, u in zip(row, chances, strict=True) for _ in range(1 + int((cdf <= u).sum()))]
        assert actions.tolist() == by_hand[: len(row)]


def test_a_chance_that_is_an_entry_of_the_table_counts_it():
    cdf = torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64)
    uniform = torch.tensor([[0.25, 0.2, 0.5, 0.0]], dtype=torch.float64)
    assert held_actions(torch.tensor([[5, 6, 7, 8]]), uniform, cdf).tolist() == [[5, 5, 6, 7]]


@pytest.mark.parametrize("shape", SHAPES + (LONG_SHAPES if torch.cuda.is_available() else []))
def test_the_triton_twin_equals_the_readable_one_to_the_bit(shape, triton_device):
    inputs = runs(*shape, device=triton_device)
    assert torch.equal(by_triton(*inputs), held_actions_by_search(*inputs))


@pytest.mark.parametrize("counts", [1, 2, 3, 4, 7, 8])
def test_tables_of_any_length_are_looked_up_by_triton_as_by_search(counts, triton_device):
    cdf = torch.linspace(0, 1, counts + 1, dtype=torch.float64, device=triton_device)[1:]
    uniform = torch.cat([cdf[:-1], torch.linspace(0, 0.999, 25, dtype=torch.float64, device=triton_device)])[None]
    choices = torch.arange(uniform.shape[1], device=triton_device)[None]
    assert torch.equal(by_triton(choices, uniform, cdf), held_actions_by_search(choices, uniform, cdf))


def test_choices_may_be_strided_and_expanded(triton_device):
    choices, uniform, cdf = runs(1, 9, 1.0, triton_device)
    inputs = choices.expand(4, 9), uniform.expand(4, 9).T.contiguous().T, cdf
    assert torch.equal(by_triton(*inputs), held_actions_by_search(*inputs))


def test_walks_longer_than_a_program_can_hold_are_found_by_search(triton_device):
    inputs = runs(1, MOST_STEPS + 1, 1.0, triton_device)
    assert torch.equal(by_triton(*inputs), held_actions_by_search(*inputs))
