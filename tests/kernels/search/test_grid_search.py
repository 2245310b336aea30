"""Grids: what they find is what a sort of all distances in float64 finds, index for index."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from gtmsm.kernels.operator import forced
from gtmsm.kernels.search import grid_search as module
from gtmsm.kernels.search.grid_search import grid_search
from gtmsm.model.long_memory.grid import make_grid, table_of

ON_A_GPU = torch.cuda.is_available()

# Triton's interpreter computes with NumPy, which warns where a GPU does not.
beyond_numbers = pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning")


def scattered(n, axes, seed=0):
    return torch.randn(n, axes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lattice(n, axes, seed=0):
    """Nearly every distance has its equals."""
    return scattered(n, axes, seed).round()


def clusters(n, axes, seed=0):
    """Far from each other, and one of them a single point."""
    which = torch.arange(n) % 3
    return (1e4 * scattered(3, axes, 50))[which] + scattered(n, axes, seed) * (which[:, None] < 2)


def far_away(n, axes, seed=0):
    return scattered(n, axes, seed) + 1e4


def standing_still(n, axes, seed=0):
    return torch.full((n, axes), 2.0, dtype=torch.float64)


WORLDS = [scattered, lattice, clusters, far_away, standing_still]


def by_sorting(places, query, k):
    """All distances in float64, sorted; of those equally far the earlier first."""
    far2 = np.zeros((len(query), len(places)))
    for axis in range(places.shape[1]):
        far2 += (places[:, axis].double().cpu().numpy() - query[:, axis, None].double().cpu().numpy()) ** 2
    index = np.argsort(far2, axis=1, kind="stable")[:, :k]
    return torch.from_numpy(index), torch.from_numpy(np.take_along_axis(far2, index, 1))


def in_grids(places, *sizes):
    """Grids of the first so many, of the next so many, ..."""
    grids, first = [], 0
    for size in sizes:
        grids.append(make_grid(places[first : first + size], first))
        first += size
    return grids


def find(query, places, grids, k, search=grid_search):
    return search(query, places, table_of(grids, places.device), sum(map(len, grids)), k)


@pytest.fixture
def small(monkeypatch):
    """Cells of a few entries and boxes of a few boxes: levels upon levels of a memory that can be interpreted."""
    monkeypatch.setattr(module, "CELL", 4)
    monkeypatch.setattr(module, "FAN", 4)


@pytest.fixture(params=["readable", "cuda"])
def searched(request):
    """`grid_search` by one of its implementations, on the device of that."""
    where = request.getfixturevalue("triton_device") if request.param == "cuda" else "cpu"

    def search(query, places, sizes, k):
        places = places.to(where)
        with forced(request.param):
            found = find(query.to(where), places, in_grids(places, *sizes), k)
        return tuple(x.cpu() for x in found)

    return search


def assert_exact(found, places, query, k):
    index, far2 = by_sorting(places, query, k)
    assert found[0].dtype == torch.int64
    assert torch.equal(found[0], index)
    assert torch.equal(found[1], far2)  # to the bit


def around(places, axes):
    """Where entries are, near them, between them and far from all of them."""
    return torch.cat([places[:2], places[-1:] + 0.25, scattered(1, axes, 9), places[:1] + 50 * scattered(1, axes, 8)])


@pytest.mark.parametrize(
    ("world", "axes"), [*((world, 2) for world in WORLDS), (scattered, 1), (clusters, 3), (lattice, 4), (scattered, 8)]
)
def test_what_is_found_is_what_sorting_all_distances_finds(searched, small, world, axes):
    places = world(110, axes).float()
    query = around(places, axes).float()
    assert_exact(searched(query, places, [80, 17], 3), places, query, 3)


@pytest.mark.parametrize(("n", "sizes"), [
    (1, []), (1, [1]), (5, [4]), (5, [5]), (9, [3, 2, 1]), (33, [33]), (66, [65, 1]), (300, []),
])  # fmt: skip
def test_any_number_of_entries_may_be_in_any_number_of_grids(searched, small, n, sizes):
    places = lattice(n, 2)
    query = around(places, 2)
    for k, asked in ((1, query[3:]), (min(n, 32), query[2:4])):
        assert_exact(searched(asked, places, sizes, k), places, asked, k)


@pytest.mark.parametrize("world", WORLDS)
def test_cells_and_boxes_of_the_real_size_find_the_same(searched, world):
    places = world(5000, 3).float()
    query = around(places, 3)[1:4].float()
    assert_exact(searched(query, places, [4900], 4), places, query, 4)


def test_float64_is_compared_in_float64(searched, small):
    places = scattered(60, 2) / 1e9 + 1e4
    query = places[:2] + 3e-10
    assert_exact(searched(query, places, [50], 5), places, query, 5)
    assert_exact(searched(query.float(), places, [50], 5), places, query.float(), 5)


def test_more_neighbours_than_a_warp_keeps_are_found_by_sorting(searched, small):
    places, query = lattice(90, 2), scattered(2, 2, 1)
    assert_exact(searched(query, places, [80], 90), places, query, 90)


def test_inputs_need_not_be_contiguous(triton_device, small):
    places, query = lattice(50, 4).float().to(triton_device), scattered(6, 4, 1).float().to(triton_device)
    index, far2 = by_sorting(places[:, ::2], query[::2, ::2], 3)
    with forced("cuda"):
        found = find(query[::2, ::2], places[:, ::2], in_grids(places[:, ::2], 40), 3)
    assert torch.equal(found[0].cpu(), index)
    assert torch.equal(found[1].cpu(), far2)


@beyond_numbers
@pytest.mark.parametrize("nowhere", [math.nan, math.inf])
def test_everything_is_equally_far_from_a_query_that_is_not_finite(triton_device, small, nowhere):
    query = torch.tensor([[0.0, nowhere]], device=triton_device)
    places = scattered(70, 2).float().to(triton_device)
    with forced("cuda"):
        index, far2 = find(query, places, in_grids(places, 60), 4)
    assert index.tolist() == [[0, 1, 2, 3]]
    assert far2.tolist() == [[math.inf] * 4]


def test_no_queries_have_no_neighbours(searched, small):
    index, far2 = searched(torch.zeros(0, 2), lattice(20, 2).float(), [10], 3)
    assert index.shape == far2.shape == (0, 3)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 300, 4096, 5000])
def test_cells_hold_every_entry_once_and_boxes_all_that_is_in_them(n):
    places = lattice(n, 3).float()
    grid = make_grid(places, 7)
    assert torch.equal(grid.entry.sort().values, torch.arange(7, 7 + n, dtype=torch.int32))
    assert torch.equal(grid.keys.T, places[grid.entry.long() - 7])
    cells = 1 << grid.halvings
    start = torch.arange(cells + 1) * n // cells
    assert (start.diff() <= module.CELL).all()
    assert cells == 1 or (start.diff() >= module.CELL // 2).all()
    innermost, corners = grid.nodes[-1], grid.walls.view(len(grid.walls), 2, 3, module.FAN)
    low, high = (wall.transpose(1, 2).reshape(-1, 3)[:cells] for wall in corners[innermost:].unbind(1))
    for cell in range(cells):
        inside = slice(int(start[cell]), int(start[cell + 1]))
        assert torch.equal(low[cell], grid.keys[:, inside].amin(1))
        assert torch.equal(high[cell], grid.keys[:, inside].amax(1))
        assert grid.earliest[innermost:].flatten()[cell] == grid.entry[inside].min()
    outermost = grid.earliest[0] < module.NEVER
    assert torch.equal(corners[0, 0][:, outermost].amin(1), places.amin(0))
    assert torch.equal(corners[0, 1][:, outermost].amax(1), places.amax(0))
    assert grid.earliest[0].min() == 7


def test_a_zero_is_a_zero_whatever_its_sign():
    places = lattice(300, 2).abs().float()
    signed = torch.where((places == 0) & (torch.arange(300)[:, None] % 2 == 1), -0.0, places)
    assert torch.equal(make_grid(signed).entry, make_grid(places).entry)


def test_a_grid_adds_little_to_what_it_holds():
    places = scattered(9000, 4).float()
    assert make_grid(places).nbytes <= 1.4 * places.nbytes


def test_a_search_is_one_launch(triton_device, small, note_launches):
    from gtmsm.kernels.search import grid_search_triton

    names = note_launches(grid_search_triton, "_search")
    places = scattered(70, 2).float().to(triton_device)
    with forced("cuda"):
        find(places[:3], places, in_grids(places, 40, 20), 4)
    assert names == ["_search"]


@pytest.mark.skipif(not ON_A_GPU, reason="too large to interpret")
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("k", [1, 4, 5, 16, 32])
def test_on_a_gpu_large_memories_are_searched_exactly(world, k):
    places = world(1_000_003, 4).float().cuda()
    query = torch.cat([around(places.cpu(), 4), places[:100].cpu() + 0.1 * scattered(100, 4, 3)]).float().cuda()
    grids = in_grids(places, 900_000, 60_001, 36_000)
    found, wanted = find(query, places, grids, k), find(query, places, grids, k, grid_search.readable)
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])


@pytest.mark.skipif(not ON_A_GPU, reason="only a GPU can be waited for")
def test_a_search_waits_for_nothing_and_can_be_kept_in_a_graph(in_a_graph, without_waiting):
    places = scattered(20_000, 4).float().cuda()
    grids = in_grids(places, 18_000, 1000)  # kept: a table only has their addresses
    search = partial(grid_search, places[:150], places, table_of(grids, places.device), 19_000, 4)
    without_waiting(search)
    first, replayed = in_a_graph(lambda: list(search()))
    assert all(torch.equal(one, other) for one, other in zip(first, replayed, strict=True))
