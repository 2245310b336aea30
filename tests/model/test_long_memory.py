"""Memory that grows: the same answers as looking at every entry, at any length."""

import copy
import math
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gtmsm.errors import InputError
from gtmsm.kernels.operator import forced
from gtmsm.kernels.search import grid_search
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.long_memory import LongMemory, index, rows, tree
from gtmsm.model.memory import Memory
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.model.recognition import LandmarkConfig
from gtmsm.tensors import Belief, Gaussian

KINDS = ["tree", "grid"]
COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda memory: pickle.loads(pickle.dumps(memory))}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def points(n, size, seed=0, dtype=torch.float32):
    return torch.randn(n, size, generator=seeded(seed), dtype=torch.float64).to(dtype)


def memory_of(places, code_size=3, **more):
    """The memory of one agent, with codes that can be told apart."""
    mean = torch.randn(1, len(places), code_size, generator=seeded(11)).to(places)
    return Memory(Belief(places[None]), Gaussian(mean, 0.1 * mean), **more)


def by_sorting(places, query, k):
    """All distances in float64, sorted; of those equally far the earlier first."""
    step = places.double().numpy()[None] - query.double().numpy()[:, None]
    far2 = np.zeros(step.shape[:2])
    for axis in range(step.shape[-1]):
        far2 += step[..., axis] ** 2
    return torch.from_numpy(np.argsort(far2, axis=1, kind="stable")[:, :k])


def assert_nearest(memory, places, query, k):
    """As a batch, and one by one."""
    expected = by_sorting(places, query, k)
    if k < len(places):
        assert torch.equal(memory.nearest(Belief(query[None]), k).index[0], expected)
    for asked, right in zip(query, expected, strict=True):
        index, far2 = memory.find(asked.numpy(), k)
        assert index.tolist() == right.tolist()
        assert np.array_equal(far2, np.sort(far2))


@st.composite
def lives(draw):
    """What an agent wrote, a few or many entries at a time, in a world of some kind."""
    size = draw(st.integers(1, 4))
    world = draw(st.sampled_from(["anywhere", "lattice", "far away", "mostly asleep"]))
    steps = draw(st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any))
    places = points(sum(steps), size, draw(st.integers(0, 99)), draw(st.sampled_from([torch.float32, torch.float64])))
    if world == "lattice":
        places = places.round()
    if world == "far away":
        places = places + 1e4
    if world == "mostly asleep":
        places[:: 1 + draw(st.integers(0, 3))] = places[0].clone()
    return places, steps


@settings(max_examples=60, deadline=None)
@given(life=lives(), buffer=st.integers(1, 40), ratio=st.integers(2, 5), data=st.data())
def test_trees_that_grow_between_questions_give_what_sorting_all_distances_gives(life, buffer, ratio, data):
    live(LongMemory(index="tree", buffer=buffer, ratio=ratio), *life, data)


@settings(max_examples=15, deadline=None)
@given(life=lives(), buffer=st.integers(1, 40), data=st.data())
def test_a_grid_that_grows_between_questions_gives_what_sorting_all_distances_gives(life, buffer, data):
    live(LongMemory(index="grid", buffer=buffer), *life, data)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(life=lives(), buffer=st.integers(1, 40), data=st.data())
def test_rows_that_the_host_cannot_write_to_grow_in_one_piece_and_are_searched_as_exactly(
    monkeypatch, life, buffer, data
):
    monkeypatch.setattr(rows, "is_far", lambda device: True)
    monkeypatch.setattr(rows, "WAITING", 3)
    memory = LongMemory(index="grid", buffer=buffer)
    live(memory, *life, data)
    assert torch.equal(memory.place.mean[0], life[0])
    assert torch.equal(memory.place_at(torch.arange(len(memory))[None])[0], life[0])
    assert len(memory._index.rows._blocks) == 1


