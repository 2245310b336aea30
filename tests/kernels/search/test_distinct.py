"""Each retrieved entry once, in a list whose length is known beforehand."""

import pytest
import torch

from gtmsm.kernels.search.distinct import distinct, distinct_by_parts

SHAPES = [(1, 1, 1, 1), (3, 4, 2, 7), (2, 33, 5, 20), (4, 1, 16, 16)]  # batch, queries, K, n


def retrievals(batch, queries, k, n, device="cpu"):
    generator = torch.Generator().manual_seed(batch + queries)
    return torch.randint(n, (batch, queries, k), generator=generator).to(device)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_entry_that_is_pointed_to_is_there_once_and_can_be_found(shape):
    index, n = retrievals(*shape), shape[-1]
    found = distinct(index, n)
    expected = (index + n * torch.arange(len(index)).view(-1, 1, 1)).unique()
    assert torch.equal(found.entry, expected) and int(found.needed) == len(expected)
    assert torch.equal(found.entry[found.row] - n * torch.arange(len(index)).view(-1, 1, 1), index)
    assert found.fits.all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("room", [1, 5, 100])
def test_what_fits_can_be_found_and_the_rest_is_marked(shape, room):
    index, n = retrievals(*shape), shape[-1]
    whole, found = distinct_by_parts(index, n), distinct_by_parts(index, n, room)
    assert len(found.entry) == room and int(found.needed) == int(whole.needed)
    number = index + n * torch.arange(len(index)).view(-1, 1, 1)
    fit = whole.row < room
    assert torch.equal(found.entry[found.row][fit], number[fit])
    assert torch.equal(found.fits, fit.all(-1))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("room", [1, 5, 100])
@pytest.mark.parametrize("strided", [False, True])
def test_the_triton_list_equals_the_list_by_parts(triton_device, shape, room, strided):
    from gtmsm.kernels.search import distinct_triton

    index, n = retrievals(*shape, device=triton_device), shape[-1]
    if strided:
        index = index.transpose(1, 2)
    for pitch in (n, n + 3):
        both = distinct_triton.distinct(index, n, room, pitch), distinct_by_parts(index, n, room, pitch)
        for one, other in zip(*both, strict=True):
            assert torch.equal(one, other)


def test_memories_may_be_stretches_of_something_longer():
    index = torch.tensor([[[0, 2]], [[1, 1]]])
    assert distinct(index, 3, pitch=10).entry.tolist() == [0, 2, 11]


def test_nothing_retrieved_needs_nothing():
    found = distinct(torch.zeros(2, 0, 3, dtype=torch.int64), 5)
    assert len(found.entry) == 0 and int(found.needed) == 0 and found.row.shape == (2, 0, 3)
