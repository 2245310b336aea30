"""Recognising places on the way: fast implementations equal the readable one, which equals the filter of the model."""

import itertools
import math

import pytest
import torch
from twins import strided

from gtmsm.kernels.operator import forced
from gtmsm.kernels.scans import landmark_scan_cpu
from gtmsm.kernels.scans.walled_scan import Gate, walled_poses
from gtmsm.model import landmark_filter
from gtmsm.model.landmark_filter import Sights, Surprise, filter_by_steps
from gtmsm.pose import Plane
from gtmsm.tensors import LOG_TWO_PI

SHAPES = list(itertools.product((1, 3), (0, 5), (1, 2, 3), (0, 4), (0, 4), (0, 6)))  # batch, time, S, K, past, hidden
TRITON_SHAPES = [
    (1, 1, 2, 1, 0, 1),
    (1, 7, 2, 1, 0, 8),
    (3, 9, 2, 5, 4, 0),
    (3, 9, 2, 8, 4, 5),
    (2, 0, 2, 3, 2, 4),
    (2, 3, 2, 0, 1, 4),
]
LONG_SHAPES = [(16, 288, 2, 8, 256, 64), (16, 288, 2, 5, 0, 0), (4, 100, 2, 32, 64, 100)]  # too long to interpret
SURPRISE = Surprise(0.1, (0.02,), (0.5,))
ON_A_GPU = torch.cuda.is_available()


def walk(batch, time, size, K, past, hidden, dtype=torch.float64):
    """Tensors of a scan, and which entries are sighted: as many as there are by then."""
    generator = torch.Generator().manual_seed(1000 * batch + 100 * time + 10 * size + K)

    def draw(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    anything = torch.rand(batch, time, past + time, generator=generator)
    written = torch.arange(past + time) < past + torch.arange(time)[:, None]
    likely = torch.where(written, anything, -1.0)
    missing = max(K - past - time, 0)
    index = torch.nn.functional.pad(likely.argsort(-1, descending=True), (0, missing))[..., :K]
    there = torch.nn.functional.pad(likely.sort(-1, descending=True).values, (0, missing), value=-1.0)[..., :K] >= 0
    parts = [
        draw(batch, size),
        0.3 * draw(batch, time, size),
        0.1 * draw(batch, 1).exp(),
        torch.where(there, 1 + draw(batch, time, K), -math.inf),
        0.3 * draw(batch, time, K, size),
        0.1 * draw(batch, time, K, 1).exp(),
        draw(batch, past, size),
        0.1 * draw(batch, past, 1).exp(),
    ]
    gate = [draw(hidden, size), draw(hidden), draw(hidden), draw()] if hidden else []
    return [part.to(dtype) for part in (*parts, *gate)], torch.where(there, index, 0)


def arranged(inputs, index):
    start, displacement, variance, log_odds, offset, noise, past, past_variance, *gate = inputs
    sights = Sights(index, log_odds, offset, noise)
    return start, displacement, Gate(*gate) if gate else None, variance, sights, (past, past_variance), SURPRISE


def filter_positions(*arguments):
    """Poses and variances; of slips it learns nothing, and watches no step."""
    track = landmark_filter.filter_positions(*arguments)
    assert track.slips is None and track.watched is None
    return tuple(track[:2])


def readable(*arguments):
    with forced("readable"):
        return filter_positions(*arguments)


def by_steps(start, displacement, gate, variance, sights, past, surprise):
    """The filter of any motion, along the same steps."""

    def move(s, t):
        q = s + displacement[:, t]
        return q if gate is None else s + displacement[:, t] * gate(q)[..., None]

    space = Plane(start.shape[-1])
    return filter_by_steps(space, move, lambda s, pose: pose, start, variance, sights, past, surprise)[:2]


def assert_same(one, other, **tolerance):
    for name, a, b in zip(("poses", "variances"), one, other, strict=True):
        torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_numpy_scan_the_readable_one_and_the_filter_by_steps_are_the_same(shape):
    arguments = arranged(*walk(*shape))
    expected = by_steps(*arguments)
    for scan in (filter_positions, readable):
        assert_same(scan(*arguments), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("shape", [(1, 7, 1, 1, 0, 6), (3, 7, 2, 5, 4, 6), (3, 33, 2, 8, 16, 0)])
def test_float32_is_as_good_as_float32_can_be(shape):
    inputs, index = walk(*shape, dtype=torch.float32)
    made = filter_positions(*arranged(inputs, index))
    assert all(part.dtype == torch.float32 for part in made)
    exact = by_steps(*arranged([x.double() for x in inputs], index))
    assert_same(made, [part.float() for part in exact], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 3, 1, 1, 0, 0), (2, 4, 2, 3, 2, 0), (1, 4, 2, 2, 1, 3), (1, 4, 3, 2, 1, 3)])
