"""The memory that training reads: what is retrieved is encoded once, in a list whose length may be bounded."""

import pytest
import torch

from gtmsm.model.frame_memory import FrameMemory, distinct
from gtmsm.model.frame_vae import FrameVAE, FrameVAEConfig
from gtmsm.model.recall import MixturePrior
from gtmsm.tensors import Belief

SHAPES = [(1, 1, 1, 1), (3, 4, 2, 7), (2, 33, 5, 20), (4, 1, 16, 16)]  # batch, queries, K, n


def retrievals(batch, queries, k, n):
    generator = torch.Generator().manual_seed(batch + queries)
    return torch.randint(n, (batch, queries, k), generator=generator)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_entry_that_is_retrieved_is_listed_once_and_can_be_found(shape):
    index, n = retrievals(*shape), shape[-1]
    found = distinct(index, n, n, None)
    expected = (index + n * torch.arange(len(index)).view(-1, 1, 1)).unique()
    assert torch.equal(found.entry, expected) and int(found.needed) == len(expected)
    assert torch.equal(found.entry[found.row] - n * torch.arange(len(index)).view(-1, 1, 1), index)
    assert found.complete.all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("capacity", [1, 5, 100])
def test_what_the_capacity_holds_can_be_found_and_the_rest_is_marked(shape, capacity):
    index, n = retrievals(*shape), shape[-1]
    whole, found = distinct(index, n, n, None), distinct(index, n, n, capacity)
    assert len(found.entry) == capacity and int(found.needed) == int(whole.needed)
    number = index + n * torch.arange(len(index)).view(-1, 1, 1)
    listed = whole.row < capacity
    assert torch.equal(found.entry[found.row][listed], number[listed])
    assert torch.equal(found.complete, listed.all(-1))


def test_memories_may_be_the_first_steps_of_longer_clips():
    index = torch.tensor([[[0, 2]], [[1, 1]]])
    assert distinct(index, 3, 10, None).entry.tolist() == [0, 2, 11]


def memory_of(capacity, encoded):
    """Two clips of six steps, the first four of which are memorised; the last two are asked for."""
    torch.manual_seed(0)
    vae = FrameVAE(FrameVAEConfig(width=8, code_size=3), (1, 4, 4))
    encode = vae.encode

    def noting(x, rows=None):
        encoded.append(rows.tolist())
        return encode(x, rows)

    vae.encode = noting
    frames, place = torch.rand(2, 6, 1, 4, 4), Belief(torch.randn(2, 4, 2))
    memory = FrameMemory(place, frames, torch.tensor([[4, 5], [4, 5]]), vae, MixturePrior(), capacity)
    return memory, encode(frames)


def test_only_frames_that_are_asked_for_or_retrieved_are_encoded():
    encoded = []
    memory, code = memory_of(None, encoded)
    index = torch.tensor([[[0, 2], [2, 0]], [[3, 1], [1, 3]]])
    bank, row, _ = memory.retrieve(index)
    assert encoded == [[4, 5, 10, 11, 0, 2, 7, 9]]
    torch.testing.assert_close(bank.mean[row], torch.stack([code.mean[b, index[b]] for b in range(2)]))
    torch.testing.assert_close(memory.asked_code.mean, code.mean[:, 4:])
    assert memory.complete is None and int(memory.needed) == 4


def test_steps_that_exceed_the_capacity_are_not_complete():
    memory, _ = memory_of(3, [])
    memory.retrieve(torch.tensor([[[0, 2], [2, 0]], [[1, 1], [1, 3]]]))
    assert memory.complete.tolist() == [[True, True], [True, False]]


def test_reading_all_of_memory_encodes_it_in_order():
    encoded = []
    memory, _ = memory_of(None, encoded)
    _, row, _ = memory.retrieve(torch.arange(4).expand(2, 2, 4))
    assert encoded[0][4:] == [0, 1, 2, 3, 6, 7, 8, 9]
    assert row[1, 0].tolist() == [4, 5, 6, 7]
