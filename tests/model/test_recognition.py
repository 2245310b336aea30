"""Memory read backwards: what looks like this, and where it was seen."""

import math

import pytest
import torch

from gtmsm.errors import InputError
from gtmsm.model.recognition import Comparison, LandmarkConfig, Lookup, Match, look_up
from gtmsm.pose import space_of
from gtmsm.tensors import LOG_TWO_PI, Gaussian

CODE = 4


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


def codes(batch, n, seed=0):
    return Gaussian(drawn(batch, n, CODE, seed=seed), 0.3 * drawn(batch, n, CODE, seed=seed + 100))


def comparison(heading=False, **settings):
    torch.manual_seed(0)
    chosen = LandmarkConfig(**{"form": "bayes", "width": 16, **settings})
    return Comparison(chosen, CODE, space_of(3 if heading else 2)).double()


# ---- looking up


@pytest.mark.parametrize(("n", "queries", "k"), [(1, 1, 1), (7, 3, 2), (40, 11, 8), (5, 2, 5)])
def test_the_entries_found_are_those_of_an_exhaustive_search(n, queries, k):
    entries, query = codes(3, n), codes(3, queries, seed=1)
    found = look_up(entries, query, k)
    assert found.there.all()
    for i in range(3):
        for t in range(queries):
            distance = [(query.mean[i, t] - entries.mean[i, j]).norm().item() for j in range(n)]
            assert found.index[i, t].tolist() == sorted(range(n), key=distance.__getitem__)[:k]


def test_distances_are_in_units_of_how_sure_both_codes_are():
    entries, query = codes(2, 6), codes(2, 3, seed=1)
    found = look_up(entries, query, 4)
    for i, t, k in [(0, 0, 0), (0, 2, 3), (1, 1, 2)]:
        j = found.index[i, t, k]
        unsure = entries.log_var[i, j].exp() + query.log_var[i, t].exp()
        expected = ((query.mean[i, t] - entries.mean[i, j]) ** 2 / unsure).mean()
        torch.testing.assert_close(found.distance[i, t, k], expected, rtol=1e-12, atol=0)


def test_a_memory_smaller_than_asked_for_gives_all_it_has():
    found = look_up(codes(2, 3), codes(2, 5, seed=1), k=8)
    assert found.index.shape == found.there.shape == found.distance.shape == (2, 5, 3)
    assert all(sorted(each) == [0, 1, 2] for each in found.index.flatten(0, 1).tolist())


@pytest.mark.parametrize("recent", [1, 2, 5])
@pytest.mark.parametrize("first", [0, 4])
def test_a_step_sees_what_came_long_enough_before_it_and_the_frame_just_before(first, recent):
    past, walk = codes(2, first), codes(2, 9, seed=1)
    entries = Gaussian(torch.cat([past.mean, walk.mean], 1), torch.cat([past.log_var, walk.log_var], 1))
    found = look_up(entries, walk, first + 9, first, recent)
    for t in range(9):
        now = first + t
        expected = set(range(now - recent + 1)) | set(range(now)[-1:])
        for i in range(2):
            assert set(found.index[i, t][found.there[i, t]].tolist()) == expected


@pytest.mark.parametrize("recent", [1, 3])
def test_the_last_frame_is_looked_up_however_little_it_looks_like_this_one(recent):
    walk = codes(1, 8)
    walk.mean[0, 6] += 1e6
    found = look_up(walk, walk, 2, first=0, recent=recent)
    assert found.index[0, 7, 0] == 6
    assert found.there[0, 7].all()


def test_what_looks_like_now_is_found_among_what_was_seen_before():
    walk = codes(1, 9)
    walk.mean[0, 8] = walk.mean[0, 2]
    found = look_up(walk, walk, 2, first=0)
    assert found.index[0, 8].tolist() == [7, 2]
    assert found.distance[0, 8, 1] == 0


def test_a_later_frame_changes_nothing_that_was_found_before_it():
    walk, other = codes(2, 12), codes(2, 12)
    other.mean[:, 7:] = drawn(2, 5, CODE, seed=5)
    one, two = (look_up(each, each, 3, first=0) for each in (walk, other))
    for before, after in ((one.there, two.there), (one.index, two.index), (one.distance, two.distance)):
        assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.equal(one.distance[:, 7:], two.distance[:, 7:])


def test_the_first_step_of_all_finds_nothing():
    walk = codes(2, 4)
    found = look_up(walk, walk, 3, first=0)
    assert not found.there[:, 0].any()
    assert found.index[:, 0].eq(0).all() and found.distance.isfinite().all()