def test_gradients_agree_with_finite_differences(shape):
    inputs, index = walk(*shape)
    leaves = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(lambda *leaves: filter_positions(*arranged(leaves, index)), leaves)


def test_without_gradients_a_cpu_gets_the_numpy_scan(monkeypatch):
    asked = []
    original = landmark_scan_cpu._walk
    monkeypatch.setattr(landmark_scan_cpu, "_walk", lambda *inputs: asked.append(1) or original(*inputs))
    inputs, index = walk(2, 3, 2, 4, 1, 4)
    leaves = [x.requires_grad_() for x in inputs]
    filter_positions(*arranged(leaves, index))
    assert asked == []
    with torch.no_grad():
        filter_positions(*arranged(leaves, index))
    assert asked == [1]


@pytest.mark.parametrize("hidden", [0, 6])
def test_pytorch_accepts_its_registration(hidden):
    start, d, gate, variance, sights, past, surprise = arranged(*walk(2, 3, 2, 4, 1, hidden))
    numbers = surprise.chance, surprise.planned[0], surprise.stray[0]
    arguments = start, d, *(gate or [None] * 4), variance, *sights, *past, *numbers
    torch.library.opcheck(torch.ops.gtmsm.landmark_scan.default, arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [1, 3, 32])
def test_who_recognises_nothing_walks_between_walls_to_the_bit(batch, dtype):
    inputs, index = walk(batch, 33, 2, 4, 3, 16, dtype)
    inputs[3] = torch.full_like(inputs[3], -math.inf)
    start, d, *_ = inputs
    poses, _ = filter_positions(*arranged(inputs, index))
    assert torch.equal(poses, walled_poses(start, d, 0 * d, *inputs[8:]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_who_recognises_nothing_adds_up_steps_and_is_less_and_less_sure(dtype):
    inputs, index = walk(3, 33, 2, 4, 3, 0, dtype)
    inputs[3] = torch.full_like(inputs[3], -math.inf)
    start, d, variance, *_ = inputs
    poses, variances = filter_positions(*arranged(inputs, index))
    assert torch.equal(poses, by_steps(*arranged(inputs, index))[0])
    torch.testing.assert_close(poses, start[:, None] + d.cumsum(1), rtol=1e-5, atol=1e-5)
    grown = variance[:, None] + (0.9 * 0.02 + 0.1 * 0.5) * torch.arange(1, 34, dtype=dtype)[:, None]
    torch.testing.assert_close(variances, grown, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hidden", [0, 6])
def test_what_was_never_seen_has_no_gradient_and_no_nan(hidden):
    inputs, index = walk(3, 7, 2, 5, 2, hidden)
    inputs[3] = torch.full_like(inputs[3], -math.inf)
    leaves = [x.requires_grad_() for x in inputs]
    made = filter_positions(*arranged(leaves, index))
    gradients = torch.autograd.grad(made[0].sum() + made[1].sum(), leaves)
    assert all(part.isfinite().all() for part in (*made, *gradients))
    assert not any(part.any() for part in gradients[3:8])


def test_what_comes_later_changes_nothing_before_it():
    inputs, index = walk(3, 9, 2, 3, 4, 5)
    poses, variances = filter_positions(*arranged(inputs, index))
    changed = [x.clone() for x in inputs]
    for part in changed[3:6]:
        part[:, 5:] *= 1.5
    index = index.clone()
    index[:, 5:] = torch.tensor([0, 2, 5])
    later_poses, later_variances = filter_positions(*arranged(changed, index))
    assert torch.equal(poses[:, :5], later_poses[:, :5])
    assert torch.equal(variances[:, :5], later_variances[:, :5])
    assert (poses[:, 5:] != later_poses[:, 5:]).all()


def one_look(log_odds, entries, noise, surprise, scan):
    """A step along the first axis from an origin of variance 0.5, and a look at entries of variance 0.25."""
    entries = torch.tensor(entries, dtype=torch.float64)[None]
    _, K, size = entries.shape
    ones = torch.ones(1, 1, K, 1, dtype=torch.float64)
    sights = Sights(torch.arange(K)[None, None], log_odds * ones[..., 0], 0 * ones.expand(1, 1, K, size), noise * ones)
    start, d = entries.new_zeros(1, size), torch.eye(size, dtype=torch.float64)[None, :1]
    poses, variances = scan(start, d, None, 0.5 * ones[:, 0, 0], sights, (entries, 0.25 * ones[:, 0]), surprise)
    return poses[0, 0], variances[0, 0]


scans = pytest.mark.parametrize("scan", [filter_positions, readable, by_steps])
EVEN = Surprise(0.5, (0.75,), (0.75,))  # 0.25 was added since the entries, either way a step adds 0.75: 1 is free


@scans
def test_one_sight_that_is_surely_right_is_where_the_agent_is(scan):
    pose, variance = one_look(1e6, [[3.0, -2.0]], 1e-12, EVEN, scan)
    torch.testing.assert_close(pose, pose.new_tensor([3, -2]))
    torch.testing.assert_close(variance, variance.new_tensor([0.25]))


@scans
def test_a_noisy_sight_is_met_half_way(scan):
    # gain 1 / (1 + 1); variance of the entry and half the noise, nothing between hypotheses
    pose, variance = one_look(1e6, [[3.0, -2.0]], 1.0, EVEN, scan)
    torch.testing.assert_close(pose, pose.new_tensor([2, -1]))
    torch.testing.assert_close(variance, variance.new_tensor([0.75]))


@scans
def test_two_sights_left_and_right_of_the_plan_leave_it_in_the_middle(scan):
    # each half way to a sight at distance 1: 0.25 / 2 between them, per axis, beside 0.25 of entries and 0.5 of noise
    pose, variance = one_look(1e6, [[1.0, 1.0], [1.0, -1.0]], 1.0, EVEN, scan)
    torch.testing.assert_close(pose, pose.new_tensor([1, 0]))
    torch.testing.assert_close(variance, variance.new_tensor([0.875]))


@pytest.mark.parametrize(("scan", "size"), [*itertools.product((filter_positions, readable), (1, 2, 3)), (by_steps, 2)])
def test_a_sight_as_likely_as_none_moves_the_plan_by_half_as_much(scan, size):
    # one sight at distance 1 under a total variance of 2: log odds undo the density it has there
    even = 0.25 + 0.5 * size * (LOG_TWO_PI + math.log(2))
    plan, ahead = torch.eye(size, dtype=torch.float64)[[0, -1]]
    pose, variance = one_look(even, [(plan + ahead).tolist()], 1.0, EVEN, scan)
    torch.testing.assert_close(pose, plan + 0.25 * ahead)
    # none: 0.5 + 0.75; the sight: 0.25 + 0.5; between 0 and 0.5 at even odds: 0.25^2, shared by all axes
    torch.testing.assert_close(variance, variance.new_tensor([0.5 * 1.25 + 0.5 * 0.75 + 0.0625 / size]))


@scans
def test_a_sight_far_from_the_plan_speaks_for_a_step_that_went_otherwise(scan):
    # 100 standard deviations of a step as planned, but one of another: gain 100 / 101 and not 0.26 / 1.26
    pose, _ = one_look(1e6, [[11.0, 0.0]], 1.0, Surprise(0.01, (0.01,), (99.75,)), scan)
    torch.testing.assert_close(pose, pose.new_tensor([1 + 10 * 100 / 101, 0]), rtol=1e-6, atol=0)


@scans
def test_a_noisy_sight_of_the_step_just_before_hardly_moves_who_does_not_know_where_that_was(scan):
    # whatever was unsure then still is, alike for both: 1 / 99 is free beside noise of 1, and 0.01 of the way from
    # (2, 0) to (4, -2) is gone
    d = torch.tensor([[[1, 0], [1, 0]]], dtype=torch.float64)
    index, log_odds = torch.zeros(1, 2, 1, dtype=torch.long), d.new_tensor([-math.inf, 1e6]).view(1, 2, 1)
    sights = Sights(index, log_odds, d.new_tensor([3, -2]).expand(1, 2, 1, 2), d.new_ones(1, 2, 1, 1))
    start, nothing = d.new_zeros(1, 2), (d.new_zeros(1, 0, 2), d.new_zeros(1, 0, 1))
    small = Surprise(0.5, (1 / 99,), (1 / 99,))
    poses, variances = scan(start, d, None, d.new_full((1, 1), 1e4), sights, nothing, small)
    torch.testing.assert_close(poses[0], d.new_tensor([[1, 0], [2.02, -0.02]]))
    torch.testing.assert_close(variances[0], d.new_tensor([[1e4 + 1 / 99], [1e4 + 1 / 99 + 0.01]]), rtol=1e-12, atol=0)


@scans
def test_an_entry_less_sure_than_the_agent_leaves_what_the_step_adds_free(scan):
    # 0.5 of the agent, 2 of the entry, 0.75 of the step: a gain of 0.75 / (0.75 + 0.25), whatever the first two are
    leaves = [torch.full((1, 1, 1), x, dtype=torch.float64, requires_grad=True) for x in (0.5, 2.0, 5.0)]
    variance, known, seen = leaves
    ones = torch.ones_like(known)
    sights = Sights(torch.zeros(1, 1, 1, dtype=torch.long), 1e6 * ones, 0 * ones[None], 0.25 * ones[None])
    poses, variances = scan(0 * ones[0], ones, None, variance[0], sights, (seen, known), EVEN)
    torch.testing.assert_close(poses, 4 * ones)  # from 1 to 5, three quarters of the way
    torch.testing.assert_close(variances, (2 + 0.75 * 0.25) * ones)
    assert [x.item() for x in torch.autograd.grad(poses.sum(), leaves, retain_graph=True)] == [0, 0, 0.75]
    assert [x.item() for x in torch.autograd.grad(variances.sum(), leaves[:2])] == [0, 1]


@scans
def test_coming_back_to_an_own_step_closes_the_loop(scan):
    # round a square, the last side of it wrong; what is seen at its end is what was seen after the first step
    d = torch.tensor([[[1, 0], [0, 1], [-1, 0], [0, -1], [1.5, 0.5]]], dtype=torch.float64)
    index, log_odds = torch.zeros(1, 5, 1, dtype=torch.long), torch.full((1, 5, 1), -math.inf, dtype=torch.float64)
    log_odds[0, 4] = 1e6
    offset, noise = torch.zeros(1, 5, 1, 2, dtype=torch.float64), torch.full((1, 5, 1, 1), 1e-12, dtype=torch.float64)
    start, nothing = d.new_zeros(1, 2), (d.new_zeros(1, 0, 2), d.new_zeros(1, 0, 1))
    sights = Sights(index, log_odds, offset, noise)
    poses, variances = scan(start, d, None, d.new_zeros(1, 1), sights, nothing, SURPRISE)
    torch.testing.assert_close(poses[:, 4], poses[:, 0])
    torch.testing.assert_close(variances[:, 4], variances[:, 0])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-2), (torch.float64, 1e-9)])
