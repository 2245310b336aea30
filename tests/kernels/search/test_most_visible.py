"""Which views to retrieve: those that together see what is to be seen."""

import math

import pytest
import torch

from gtmsm.errors import InputError
from gtmsm.kernels.operator import forced
from gtmsm.kernels.search import most_visible as module
from gtmsm.kernels.search.most_visible import how_well_seen, most_visible

ON_A_GPU = torch.cuda.is_available()
SHAPES = [  # batch, n, time, K
    (1, 1, 1, 1),
    (2, 7, 3, 7),
    (1, 33, 4, 5),
    (3, 32, 2, 3),
    (1, 130, 2, 10),
]
LARGE_SHAPES = [  # too large to interpret
    (12, 150, 28, 10),
    (3, 512, 7, 16),
    (32, 257, 40, 4),
]


@pytest.fixture(params=["readable", "cuda"])
def search(request):
    """`most_visible` by one of its implementations."""
    where = request.getfixturevalue("triton_device") if request.param == "cuda" else "cpu"

    def run(memory, query, k, field_of_view=80.0):
        with forced(request.param):
            return most_visible(memory.float().to(where), query.float().to(where), k, field_of_view).cpu()

    return run


@pytest.fixture
def launched(triton_device, note_launches):
    """The kernels that were launched."""
    from gtmsm.kernels.search import most_visible_triton

    return note_launches(most_visible_triton, "_choose")


def place(x, y, degrees):
    angle = math.radians(degrees)
    return [x, y, math.cos(angle), math.sin(angle)]


def views(*poses):
    return torch.tensor([[place(*pose) for pose in poses]], dtype=torch.float64)


def scattered(batch, n, seed=0, spread=2.0):
    """Views anywhere, looking anywhere; no two sums of what they see are equal."""
    generator = torch.Generator().manual_seed(seed + n)
    xy = spread * torch.randn(batch, n, 2, generator=generator)
    angle = 7 * torch.rand(batch, n, 1, generator=generator)
    return torch.cat([xy, angle.cos(), angle.sin()], -1)


def by_triton(memory, query, k, field_of_view=80.0):
    with forced("cuda"):
        return most_visible(memory, query, k, field_of_view)


def gains(memory, query, index, field_of_view=80.0):
    """What each choice added, and the most that one could have added then."""
    score = how_well_seen(memory.double(), query.double(), field_of_view)
    best, added, most = torch.zeros_like(score[:, :, 0]), [], []
    for pick in index.unbind(-1):
        gain = (score - best[:, :, None]).clamp_min(0).sum(-1)
        added.append(gain.gather(2, pick[..., None])[..., 0])
        most.append(gain.amax(-1))
        seen = score.gather(2, pick[..., None, None].expand(-1, -1, 1, score.shape[-1]))
        best = torch.maximum(best, seen[:, :, 0])
    return torch.stack(added, -1), torch.stack(most, -1)


HERE = views((0, 0, 0))


@pytest.mark.parametrize("k", [1, 4, 9])
def test_no_view_is_chosen_twice(search, k):
    memory = scattered(4, 9, spread=3.0)
    index = search(memory, memory[:, :5], k)
    assert index.shape == (4, 5, k)
    assert index.dtype == torch.int64
    assert all(len(set(row.tolist())) == k for row in index.flatten(0, 1))


def test_where_none_sees_anything_they_come_by_index(search):
    behind = views(*((-5.0 - i, 0, 180) for i in range(6)))
    assert search(behind, HERE, 6).flatten().tolist() == list(range(6))


def test_where_all_are_the_same_they_come_by_index(search):
    assert search(views(*[(0, 0, 0)] * 5), HERE, 5).flatten().tolist() == list(range(5))


def test_the_first_of_two_exact_copies_is_chosen(search):
    memory = views((2, 1, 180), (0.3, -0.4, 15), (0, 0, 0), (0.3, -0.4, 15), (0, 0, 0))
    assert search(memory, HERE, 1).item() == 2


def test_an_exact_copy_of_the_view_is_among_the_first(search):
    memory = views((1, 0.5, 20), (-1, 0, 0), (0, 0, 0), (0.3, -0.4, 15), (2, 1, 180), (0, 0.5, 30))
    assert 2 in search(memory, HERE, 2).flatten().tolist()
    assert search(views((1, 0.5, 20), (0.3, -0.4, 15), (2, 1, 180), (0, 0, 0)), HERE, 1).item() == 3


@pytest.mark.parametrize("away", [(-1, 0, 180), (0, 0, 180), (0, -3, -90), (8, 0, 0)])
def test_a_view_that_looks_away_comes_after_one_that_looks_there(search, away):
    assert search(views(away, (-0.5, 0.2, 5), (0.2, 0.1, -10)), HERE, 3)[0, 0, -1] == 0


def test_near_copies_are_not_all_chosen_where_another_view_sees_the_rest(search):
    memory = views(*((0.01 * i, 0, 30) for i in range(6)), (0, 0, -40))
    assert 6 in search(memory, HERE, 2).flatten().tolist()
    assert 6 not in (memory - HERE).square().sum(-1).argsort()[0, :6].tolist(), "it is the farthest of all"