def test_searching_has_no_gradient_but_measuring_has():
    entries = Gaussian(drawn(1, 6, CODE).requires_grad_(), drawn(1, 6, CODE, seed=1).requires_grad_())
    found = look_up(entries, codes(1, 2, seed=3), 2)
    found.distance.sum().backward()
    asked = set(found.index.flatten().tolist())
    assert {i for i in range(6) if entries.mean.grad[0, i].abs().sum() > 0} == asked


# ---- comparing


def all_pairs(entries, query):
    return look_up(entries, query, entries.mean.shape[1])


@pytest.mark.parametrize("heading", [False, True])
def test_a_match_has_odds_a_relative_pose_and_its_variances(heading):
    entries, query = codes(2, 5), codes(2, 3, seed=1)
    log_odds, offset, noise = comparison(heading)(entries, query, all_pairs(entries, query))
    assert log_odds.shape == (2, 3, 5)
    assert offset.shape == (2, 3, 5, 3 if heading else 2)
    assert noise.shape == (2, 3, 5, 2 if heading else 1)


@pytest.mark.parametrize("heading", [False, True])
def test_the_same_code_is_the_same_place_whatever_was_learned(heading):
    compare, entries = comparison(heading, grain=0.3), codes(2, 5)
    with torch.no_grad():
        for parameter in compare.parameters():
            parameter.normal_(std=2.0, generator=seeded(1))
    found = look_up(entries, entries, 1)
    _, offset, noise = compare(entries, entries, found)
    assert not offset.any()
    torch.testing.assert_close(noise, torch.full_like(noise, 0.3**2), rtol=1e-12, atol=0)


def test_no_sight_is_surer_than_the_grain():
    compare, entries, query = comparison(grain=0.3), codes(2, 20), codes(2, 20, seed=1)
    with torch.no_grad():
        compare.net[-1].bias[-1] = -100.0
    assert compare(entries, query, all_pairs(entries, query))[2].min() >= 0.3**2


def test_a_network_of_its_own_compares_each_view_with_the_last_one_only():
    compare = comparison(last_grain=0.004)
    entries, query = codes(2, 5), codes(2, 5)
    found = look_up(entries, query, 4, first=0)
    assert found.after is not None and found.after.tolist() == 2 * [[False, True, True, True, True]]
    before = compare(entries, query, found)
    with torch.no_grad():
        compare.last.net[-1].bias += 1.0
    after = compare(entries, query, found)
    changed = (after.log_odds != before.log_odds) & found.there
    assert (before.noise[:, 1:, 0] >= 0.004**2).all() and (before.noise[:, :, 1:] >= 0.1**2).all()
    assert changed[:, 1:, 0].all() and not changed[:, :, 1:].any()
    plain = comparison()
    plain.load_state_dict({name: value for name, value in compare.state_dict().items() if not name.startswith("last")})
    torch.testing.assert_close(plain(entries, query, found).offset[:, :, 1:], after.offset[:, :, 1:])
    picture = look_up(entries, query, 4)  # of which nobody knows when it was taken
    torch.testing.assert_close(compare(entries, query, picture).offset, plain(entries, query, picture).offset)


def test_codes_learn_nothing_from_being_compared():
    entries = Gaussian(drawn(1, 4, CODE).requires_grad_(), drawn(1, 4, CODE, seed=1).requires_grad_())
    compare, query = comparison(), codes(1, 2, seed=3)
    log_odds, offset, noise = compare(entries, query, all_pairs(entries, query))
    (log_odds.sum() + offset.sum() + noise.sum()).backward()
    assert entries.mean.grad is None and entries.log_var.grad is None
    assert all(p.grad.abs().max() > 0 for p in compare.net.parameters())


@pytest.mark.parametrize("heading", [False, True])
def test_the_loss_is_a_density_of_relative_poses(heading):
    """Everything that may be the case adds up to 1, over a box that holds nearly all of it."""
    compare = comparison(heading, reach=1.0)
    size, noise = (3, (0.3, 0.1)) if heading else (2, (0.3,))
    edge = torch.linspace(-6.0, 6.0, 97, dtype=torch.float64)
    axes = [edge, edge, torch.linspace(-math.pi, math.pi, 97, dtype=torch.float64)[:-1]][:size]
    pose = torch.cartesian_prod(*axes)
    offset = torch.tensor([0.5, -0.2, 3.0][:size], dtype=torch.float64).expand_as(pose)
    loss = compare.loss(pose.new_full((len(pose),), 0.7), offset, pose.new_tensor(noise).expand(len(pose), -1), pose)
    cell = math.prod((axis[1] - axis[0]).item() for axis in axes)
    assert (-loss).exp().sum().item() * cell == pytest.approx(1, abs=1e-4)