def test_far_from_the_origin_answers_are_the_same(dtype, tolerance):
    inputs, index = walk(3, 17, 2, 5, 8, 0, dtype)
    poses, variances = filter_positions(*arranged(inputs, index))
    for place in (0, 6):  # start, past
        inputs[place] = inputs[place] + 1e4
    far_poses, far_variances = filter_positions(*arranged(inputs, index))
    torch.testing.assert_close(far_poses - 1e4, poses, rtol=0, atol=tolerance)
    torch.testing.assert_close(far_variances, variances, rtol=0, atol=tolerance)


def test_inputs_may_be_strided_and_expanded():
    inputs, index = walk(1, 11, 2, 5, 4, 6)
    spread = [strided(x.expand(3, *x.shape[1:])) for x in inputs[:8]] + [strided(x) for x in inputs[8:11]] + inputs[11:]
    arguments = arranged(spread, strided(index.expand(3, 11, 5)))
    assert_same(filter_positions(*arguments), by_steps(*arguments), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("batch", "time"), [(1, 6), (6, 1), (1, 1), (3, 4)])
def test_inputs_are_left_alone_and_answers_belong_to_the_caller(batch, time):
    inputs, index = walk(batch, time, 2, 1, 1, 4)
    kept = [x.clone() for x in inputs]
    for part in filter_positions(*arranged(inputs, index)):
        part.zero_()
    assert all(torch.equal(one, other) for one, other in zip(inputs, kept, strict=True))