def live(memory, places, steps, data):
    """Write and ask in turns."""
    held = 0
    for some in steps:
        new = places[held : held + some]
        if data.draw(st.booleans(), "one by one"):
            for place in new.numpy():
                if held == 0 and not len(memory):
                    memory.write(memory_of(new[:1]))
                    continue
                memory.insert(place, [0.0] * 3, [0.0] * 3)
        else:
            assert memory.write(memory_of(new)) is memory
        held += some
        assert len(memory) == held
        if held:
            there = places[data.draw(st.lists(st.integers(0, held - 1), min_size=1, max_size=3), "at entries")]
            query = torch.cat([there, there + points(len(there), there.shape[1], 7, there.dtype)])
            assert_nearest(memory, places[:held], query, data.draw(st.integers(1, held), "k"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_thousands_of_entries_are_searched_exactly(kind, size):
    places = points(5000, size)
    memory = LongMemory.of(memory_of(places), index=kind, buffer=100)
    query = torch.cat([points(20, size, 1), 30 * points(5, size, 2), places[:5]])
    assert_nearest(memory, places, query, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_headings_and_clusters_in_a_wide_world_are_searched_exactly(kind):
    turn = 7 * points(3000, 1)[:, 0]
    centre = (1e4 * points(6, 2, 3))[torch.arange(3000) % 6]
    places = torch.cat([centre + points(3000, 2, 2), turn.cos()[:, None], turn.sin()[:, None]], 1)
    memory = LongMemory.of(memory_of(places), index=kind, buffer=64)
    assert_nearest(memory, places, torch.cat([places[:20] + 0.1, points(5, 4, 5), 3e4 * points(3, 4, 6)]), 7)


@pytest.mark.parametrize("kind", KINDS)
def test_queries_beyond_what_is_looked_at_together_are_searched_in_portions(kind, monkeypatch):
    monkeypatch.setattr(index, "AT_ONCE", 500)
    monkeypatch.setattr(grid_search, "AT_ONCE", 500)
    places = points(800, 2)
    memory = LongMemory.of(memory_of(places), index=kind, buffer=50)
    memory.write(memory_of(places[:30] + 5))
    assert_nearest(memory, torch.cat([places, places[:30] + 5]), points(40, 2, 1), 4)


def test_trees_fall_in_size_by_the_ratio_and_are_few():
    memory, places = LongMemory(buffer=4, ratio=3), points(500, 2)
    for held in range(1, 501):
        memory.insert(places[held - 1].numpy(), [0.0], [0.0])
        *trees, waiting = memory._index.sizes
        assert sum(trees) + waiting == held
        assert waiting < 4
        assert all(small * 3 <= large for large, small in zip(trees, trees[1:], strict=False))
        assert len(trees) <= 1 + math.log(max(held / 4, 1), 3)


def test_an_agent_that_stands_still_for_hours_is_one_point_of_a_tree():
    places = torch.cat([points(500, 2), torch.zeros(4_000, 2), torch.ones(2_000, 2), points(500, 2, 1)])
    memory = LongMemory.of(memory_of(places, code_size=1))
    index, far2 = memory.find([0.0, 0.0], 6)
    assert index.tolist() == list(range(500, 506))
    assert far2.tolist() == [0.0] * 6
    assert memory.find([0.6, 0.6], 3)[0].tolist() == by_sorting(places, torch.tensor([[0.6, 0.6]]), 3)[0].tolist()
    (only,) = memory._index._state.parts
    assert only.crowds == 2
    assert only._tree.n == 1002
    far_in = 4_400  # beyond the crowd there is still everything else
    assert memory.find([0.0, 0.0], far_in)[0].tolist() == by_sorting(places, torch.zeros(1, 2), far_in)[0].tolist()


def test_places_of_rest_in_a_walk_leave_all_others_where_they_were(monkeypatch):
    monkeypatch.setattr(tree, "MOVED", 7)
    places = points(600, 3).round(decimals=1)
    for rest in range(4):
        places[rest * 100 + 30 : rest * 100 + 110] = points(1, 3, 50 + rest)
    memory = LongMemory.of(memory_of(places), buffer=10)
    assert_nearest(memory, places, torch.cat([places[::20], points(20, 3, 1)]), 9)
    (only,) = memory._index._state.parts
    assert only.crowds == 4


@pytest.mark.parametrize("kind", KINDS)
def test_standing_still_from_the_first_step_on_works_at_any_length(kind):
    memory = LongMemory(index=kind, buffer=8, ratio=2)
    for held in range(1, 300):
        memory.insert([2.0, 3.0], [0.0], [0.0])
        k = min(4, held)
        assert memory.find([2.0, 3.0], k)[0].tolist() == list(range(k))
        assert memory.find([9.0, 3.0], k)[1].tolist() == [49.0] * k


def test_grids_fall_in_size_by_the_ratio_and_are_few():
    memory, places = LongMemory(index="grid", buffer=4, ratio=3), points(300, 2)
    for held in range(1, 301):
        memory.insert(places[held - 1].numpy(), [0.0], [0.0])
        *grids, waiting = memory._index.sizes
        assert sum(grids) + waiting == held
        assert waiting < 4
        assert all(small * 3 <= large for large, small in zip(grids, grids[1:], strict=False))


def test_one_kernel_searches_grids_and_what_came_since(triton_device):
    places = points(150, 4)
    memory = LongMemory.of(memory_of(places[:100].to(triton_device)), index="grid", buffer=40)
    query = Belief(places[None, 98:101].to(triton_device))
    with forced("cuda"):
        memory.nearest(query, 3)
        for place in places[100:].numpy():
            memory.insert(place, [0.0] * 3, [0.0] * 3)
            if len(memory) in (120, 150):
                found = memory.nearest(query, 3).index[0].cpu()
                assert torch.equal(found, by_sorting(places[: len(memory)], places[98:101], 3))
    assert memory._index.sizes == [150, 0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU can be waited for")
def test_writing_single_entries_and_searching_never_waits_for_the_gpu(without_waiting):
    places = points(3000, 4)
    memory = LongMemory.of(memory_of(places[:2000].cuda()), buffer=1500)
    query = Belief(places[None, :150].cuda())
    memory.retrieve(memory.nearest(query, 4).index)

    def write_and_search():
        for place in places[2000:].numpy():
            memory.insert(place, [0.0] * 3, [0.0] * 3)
        near = memory.nearest(query, 4)
        memory.retrieve(near.index)
        return near

    near = without_waiting(write_and_search)
    assert torch.equal(near.index[0].cpu(), by_sorting(places, places[:150], 4))
    assert torch.equal(memory.place.mean[0].cpu(), places)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="codes are taken once on a CPU")
def test_on_a_gpu_codes_come_back_as_they_were_written():
    whole = memory_of(points(100, 2).cuda())
    memory, index = LongMemory.of(whole), torch.randint(100, (1, 7, 3), device="cuda")
    bank, row, _ = memory.retrieve(index)
    assert torch.equal(bank.mean[row], whole.code_at(index).mean)


@pytest.mark.parametrize("kind", KINDS)
def test_when_all_entries_are_wanted_they_come_in_their_order_as_from_a_memory(kind):
    memory = memory_of(points(30, 2))
    query = Belief(points(4, 2, 1)[None])
    near, plain = LongMemory.of(memory, index=kind, buffer=7).nearest(query, 30), memory.nearest(query, 30)
    assert torch.equal(near.index, plain.index)
    assert torch.equal(near.distance2, plain.distance2)


@pytest.mark.parametrize("kind", KINDS)
def test_distances_have_the_gradients_of_finite_differences(kind):
    memory = LongMemory.of(memory_of(points(40, 2, dtype=torch.float64)), index=kind, buffer=10)
    query = points(3, 2, 1, torch.float64)[None].requires_grad_()
    assert torch.autograd.gradcheck(lambda q: memory.nearest(Belief(q), 3).distance2, query)


@pytest.mark.parametrize("kind", KINDS)
def test_no_queries_have_no_neighbours(kind):
    memory = LongMemory.of(memory_of(points(40, 2)), index=kind, buffer=10)
    assert memory.nearest(Belief(torch.zeros(1, 0, 2)), 3).index.shape == (1, 0, 3)


def test_entries_come_back_as_they_were_written():
    n = 700
    whole = Memory(
        Belief(points(n, 2)[None], torch.rand(1, n, 2, 2)),
        Gaussian(torch.rand(1, n, 5), torch.rand(1, n, 5)), torch.rand(1, n, 3, 4), torch.rand(1, n, 1),
    )  # fmt: skip
    memory = LongMemory()
    for some in torch.arange(n).split(23):
        part = slice(int(some[0]), int(some[-1]) + 1)
        memory.write(Memory(whole.place[:, part], whole.code[:, part], whole.digest[:, part], whole.variance[:, part]))
    assert torch.equal(memory.place.mean, whole.place.mean)
    assert torch.equal(memory.place.covariance, whole.place.covariance)
    assert torch.equal(memory.code.mean, whole.code.mean)
    assert torch.equal(memory.code.log_var, whole.code.log_var)
    assert torch.equal(memory.digest, whole.digest)
    assert torch.equal(memory.variance, whole.variance)
    for shape in ((1, 4, 2), (1, 200, 3), (1, 0, 2)):
        index = torch.randint(n, shape, generator=seeded(1))
        assert torch.equal(memory.code_at(index).log_var, whole.code_at(index).log_var)
        assert torch.equal(memory.code_at(index).mean, whole.code_at(index).mean)
        assert torch.equal(memory.place_at(index), whole.place_at(index))
        (bank, row, digest), (all_codes, place_in_all, digests) = memory.retrieve(index), whole.retrieve(index)
        assert len(bank.mean) == len(digest) == len(index.unique())
        assert torch.equal(bank.mean[row], all_codes.mean[place_in_all])
        assert torch.equal(bank.log_var[row], all_codes.log_var[place_in_all])
        assert torch.equal(digest[row], digests[place_in_all])


def test_what_was_handed_out_before_stays_as_it_was():
    memory = LongMemory.of(memory_of(points(10, 2)))
    place, code = memory.place.mean, memory.code.mean
    before = copy.deepcopy((place, code))
    memory.write(memory_of(points(5000, 2, 1)))
    assert torch.equal(place, before[0])
    assert torch.equal(code, before[1])
    assert len(memory) == 5010


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize(("kind", "far"), [("tree", False), ("grid", False), ("grid", True)])
def test_a_copy_grows_and_is_searched_by_itself(monkeypatch, kind, far, copied):
    monkeypatch.setattr(rows, "is_far", lambda device: far)
    places = points(300, 2)
    memory = LongMemory.of(memory_of(places[:200]), index=kind, buffer=40)
    memory.find([0.0, 0.0], 3)
    for place in places[200:230].numpy():
        memory.insert(place, [1.0] * 3, [2.0] * 3)
    other = copied(memory)
    for place in places[230:].numpy():
        other.insert(place, [1.0] * 3, [2.0] * 3)
    memory.write(memory_of(places[:70] + 9))
    assert len(other) == len(memory) == 300
    assert torch.equal(other.place.mean[0], places)
    assert (other.code.mean[0, 200:] == 1).all()
    assert (other.code.log_var[0, 200:] == 2).all()
    assert_nearest(other, places, points(5, 2, 1), 4)
    assert_nearest(memory, torch.cat([places[:230], places[:70] + 9]), points(5, 2, 1), 4)


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_one_kernel_searches_the_grids_of_a_copy_when_there_is_nothing_else(triton_device, copied):
    places = points(150, 4)
    memory = LongMemory.of(memory_of(places.to(triton_device)), index="grid", buffer=40)
    query = Belief(places[None, :3].to(triton_device))
    memory.nearest(query, 3)
    other = copied(memory)
    for grid in memory._index._state.parts:
        grid.keys.fill_(math.inf)  # as good as freed
    del memory
    with forced("cuda"):
        found = other.nearest(query, 3).index[0].cpu()
    assert torch.equal(found, by_sorting(places, places[:3], 3))


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_made_by_who_merely_looks_can_be_written_to_by_others(copied):
    memory = LongMemory.of(memory_of(points(10, 2)))
    with torch.inference_mode():
        other = copied(memory)
    other.insert([0.0] * 2, [0.0] * 3, [0.0] * 3)
    assert len(other.write(memory_of(points(5, 2)))) == 16
    assert torch.equal(other.place.mean[0, :10], points(10, 2))


@pytest.mark.parametrize("copied", [*COPIES.values(), copy.copy], ids=[*COPIES, "copy"])
def test_copies_of_an_empty_memory_are_empty(copied):
    other = copied(LongMemory())
    other.insert([0.0], [1.0], [2.0])
    assert other.code.mean.tolist() == [[[1.0]]]


def test_of_what_was_written_first_nothing_but_its_rows_is_kept():
    memory = LongMemory.of(memory_of(points(1000, 2)))
    assert all(memory._index.rows.like(name).untyped_storage().nbytes() == 0 for name in memory._index.rows.names)


def test_rows_that_wait_for_a_gpu_are_counted_among_the_bytes_held(monkeypatch):
    monkeypatch.setattr(rows, "is_far", lambda device: True)
    memory = LongMemory.of(memory_of(points(10, 2)))
    before = memory.nbytes
    memory.insert([0.0] * 2, [0.0] * 3, [0.0] * 3)
    assert memory.nbytes - before == rows.WAITING * 4 * (2 + 3 + 3)


def test_a_memory_may_grow_on_a_gpu_between_a_question_and_its_gradients(monkeypatch, triton_device):
    monkeypatch.setattr(rows, "is_far", lambda device: True)
    places = points(60, 2).to(triton_device)
    query = points(3, 2, 1)[None].to(triton_device).requires_grad_()
    for k in (4, 60):
        memory = LongMemory.of(memory_of(places), index="grid", buffer=20)
        with forced("cuda"):
            near = memory.nearest(Belief(query), k)
            memory.insert([9.0] * 2, [0.0] * 3, [0.0] * 3)
            memory.nearest(Belief(query.detach()), 4)
            memory.write(memory_of(places[:2] + 9))
            (found,) = torch.autograd.grad(near.distance2.sum(), query)
        right = 2 * (query.detach()[0, :, None] - places[near.index[0]]).sum(1)
        torch.testing.assert_close(found[0], right)


def test_graphs_may_hold_on_to_places_and_codes_while_a_memory_grows():
    memory = LongMemory.of(memory_of(points(10, 2))).write(memory_of(points(10, 2)))
    memory.insert([0.0] * 2, [0.0] * 3, [0.0] * 3)
    place, code = memory.place.mean[:, -5:], memory.code.mean[:, -5:]
    factor = torch.ones((), requires_grad=True)
    made = (factor * place).sum() + (factor * code).sum()
    memory.write(memory_of(points(3, 2)))
    made.backward()
    torch.testing.assert_close(factor.grad, place.sum() + code.sum())


def test_what_some_entries_lack_nothing_is_known_of_as_in_a_memory():
    sure = memory_of(points(3, 2), variance=torch.ones(1, 3, 1))
    memory = LongMemory.of(sure).write(memory_of(points(2, 2)))
    assert memory.variance is None
    assert memory.retrieve(torch.zeros(1, 1, 1, dtype=torch.int64))[2] is None
    assert memory.write(sure).variance is None
    assert len(memory) == 8


def test_little_more_is_held_than_keys_and_values():
    places, code = points(60_000, 4), [0.0] * 16
    memory = LongMemory()
    for held, place in enumerate(places.numpy(), 1):
        memory.insert(place, code, code)
        if held > 2000 and held % 997 == 0:
            memory.find(place, 4)
            waiting_room = 4096 * 4 * 8
            assert memory.nbytes - waiting_room <= 1.5 * held * 4 * (4 + 2 * 16)


def world_model(**recall):
    torch.manual_seed(0)
    settings = WorldModelConfig(recall=RecallConfig(**recall))
    return WorldModel(settings, (3, 8, 8), 2).eval().requires_grad_(False)


@pytest.mark.parametrize("recall", [{"prior": "mixture"}, {"prior": "query", "width": 16}])
def test_a_world_model_remembers_the_same_by_either(recall):
    model = world_model(**recall)
    frames, actions = torch.rand(1, 60, 3, 8, 8, generator=seeded()), points(60, 2)[None]
    memory = here = long_here = None
    long_memory = LongMemory(buffer=8, ratio=2)
    for some in torch.arange(60).split(20):
        memory, here = model.memorise(frames[:, some], actions[:, some], memory, here)
        long_memory, long_here = model.memorise(frames[:, some], actions[:, some], long_memory, long_here)
    assert isinstance(long_memory, LongMemory)
    assert len(long_memory) == len(memory) == 60
    torch.testing.assert_close(long_here.mean, here.mean)
    plan = points(9, 2, 1)[None]
    dream, long_dream = model.imagine(memory, here, plan), model.imagine(long_memory, long_here, plan)
    torch.testing.assert_close(long_dream.frames, dream.frames)
    assert torch.equal(long_dream.retrieved, dream.retrieved)


def model_with_landmarks(steps):
    """A model, a walk, and what is memorised of its first 20 steps."""
    torch.manual_seed(0)
    parts = {"motion": MotionConfig(noise=0.1), "landmark": LandmarkConfig(form="bayes", width=16)}
    model = WorldModel(WorldModelConfig(**parts), (3, 8, 8), 2).eval().requires_grad_(False)
    frames, actions = torch.rand(1, steps, 3, 8, 8, generator=seeded()), points(steps, 2)[None]
    return model, frames, actions, *model.memorise(frames[:, :20], actions[:, :20])


def test_places_are_recognised_by_either_memory_alike():
    model, frames, actions, begun, here = model_with_landmarks(40)
    long_memory = LongMemory.of(begun, buffer=8, ratio=2)
    memory, there = model.memorise(frames[:, 20:], actions[:, 20:], begun, here)
    long_memory, long_there = model.memorise(frames[:, 20:], actions[:, 20:], long_memory, here)
    torch.testing.assert_close(long_there.mean, there.mean)
    clip = frames[:, 5:8], actions[:, 5:8]
    seen, long_seen = model.localise(memory, *clip), model.localise(long_memory, *clip)
    assert torch.equal(long_seen.entry, seen.entry)
    # Matrix products may differ in the last bit: their operands are the same numbers, but lie elsewhere in memory.
    for name in ("weight", "pose", "variance", "unknown"):
        torch.testing.assert_close(getattr(long_seen, name), getattr(seen, name), rtol=1e-5, atol=1e-6)


def test_threads_that_share_a_model_and_a_memory_imagine_what_one_thread_imagines(in_threads):
    model, frames, actions, begun, here = model_with_landmarks(50)
    memory = LongMemory.of(begun, buffer=8, ratio=2)

    def memorise():
        there = here
        for some in torch.arange(20, 50).split(3):
            there = model.memorise(frames[:, some], actions[:, some], memory, there)[1]

    def imagine(plan):
        made = []
        while len(memory) < 50:
            now = memory.snapshot()
            seen = model.localise(now, frames[:, 5:6])
            made.append((len(now), model.imagine(now, here, plan).frames, seen.pose))
        model.imagine(memory, here, plan)
        return made

    plans = [points(5, 2, seed)[None] for seed in range(7)]
    _, *answers = in_threads(memorise, *(lambda plan=plan: imagine(plan) for plan in plans))
    whole = Memory(memory.place, memory.code, variance=memory.variance)
    for plan, made in zip(plans, answers, strict=True):
        for held, imagined, pose in made:
            first = Memory(whole.place[:, :held], whole.code[:, :held], variance=whole.variance[:, :held])
            assert torch.equal(imagined, model.imagine(LongMemory.of(first), here, plan).frames)
            assert torch.equal(pose, model.localise(first, frames[:, 5:6]).pose)


def test_a_dream_is_of_the_memory_at_the_moment_it_was_imagined():
    model = world_model()
    memory, here = model.memorise(torch.rand(1, 20, 3, 8, 8, generator=seeded()), points(20, 2)[None])
    long_memory, plan = LongMemory.of(memory), points(4, 2, 1)[None]
    dream = model.imagine(long_memory, here, plan)
    long_memory.write(Memory(Belief(dream.poses), Gaussian(9 + memory.code.mean[:, :4], memory.code.log_var[:, :4])))
    assert torch.equal(dream.frames, model.imagine(memory, here, plan).frames)


def test_an_empty_memory_is_there_and_holds_nothing():
    memory = LongMemory()
    assert memory
    assert len(memory) == 0
    assert memory.code.mean.shape[:2] == memory.place.mean.shape[:2] == (1, 0)
    assert (
        memory.write(Memory(Belief(torch.zeros(1, 0, 2)), Gaussian(torch.zeros(1, 0, 3), torch.zeros(1, 0, 3))))
        is memory
    )
    with pytest.raises(InputError, match="asked for 1 neighbours of a memory that holds 0; write to it first"):
        memory.find([0.0, 0.0], 1)
    with pytest.raises(InputError, match="this memory is empty"):
        memory.code_at(torch.zeros(1, 1, dtype=torch.int64))


def test_memories_are_stores_each_of_its_own():
    one, other = (LongMemory.of(memory_of(points(3, 2))) for _ in range(2))
    assert one == one
    assert one != other
    assert len({one, other}) == 2
    assert repr(one).startswith("LongMemory(3 entries")


@pytest.mark.parametrize("k", [-1, 0, 8])
def test_more_neighbours_than_there_are_entries_or_none_are_refused(k):
    memory = LongMemory.of(memory_of(points(7, 2)))
    for ask in (lambda: memory.nearest(Belief(torch.zeros(1, 1, 2)), k), lambda: memory.find([0.0, 0.0], k)):
        with pytest.raises(InputError, match=f"asked for {k} neighbours of a memory that holds 7; give 1 to 7"):
            ask()


@pytest.mark.parametrize(("ask", "message"), [
    (lambda m: LongMemory(buffer={}), "buffer is {}; give a whole number from 1"),
    (lambda m: LongMemory(ratio=1), "ratio is 1; give a whole number from 2"),
    (lambda m: LongMemory(index=[1]), r'index is "\[1\]"; choose from tree, grid'),
    (lambda m: m.find([0.0, 0.0], [1]), r"asked for \[1\] neighbours"),
    (lambda m: m.find("x", 1), "the place asked for is 'x'; give a list of numbers"),
    (lambda m: m.find([[0.0, 0.0]], 1), r"the place asked for is of shape \(1, 2\); the places of this memory have 2"),
    (lambda m: m.insert(1.5, [0.0] * 3, [0.0] * 3), "the place is 1.5; give a list of finite numbers"),
    (lambda m: m.insert(["1", 0.0], [0.0] * 3, [0.0] * 3), "the place is .*; give a list of finite numbers"),
    (lambda m: m.insert([0.0] * 2, [10**400, 0.0, 0.0], [0.0] * 3), "the mean is .*; give a list of finite numbers"),
])  # fmt: skip
def test_what_is_no_number_is_refused(ask, message):
    with pytest.raises(InputError, match=message):
        ask(LongMemory.of(memory_of(points(7, 2))))


@pytest.mark.parametrize(("query", "message"), [
    (torch.zeros(2, 1, 2), r"the query is torch.float32 of shape \(2, 1, 2\) on cpu; give a Belief"),
    (torch.zeros(1, 1, 3), r"mean is floats of shape \(1, time, 2\) on cpu"),
    (torch.tensor([[[0.0, 0.0], [1.0, math.nan]]]), r"query 1 is \[1.0, nan\]"),
    (torch.zeros(1, 1, 2, device="meta"), "on meta; give .* on cpu"),
])  # fmt: skip
def test_queries_that_do_not_fit_are_refused(query, message):
    with pytest.raises(InputError, match=message):
        LongMemory.of(memory_of(points(7, 2))).nearest(Belief(query), 1)


def test_the_kl_distance_is_refused():
    with pytest.raises(InputError, match="distance is kl, but a long memory is searched by the means of places alone"):
        LongMemory.of(memory_of(points(7, 2))).nearest(Belief(torch.zeros(1, 1, 2)), 1, "kl")


@pytest.mark.parametrize(("later", "message"), [
    (lambda: "a walk", "got a str to write; give a Memory"),
    (
        lambda: Memory(Belief(torch.zeros(2, 4, 2)), Gaussian(*torch.zeros(2, 2, 4, 3))),
        r"place of what is written is torch.float32 of shape \(2, 4, 2\) on cpu",
    ),
    (lambda: memory_of(points(4, 3)), r"place of .* shape \(1, 4, 3\) on cpu; expected floats like .* \(1, 0, 2\)"),
    (lambda: memory_of(points(4, 2), code_size=5), r"mean of what is written is torch.float32 of shape \(1, 4, 5\)"),
    (lambda: memory_of(points(4, 2, dtype=torch.float64)), "place is torch.float64"),
    (lambda: memory_of(points(4, 2, dtype=torch.bfloat16)), "place is torch.bfloat16, but a long memory holds float32"),
    (lambda: memory_of(torch.tensor([[0.0, 1.0], [math.nan, 2.0]])), r"place 1 is \[nan, 2.0\]; give finite numbers"),
    (lambda: memory_of(points(4, 2), variance=torch.full((1, 4, 1), math.inf)), r"variance 0 is \[inf\]; give finite"),
    (lambda: memory_of(torch.zeros(4, 2, device="meta")), "place of .* on meta; expected .* on cpu"),
])  # fmt: skip
def test_entries_that_do_not_fit_are_refused_and_leave_the_memory_as_it_was(later, message):
    memory = LongMemory.of(memory_of(points(7, 2)))
    with pytest.raises(InputError, match=message):
        memory.write(later())
    assert len(memory) == 7
    assert_nearest(memory, points(7, 2), points(2, 2, 1), 3)


@pytest.mark.parametrize("far", [False, True])
def test_codes_that_numpy_cannot_write_are_refused_in_words_from_the_first(monkeypatch, far):
    monkeypatch.setattr(rows, "is_far", lambda device: far)
    code = torch.zeros(1, 4, 3)
    memory = LongMemory()
    with pytest.raises(InputError, match=r"log_var is torch.bfloat16, but .* float64 here"):
        memory.write(Memory(Belief(points(4, 2)[None]), Gaussian(code, code.bfloat16())))
    memory.write(memory_of(points(4, 2).half())).insert([0.5] * 2, [0.25] * 3, [0.0] * 3)
    assert memory.find([0.5, 0.5], 1)[0].tolist() == [4]


@pytest.mark.parametrize(("entry", "message"), [
    (([0.0], [0.0] * 3, [0.0] * 3), "place has 1 numbers; in the entries of this memory it has 2"),
    (([0.0] * 2, [0.0], [0.0] * 3), "mean has 1 numbers; in the entries of this memory it has 3"),
    (([0.0] * 2, [0.0] * 3, [0.0] * 4), "log_var has 4 numbers; in the entries of this memory it has 3"),
    (([0.0, math.nan], [0.0] * 3, [0.0] * 3), r"the place is \[0.0, nan\]; give finite numbers"),
    (([0.0, math.inf], [0.0] * 3, [0.0] * 3), r"the place is \[0.0, inf\]; give finite numbers"),
    (([1e39, 0.0], [0.0] * 3, [0.0] * 3), r"the place is \[1e\+39, 0.0\]; give finite numbers up to 3.4e\+38"),
    (([1e39, -1e39], [0.0] * 3, [0.0] * 3), "give finite numbers"),
    (([0.0] * 2, [0.0, math.nan, 0.0], [0.0] * 3), r"the mean is \[0.0, nan, 0.0\]; give finite numbers"),
    (([0.0] * 2, [0.0] * 3, np.array([1e39, 0.0, 0.0])), r"the log_var is \[1e\+39, 0.0, 0.0\]; give finite"),
    (([0.0] * 2, [0.0] * 3, [-math.inf, 0.0, 0.0]), r"the log_var is \[-inf, 0.0, 0.0\]; give finite numbers"),
])  # fmt: skip
def test_single_entries_that_do_not_fit_are_refused(entry, message):
    memory = LongMemory.of(memory_of(points(7, 2)))
    with pytest.raises(InputError, match=message):
        memory.insert(*entry)
    assert len(memory) == 7
    assert_nearest(memory, points(7, 2), points(2, 2, 1), 3)
    if "finite" in message:
        with pytest.raises(InputError, match=message):
            (empty := LongMemory()).insert(*entry)
        assert len(empty) == 0


def test_single_entries_cannot_lack_what_the_others_have():
    memory = LongMemory.of(memory_of(points(3, 2), variance=torch.ones(1, 3, 1)))
    with pytest.raises(InputError, match="the entries of this memory have variance, too"):
        memory.insert([0.0] * 2, [0.0] * 3, [0.0] * 3)


def test_places_that_are_nowhere_cannot_be_looked_for():
    with pytest.raises(InputError, match=r"the place asked for is \[nan, 0.0\]"):
        LongMemory.of(memory_of(points(3, 2))).find([math.nan, 0.0], 1)


def test_places_too_far_for_their_distance_to_be_a_number_are_refused():
    memory = LongMemory.of(memory_of(points(9, 2, dtype=torch.float64)))
    for ask in (
        lambda: memory.find([1e200, 0.0], 3),
        lambda: memory.nearest(Belief(torch.full((1, 1, 2), 1e200, dtype=torch.float64)), 3),
        lambda: memory.insert([0.0, -1e200], [0.0] * 3, [0.0] * 3),
    ):
        with pytest.raises(InputError, match=r"1e\+200.*; give finite numbers up to 1e\+150"):
            ask()


def test_numbers_may_be_finite_though_their_sum_is_not():
    memory = LongMemory.of(memory_of(points(4, 2)))
    memory.insert([0.0, 3e38], [3e38] * 3, [-3e38] * 3)
    assert memory.find([0.0, 3e38], 1)[0].tolist() == [4]


@pytest.mark.parametrize("length", [70, 700])
@pytest.mark.parametrize(("wrong", "message"), [
    (torch.tensor([[0, 1000]]), "asked for entry 1000 of a memory that holds {0}; give 0 to {1}"),
    (torch.tensor([[-1, 0]]), "asked for entry -1 of a memory that holds {0}"),
    (torch.arange(1001)[None], "asked for entry 1000 of a memory that holds {0}"),
    (torch.tensor([[0.5]]), "asked for entries by torch.float32 of shape .*; give int64"),
    (100, "asked for entries by 100; give int64"),
])  # fmt: skip
def test_entries_that_are_not_there_are_refused(length, wrong, message):
    memory = LongMemory()
    for place in points(length, 2).numpy():
        memory.insert(place, [0.0] * 3, [0.0] * 3)
    for read in (memory.place_at, memory.code_at, memory.retrieve):
        with pytest.raises(InputError, match=message.format(length, length - 1)):
            read(wrong)


@pytest.mark.parametrize("far", [False, True])
def test_a_write_that_was_interrupted_leaves_the_memory_as_it_was(monkeypatch, far):
    monkeypatch.setattr(rows, "is_far", lambda device: far)
    memory = LongMemory.of(memory_of(points(70, 2)), index="grid")
    with pytest.raises(KeyError):
        memory._index.rows.append({"place": torch.zeros(200, 2)})
    assert len(memory) == 70
    memory.insert([9.0, 9.0], [1.0] * 3, [2.0] * 3)
    memory.write(memory_of(points(300, 2)))
    places = torch.cat([points(70, 2), torch.full((1, 2), 9.0), points(300, 2)])
    assert torch.equal(memory.place.mean[0], places)
    assert_nearest(memory, places, points(3, 2, 1), 4)


@pytest.fixture
def in_threads():
    """Runs jobs at the same time, each in a thread, and changes between them as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def run(*jobs):
        with ThreadPoolExecutor(len(jobs)) as threads:
            return [made.result() for made in [threads.submit(job) for job in jobs]]

    yield run
    sys.setswitchinterval(before)


@pytest.mark.parametrize(("kind", "far"), [("tree", False), ("grid", False), ("grid", True)])
def test_threads_that_read_while_others_write_get_what_one_thread_gets_at_that_moment(
    monkeypatch, in_threads, kind, far
):
    monkeypatch.setattr(rows, "is_far", lambda device: far)
    memory = LongMemory.of(memory_of(points(5, 2)), index=kind, buffer=32, ratio=2)
    written = []

    def write(seed):
        for i, place in enumerate(points(160, 2, seed)):
            if i % 20 < 15:
                memory.insert(place.numpy(), place.tolist() + [seed], [0.0] * 3)
            else:
                code = torch.cat([place, torch.tensor([float(seed)])]).expand(1, 4, 3)
                memory.write(Memory(Belief(place.expand(1, 4, 2)), Gaussian(code, 0 * code)))
        written.append(seed)

    def read(seed):
        found = []
        for query in points(10_000, 2, seed).numpy():
            before = len(memory)
            index, _ = memory.find(query, 4)
            found.append((query, index, before, len(memory)))
            if len(written) == 2:
                return found

    def copies():
        made = []
        while len(written) < 2:
            made += [memory.snapshot(), copy.deepcopy(memory), pickle.loads(pickle.dumps(memory))]
        return made

    _, _, *answers, made = in_threads(
        *(lambda seed=seed: write(seed) for seed in (1, 2)),
        *(lambda seed=seed: read(seed) for seed in range(3, 8)),
        copies,
    )
    places, codes = memory.place.mean[0], memory.code.mean[0]
    assert len(memory) == 5 + 2 * (120 + 4 * 40)
    for seed in (1, 2):
        mine = codes[5:][codes[5:, 2] == seed][:, :2]
        assert torch.equal(mine, places[5:][codes[5:, 2] == seed])
        repeats = torch.tensor([1 if i % 20 < 15 else 4 for i in range(160)])
        assert torch.equal(mine, points(160, 2, seed).repeat_interleave(repeats, 0))
    for query, found, before, after in (one for some in answers for one in some):
        # What is right at some moment is right as soon as the last entry of it is there.
        moment = max(before, found.max() + 1)
        assert moment <= after
        assert found.tolist() == by_sorting(places[:moment], torch.from_numpy(query)[None], 4)[0].tolist()
    for other in made:
        assert torch.equal(other.place.mean[0], places[: len(other)])
        assert torch.equal(other.code.mean[0], codes[: len(other)])
        other.insert([0.0] * 2, [0.0] * 3, [0.0] * 3)
        assert_nearest(other, torch.cat([places[: len(other) - 1], torch.zeros(1, 2)]), points(1, 2, 9), 4)
    assert_nearest(memory, places, points(100, 2, 10), 4)


def test_columns_are_dropped_between_what_others_read(in_threads):
    memory = LongMemory.of(memory_of(points(500, 2), digest=torch.rand(1, 500, 2, 2)))
    index = torch.randint(500, (1, 20, 4), generator=seeded())

    def read():
        while memory.retrieve(index)[2] is not None:
            now = memory.snapshot()
            assert (now.digest is None) == (len(now) == 501)

    def drop():
        memory.write(memory_of(points(1, 2)))

    in_threads(*[read] * 7, drop)
    assert memory.digest is None


@pytest.mark.parametrize("wrong", [{"buffer": 0}, {"ratio": 1}, {"index": "hash"}])
def test_settings_that_make_no_index_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(InputError, match=f"{name} is"):
        LongMemory(**wrong)


def test_imagining_copies_no_long_memory(monkeypatch):
    """A verb looks at what it is given; of ten million entries it must not look at all."""
    model = WorldModel(WorldModelConfig(), (3, 8, 8), 5)
    generator = torch.Generator().manual_seed(0)
    frames, actions = torch.rand(1, 12, 3, 8, 8, generator=generator), torch.rand(1, 12, 5, generator=generator)
    with torch.no_grad():
        memory, here = model.memorise(frames, actions)
        long, wanted = LongMemory.of(memory), model.imagine(memory, here, actions).frames
        monkeypatch.setattr(LongMemory, "_columns", None)
        torch.testing.assert_close(model.imagine(long, here, actions).frames, wanted)


# ---- entries that look alike


@pytest.mark.parametrize(("kind", "size"), [("tree", 4), ("tree", 40), ("grid", 4)])
def test_entries_that_look_alike_are_those_of_a_search_of_all_codes_while_memory_grows(kind, size, monkeypatch):
    monkeypatch.setattr(index, "NEWEST_CODES", 32)
    codes, places = points(600, size, seed=3), points(600, 2)
    codes[300:] = codes[torch.randint(300, (300,), generator=seeded(5))]  # half of them were seen before
    memory, query = LongMemory(index=kind), codes[:2][None] + 0.1
    for begin in range(0, 600, 25):
        now = slice(begin, begin + 25)
        memory.write(Memory(Belief(places[None, now]), Gaussian(codes[None, now], codes[None, now])))
        found, held = memory.snapshot().alike(query, 9) if begin % 50 else memory.alike(query, 9), begin + 25
        assert found.held == held
        assert torch.equal(found.place[0], places[found.number])
        assert torch.equal(found.code.mean[0], codes[found.number])
        assert held - 1 in found.number
        assert len(found.number) <= 2 * 9 + 1
        far = (query[0][:, None] - codes[:held]).norm(dim=-1)
        near = far[:, found.number].topk(9, largest=False).values
        torch.testing.assert_close(near, far.topk(9, largest=False).values)
        if kind == "tree" and size == 4 and held > 19:
            latest = held - 1 - by_sorting(codes[:held].flip(0), query[0], 9).flatten()
            assert set(found.number.tolist()) == {*latest.tolist(), held - 1}


def test_of_very_many_equal_views_the_latest_are_recognised(monkeypatch):
    monkeypatch.setattr(index, "NEWEST_CODES", 32)
    codes = points(6, 4, seed=3)[torch.randint(6, (900,), generator=seeded(5))]  # crowds, in trees and in the buffer
    memory = LongMemory.of(Memory(Belief(points(900, 2)[None]), Gaussian(codes[None], codes[None])))
    for held in (900, 933):
        seen = (codes == codes[7]).all(1).nonzero()[:, 0]
        assert set(memory.alike(codes[7][None, None], 9).number.tolist()) == {*seen[-9:].tolist(), held - 1}
        memory.write(Memory(Belief(points(33, 2)[None]), Gaussian(codes[None, :33], codes[None, :33])))
        codes = torch.cat([codes, codes[:33]])


def test_a_memory_that_is_hardly_larger_than_what_is_asked_for_is_given_whole():
    memory = LongMemory.of(memory_of(points(20, 2)))
    assert memory.alike(points(4, 3)[None], 5).number.tolist() == list(range(20))
    assert len(memory.alike(points(3, 3)[None], 5).number) < 20


def test_the_last_entries_of_a_long_memory_are_a_memory():
    whole = memory_of(points(30, 2))
    part = LongMemory.of(whole).since(21)
    assert torch.equal(part.place.mean, whole.place.mean[:, 21:])
    assert torch.equal(part.code.log_var, whole.code.log_var[:, 21:])
    with pytest.raises(InputError, match="entries from 30 on of a memory that holds 30"):
        LongMemory.of(whole).since(30)


def test_some_entries_are_a_memory_of_both_kinds():
    memory = memory_of(points(9, 2), variance=points(9, 1)[None])
    number = torch.tensor([7, 0, 3])
    for whole in (memory, LongMemory.of(memory)):
        some = whole.at(number)
        assert all(torch.equal(column, memory.columns[name][:, number]) for name, column in some.columns.items())
        assert some.columns.keys() == memory.columns.keys()
        with pytest.raises(InputError, match="asked for entry 9 of a memory that holds 9"):
            whole.at(torch.tensor([9]))