def test_a_match_that_is_surely_wrong_has_the_density_of_views_that_do_not_match():
    compare = comparison(reach=3.0)
    relative = torch.zeros(1, 2, dtype=torch.float64)
    worst = relative.new_full((1,), -1e3), relative + 50, relative.new_ones(1, 1)
    assert compare.loss(*worst, relative).item() == pytest.approx(compare.indifference)
    assert compare.indifference == pytest.approx(LOG_TWO_PI + 2 * math.log(3.0))


@pytest.mark.parametrize("heading", [False, True])
def test_gradients_of_the_loss_agree_with_finite_differences(heading):
    compare, size = comparison(heading), 3 if heading else 2
    parts = [drawn(5), drawn(5, size, seed=1), drawn(5, size - 1, seed=2).exp(), drawn(5, size, seed=3)]
    assert torch.autograd.gradcheck(compare.loss, [part.requires_grad_() for part in parts])


def test_gradients_of_what_the_network_says_agree_with_finite_differences():
    compare, entries, query = comparison(width=8), codes(1, 3), codes(1, 2, seed=1)
    found, relative = all_pairs(entries, query), drawn(1, 2, 3, 2, seed=2)
    names, values = zip(*((n, p) for n, p in compare.named_parameters() if not n.startswith("trust")), strict=True)

    def loss(*parameters):
        said = torch.func.functional_call(compare, dict(zip(names, parameters, strict=True)), (entries, query, found))
        return compare.loss(*said, relative)

    assert torch.autograd.gradcheck(loss, values, fast_mode=True)


def softplus(x):
    return math.log1p(math.exp(x))


def test_the_loss_of_a_walk_is_that_of_its_pairs_of_strangers_and_of_confidence(monkeypatch):
    """Three steps of 1 along a line; every match says one step further on, with log-odds 0.7 and a variance of 2."""
    compare = comparison(reach=3.0, matches=2)
    with torch.no_grad():
        for layer in (compare.trust[0], compare.trust[2]):
            layer.weight.zero_(), layer.bias.zero_()
        compare.trust[2].bias.fill_(0.4)

    def one_further(entries, query, lookup):
        one = torch.ones(*lookup.index.shape, dtype=torch.float64)
        return Match(0.7 * one, torch.stack([one, 0 * one], -1), 2 * one[..., None])

    for name in ("forward", "step"):
        monkeypatch.setattr(compare, name, one_further)
    walk = codes(2, 3)
    found = look_up(walk, walk, 2, first=0)
    path = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]], dtype=torch.float64).expand(2, 3, 2)

    def pair(length):
        """-log of a mixture of N(1, 2) and N(0, 9) in two dimensions, at this relative position."""
        match = 1 / (1 + math.exp(-0.7))
        told = math.exp(-((length - 1) ** 2) / 4) / (2 * math.pi * 2)
        anywhere = math.exp(-(length**2) / 18) / (2 * math.pi * 9)
        return -math.log(match * told + (1 - match) * anywhere)

    pairs = (pair(1) + pair(1) + pair(2)) / 3  # steps 2 and 1, 3 and 2, 3 and 1
    strangers = softplus(0.7)
    # of six steps, two have recognised the frame before: not the first one, and none that is compared with strangers
    calibration = (2 * softplus(-0.4) + 4 * softplus(0.4)) / 6
    assert compare.walk_loss(walk, found, path).item() == pytest.approx(pairs + strangers + calibration)
    again = compare.walk_loss(walk, found, path, one_further(walk, walk, found))
    assert again.item() == pytest.approx(pairs + strangers + calibration)
    third = compare.walk_loss(walk, found, path, asked=torch.tensor([[2]] * len(path)))
    pairs = (2 * pair(1) + pair(1) + pair(2)) / 4  # the last frame at steps 2 and 3, and all entries at step 3
    assert third.item() == pytest.approx(pairs + strangers + (softplus(-0.4) + softplus(0.4)) / 2)


def test_a_network_that_is_sure_of_the_opposite_learns_from_pairs_of_views_that_are_known_to_overlap():
    compare, relative = comparison(), torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    offset, noise = torch.zeros_like(relative).requires_grad_(), relative.new_full((1, 1), 0.01)
    compare.loss(relative.new_full((1,), -17.0), offset, noise, relative).backward()
    assert offset.grad.abs().max() < 1e-6
    compare.loss(relative.new_full((1,), -17.0), offset, noise, relative, match_weight=0.5).backward()
    assert offset.grad[0].tolist() == pytest.approx([-0.5 * 2.0 / 0.01, 0.0])  # half the slope of a square over 2 noise