def test_where_the_map_lies_does_not_matter():
    xy, angle = scattered(1, 12)[..., :2].double(), 7 * torch.rand(1, 12, generator=torch.Generator().manual_seed(1))
    turn = torch.tensor(2.1).double()
    c, s = turn.cos(), turn.sin()
    moved = torch.stack([7 + c * xy[..., 0] - s * xy[..., 1], s * xy[..., 0] + c * xy[..., 1] - 3], -1)
    picks = []
    for points, heading in ((xy, angle.double()), (moved, angle.double() + turn)):
        memory = torch.cat([points, heading.cos()[..., None], heading.sin()[..., None]], -1)
        picks.append(most_visible(memory[:, 3:], memory[:, :3], 4, 80.0))
    assert torch.equal(*picks)


def test_far_from_the_origin_the_same_is_seen(search):
    # places that single precision holds exactly, here and there
    memory = scattered(2, 20)
    memory[..., :2] = (memory[..., :2] * 64).round() / 64
    there = memory + torch.tensor([1e4, -1e4, 0.0, 0.0])
    assert torch.equal(search(there, there[:, :4], 5), search(memory, memory[:, :4], 5))


@pytest.mark.parametrize("field_of_view", [60.0, 100.0])
@pytest.mark.parametrize("shape", SHAPES + (LARGE_SHAPES if ON_A_GPU else []))
def test_triton_chooses_what_the_readable_function_chooses(shape, field_of_view, triton_device, launched):
    batch, n, time, k = shape
    memory = scattered(batch, n).to(triton_device)
    query = scattered(batch, time, seed=1).to(triton_device)
    index = by_triton(memory, query, k, field_of_view)
    assert launched == ["_choose"]
    added, most = gains(memory, query, index, field_of_view)
    assert (most - added).max() < 3e-5  # ties within what single precision tells apart
    wanted = most_visible.readable(memory.double(), query.double(), k, field_of_view)
    useful = gains(memory, query, wanted, field_of_view)[0] > 1e-4  # later ones add nothing, and may come in any order
    differ = ((index != wanted) & useful).double().mean().item()
    assert differ <= (1e-2 if ON_A_GPU else 0.0)


def test_inputs_may_be_strided_and_expanded(triton_device):
    track = scattered(2, 12).to(triton_device)
    backwards = track.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    wanted = by_triton(track[:, :8].contiguous(), track[:, 8:].contiguous(), 4)
    assert torch.equal(by_triton(track[:, :8], track[:, 8:], 4), wanted)
    assert torch.equal(by_triton(backwards[:, :8], backwards[:, 8:], 4), wanted)
    one = by_triton(track[:1, :8].expand(2, -1, -1), track[:, 8:], 4)
    assert torch.equal(one, by_triton(track[:1, :8].repeat(2, 1, 1), track[:, 8:], 4))


def test_what_is_no_number_is_never_preferred(triton_device):
    memory = scattered(1, 6).to(triton_device)
    memory[0, 2] = math.nan
    index = by_triton(memory, memory[:, :2], 6)
    assert index[0, :, 0].tolist() == by_triton(memory[:, [0, 1, 3, 4, 5]], memory[:, :2], 1).flatten().tolist()
    nowhere = torch.full((1, 1, 4), math.nan, device=triton_device)
    assert by_triton(memory, nowhere, 4).flatten().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("k", [0, 3])
def test_more_views_than_there_are_cannot_be_chosen(k):
    with pytest.raises(InputError, match=f"asked for {k} neighbours of a memory that holds 2; give 1 to 2"):
        most_visible(views((0, 0, 0), (1, 0, 0)), HERE, k, 80.0)


def test_choosing_leaves_no_gradients(search):
    memory = views((0, 0, 0), (1, 0, 0)).requires_grad_()
    assert not search(memory, HERE, 2).requires_grad


def test_triton_chooses_also_where_places_have_gradients(launched, triton_device):
    memory = scattered(1, 9).to(triton_device).requires_grad_()
    by_triton(memory, memory[:, :2], 3)
    assert launched == ["_choose"]


def test_choosing_in_portions_changes_nothing(search, monkeypatch):
    memory = scattered(2, 9)
    whole = search(memory, memory, 4)
    monkeypatch.setattr(module, "PAIRS_AT_ONCE", 40)
    assert search(memory, memory, 4).equal(whole)


@pytest.mark.parametrize(("batch", "time"), [(0, 3), (2, 0), (0, 0)])
def test_where_nothing_is_asked_nothing_is_chosen(search, batch, time):
    assert search(torch.zeros(batch, 5, 4), torch.zeros(batch, time, 4), 3).shape == (batch, time, 3)


def test_too_many_views_and_double_precision_are_left_to_the_readable_function(launched, monkeypatch):
    from gtmsm.kernels.search import most_visible_triton

    memory = scattered(1, 9)
    by_triton(memory.double(), memory.double(), 3)
    monkeypatch.setattr(most_visible_triton, "MOST_VIEWS", 8)
    assert torch.equal(by_triton(memory, memory, 3), most_visible.readable(memory, memory, 3, 80.0))
    assert not launched


def test_a_gpu_can_keep_it_in_a_graph(in_a_graph):
    memory = scattered(4, 150).cuda()
    warm, replayed = in_a_graph(lambda: [most_visible(memory, memory[:, :7], 10, 80.0)])
    assert torch.equal(replayed[0], warm[0])