@pytest.mark.parametrize("entry", [-1, 9])
def test_entries_that_are_not_on_the_map_are_refused(entry):
    inputs, index = walk(2, 5, 2, 3, 4, 0)
    index[1, 2, 0] = entry
    with pytest.raises(IndexError, match=f"{entry}.*on a map of 9"):
        filter_positions(*arranged(inputs, index))


def by_triton(*arguments):
    with forced("cuda"):
        return filter_positions(*arguments)


def for_triton(device, *shape):
    inputs, index = walk(*shape, dtype=torch.float32)
    gate = [0.5 * x for x in inputs[8:]]
    return [x.to(device) for x in (*inputs[:8], *gate)], index.to(device)


@pytest.mark.parametrize("shape", TRITON_SHAPES + (LONG_SHAPES if ON_A_GPU else []))
def test_the_triton_scan_equals_the_filter_by_steps(shape, triton_device):
    inputs, index = for_triton(triton_device, *shape)
    exact = by_steps(*arranged([x.double() for x in inputs], index))
    assert_same(by_triton(*arranged(inputs, index)), [part.float() for part in exact], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("hidden", [0, 6])
def test_the_triton_scan_has_no_nan_where_nothing_was_seen(hidden, triton_device):
    inputs, index = for_triton(triton_device, 3, 7, 2, 5, 2, hidden)
    inputs[3] = torch.full_like(inputs[3], -math.inf)
    arguments = arranged(inputs, index)
    assert_same(by_triton(*arguments), by_steps(*arguments), rtol=1e-4, atol=1e-4)


def test_the_triton_scan_takes_strided_and_expanded_inputs(triton_device):
    inputs, index = for_triton(triton_device, 1, 6, 2, 3, 4, 5)
    spread = [strided(x.expand(4, *x.shape[1:])) for x in inputs[:8]] + inputs[8:]
    arguments = arranged(spread, strided(index.expand(4, 6, 3)))
    assert_same(by_triton(*arguments), by_steps(*arguments), rtol=1e-4, atol=1e-4)


def test_a_gpu_gets_the_triton_scan_and_can_keep_it_in_a_graph(in_a_graph):
    inputs, index = for_triton("cuda", 4, 33, 2, 5, 8, 16)
    warm, replayed = in_a_graph(lambda: list(filter_positions(*arranged(inputs, index))))
    assert_same(replayed, warm, rtol=0, atol=0)


def test_the_triton_scan_is_given_no_empty_batch_and_no_other_size(triton_device):
    inputs, index = for_triton(triton_device, 1, 3, 2, 2, 4, 5)
    poses, variances = by_triton(*arranged([*(x[:0] for x in inputs[:8]), *inputs[8:]], index[:0]))
    assert poses.shape == (0, 3, 2) and variances.shape == (0, 3, 1)
    arguments = arranged(*for_triton(triton_device, 2, 4, 3, 2, 4, 5))
    assert_same(by_triton(*arguments), readable(*arguments), rtol=0, atol=0)