def test_pairs_that_a_doubled_step_would_have_made_are_those_two_planned_steps_apart(monkeypatch):
    """A walk along a line: 1, 2, 3, then a step that is dropped, and one back to 2."""
    compare, told = comparison(), []

    def keep(log_odds, offset, noise, relative, told_by):
        told.append((relative[:, :, 0], told_by))
        return relative[..., 0] ** 2

    monkeypatch.setattr(compare, "loss", keep)
    path = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [3.0, 0.0], [2.0, 0.0]], dtype=torch.float64)[None]
    planned = torch.tensor([[1.0, 0], [1, 0], [1, 0], [1, 0], [-1, 0]], dtype=torch.float64)[None]
    # Steps 3 and 4 end at 3, which two steps reach from 1. From -1 and 0 no view is known, and from 4 neither.
    assert compare.doubled_loss(codes(1, 5), path, planned).item() == pytest.approx((4 + 4) / 2)
    ((relative, weight),) = told
    assert relative[0, 2:4].tolist() == [[2.0, 0.0], [2.0, 0.0]] and weight > 0
    assert compare.doubled_loss(codes(1, 5), path, 0 * planned).item() == 0  # who stays cannot do so twice
    path[0, 2, 0], path[0, 3, 0] = 3.25, 3.25  # from 1, two moves were planned by step 3, three by step 4
    expected = (0.5**2 * 2.25**2 + 0.5**3 * 2.25**2) / (0.5**2 + 0.5**3)
    assert compare.doubled_loss(codes(1, 5), path, planned, reckoning=0.5).item() == pytest.approx(expected)


def test_evidence_is_the_odds_that_a_match_is_right_and_within_tolerance():
    compare = comparison(heading=True, tolerance=0.5, tolerance_turn=10.0)
    evidence = compare.evidence(torch.tensor([0.3]), torch.tensor([[0.2, 0.05]]))
    near = 1 - math.exp(-(0.5**2) / (2 * 0.2))
    turned = math.erf(math.radians(10) / math.sqrt(2 * 0.05))
    assert evidence.item() == pytest.approx(0.3 + math.log(near * turned))


def test_a_miss_of_a_full_turn_is_no_miss():
    compare = comparison(heading=True)
    assert compare.right(torch.tensor([0.1, 0.1, 2 * math.pi])) and compare.right(torch.tensor([0.1, 0.1, -0.1]))
    assert not compare.right(torch.tensor([0.1, 0.1, math.pi]))
    assert not compare.right(torch.tensor([0.6, 0.0, 0.0]))


@pytest.mark.parametrize("heading", [False, True])
def test_a_vague_match_is_worth_less_than_a_sharp_one(heading):
    compare = comparison(heading)
    odds = torch.zeros(3, dtype=torch.float64)
    noise = torch.tensor([0.01, 1.0, 100.0], dtype=torch.float64)[:, None].expand(3, 2 if heading else 1)
    evidence = compare.evidence(odds, noise)
    assert evidence[0] > evidence[1] > evidence[2]
    assert evidence[0] <= 0


def test_confidence_teaches_its_own_network_alone():
    compare, entries, query = comparison(), codes(1, 3), codes(1, 2, seed=1)
    found = all_pairs(entries, query)
    log_odds, _, noise = compare(entries, query, found)
    compare.confidence(log_odds, noise, found.distance).sum().backward()
    assert {name.split(".")[0] for name, p in compare.named_parameters() if p.grad is not None} == {"trust"}


def test_a_lookup_that_found_too_little_can_be_compared():
    walk, compare = codes(1, 4), comparison()
    found = look_up(walk, walk, 3, first=0)
    assert isinstance(found, Lookup)
    assert all(said.isfinite().all() for said in compare(walk, walk, found))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"matches": 0}, "matches is 0; look up at least 1 entry"),
        ({"closure": -1}, "closure is -1; give a number of steps, or 0 for never"),
        ({"closure": 8, "form": "paper"}, "closure is 8, but the paper's form cannot close loops"),
        ({"recent": 0}, "recent is 0; the last frame is always looked up"),
        ({"width": 7}, "width is 7; give at least 8"),
        ({"surprise": 0.0}, "surprise is 0.0; give a probability between 0 and 1"),
        ({"surprise": 1.0}, "surprise is 1.0; give a probability between 0 and 1"),
        ({"steady": 0.0}, "steady is 0.0; give a positive number"),
        ({"stray_turn": -1.0}, "stray_turn is -1.0; give a positive number"),
        ({"reach": 0.0}, "reach is 0.0; give a positive number"),
    ],
)
def test_landmarks_nobody_can_recognise_with_are_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        LandmarkConfig(**wrong)
