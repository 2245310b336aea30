"""Looking up memory: the entries nearest to a pose, among many."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from gtmsm.bench.sizes import Sizes
from gtmsm.bench.task import Goal, Reference, Task
from gtmsm.bench.work import Work, bytes_of, no_gradients, search_flops
from gtmsm.model.memory import Memory, nearest
from gtmsm.tensors import Belief, Gaussian

PLACE = 4
"""Coordinates of a place: x, y, and a heading as cosine and sine."""
NEIGHBOURS = 4
BY_MATRIX = "torch.cdist + topk"
COMPARED = 1_000_000
"""Entries up to which it is worth while to wait for a search through all of them."""
BELOW_THE_FLOOR = "the floor is that of a search through all entries; an index may go below it"


def nearest_of_many(sizes: Sizes, device: torch.device) -> Iterator[Task]:
    """The K nearest, against the matrix of all distances and a selection from it."""
    batch, queries, entries = sizes.nearest
    generator = torch.Generator(device).manual_seed(0)
    keys, asked = (
        10 * torch.randn(batch, count, PLACE, device=device, generator=generator) for count in (entries, queries)
    )

    def by_matrix() -> Tensor:
        """As PyTorch does it by itself: it multiplies so many keys, which is faster than exact."""
        return torch.cdist(asked, keys).topk(NEIGHBOURS, largest=False).indices

    found = batch * queries * NEIGHBOURS * (8 + 4)  # an index and a distance each
    yield Task(
        f"nearest {NEIGHBOURS}",
        f"{batch} × {queries} of {entries:,}, {PLACE}-D",
        no_gradients(lambda: nearest(Belief(keys), Belief(asked), NEIGHBOURS)),
        batch * queries,
        "queries",
        Work(batch * search_flops(queries, entries, PLACE), bytes_of(keys, asked) + found),
        Goal("times the reference", 8.0),
        Reference(BY_MATRIX, no_gradients(by_matrix)),
    )


def long_memories(sizes: Sizes, device: torch.device) -> Iterator[Task]:
    """The same of one agent's long life, by an index; against looking at all entries."""
    from gtmsm.model.long_memory import LongMemory  # here: its trees take SciPy, which nothing else does

    queries = sizes.nearest[1]
    generator = torch.Generator(device).manual_seed(0)
    for entries in sizes.remembered:
        side = entries**0.5  # a life is as crowded at its end as at its beginning
        keys, asked = (_places(count, side, device, generator) for count in (entries, queries))
        empty = torch.zeros(1, entries, 1, device=device)  # nobody asks for codes
        memory = LongMemory.of(Memory(Belief(keys), Gaussian(empty, empty)))

        def by_index(memory: LongMemory = memory, asked: Tensor = asked) -> object:
            return memory.nearest(Belief(asked), NEIGHBOURS)

        def one_by_one(keys: Tensor = keys, asked: Tensor = asked) -> object:
            return nearest(Belief(keys), Belief(asked), NEIGHBOURS)

        yield Task(
            "long memory",
            f"{queries} of {entries:,}, {PLACE}-D",
            no_gradients(by_index),
            queries,
            "queries",
            Work(search_flops(queries, entries, PLACE), bytes_of(keys, asked)),
            reference=Reference("all distances", no_gradients(one_by_one)) if entries <= COMPARED else None,
            note="" if entries < max(sizes.remembered) else "long memory: " + BELOW_THE_FLOOR,
        )


def _places(count: int, side: float, device: torch.device, generator: torch.Generator) -> Tensor:
    """Anywhere in a square, looking anywhere."""
    x, y, turn = torch.rand(3, 1, count, device=device, generator=generator).unbind(0)
    heading = 2 * math.pi * turn
    return torch.stack([side * x, side * y, heading.cos(), heading.sin()], dim=-1)
