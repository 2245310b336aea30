"""App. D as it is written: known answers, and gradients."""

import math

import pytest
import torch

from gtmsm.model.motion import MotionConfig, build_motion
from gtmsm.model.paper_landmarks import PaperNetworks, blend_scan
from gtmsm.model.recognition import LandmarkConfig, Lookup
from gtmsm.pose import space_of


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def number(*values):
    return torch.tensor(values, dtype=torch.float64)


def steps_of(displacement):
    return lambda s, t: s + displacement[:, t]


def as_seen(s, pose):
    return torch.cat([pose, s[..., pose.shape[-1] :]], dim=-1)


def constant(variance):
    return lambda known, t: known.new_full((len(known),), variance)


def test_two_landmarks_pull_the_plan_by_their_weights():
    past = number(3.0, 0.0, 0.0, 2.0).view(1, 2, 2), number(0.1, 0.2).view(1, 2, 1)
    (state, marginal, *_), own = blend_scan(
        space_of(2),
        steps_of(number(1.0, 0.0).view(1, 1, 2)),
        as_seen,
        constant(0.03),
        torch.zeros(1, 2, dtype=torch.float64),
        number(0.4).view(1, 1),
        torch.tensor([[[0, 1]]]),
        number(0.25, 0.5).view(1, 1, 2),
        past,
    )
    # mu_p = (1, 0); to the first it is (2, 0), to the second (-1, 2)
    assert state.flatten().tolist() == pytest.approx([1 + 0.25 * 2 - 0.5 * 1, 0.5 * 2])
    assert marginal.item() == pytest.approx(0.25**2 * 0.4 + 0.25**2 * 0.1 + 0.5**2 * 0.2 + 0.03)
    assert own.item() == pytest.approx(0.03)


def test_a_step_of_this_walk_is_a_landmark_for_those_after_it():
    """Three steps of 1; the third sees what the first saw, and half believes it."""
    nothing = torch.zeros(1, 0, 1, dtype=torch.float64)
    (state, marginal, *_), _ = blend_scan(
        space_of(1),
        steps_of(torch.ones(1, 3, 1, dtype=torch.float64)),
        as_seen,
        constant(0.1),
        torch.zeros(1, 1, dtype=torch.float64),
        torch.zeros(1, 1, dtype=torch.float64),
        torch.zeros(1, 3, 1, dtype=torch.int64),
        number(0.0, 0.0, 0.5).view(1, 3, 1),
        (nothing, nothing),
    )
    assert state.flatten().tolist() == pytest.approx([1, 2, 2])
    assert marginal.flatten().tolist() == pytest.approx([0.1, 0.2, 0.25 * 0.2 + 0.25 * 0.1 + 0.1])


def test_without_weight_a_walk_goes_as_planned():
    displacement, start = drawn(3, 7, 2), drawn(3, 2, seed=1)
    (state, marginal, *_), _ = blend_scan(
        space_of(2),
        steps_of(displacement),
        as_seen,
        constant(0.2),
        start,
        torch.full((3, 1), 0.5, dtype=torch.float64),
        torch.zeros(3, 7, 4, dtype=torch.int64),
        torch.zeros(3, 7, 4, dtype=torch.float64),
        (drawn(3, 5, 2, seed=2), torch.ones(3, 5, 1, dtype=torch.float64)),
    )
    torch.testing.assert_close(state, start[:, None] + displacement.cumsum(1), rtol=1e-13, atol=1e-13)
    expected = 0.5 + 0.2 * torch.arange(1, 8, dtype=torch.float64)
    torch.testing.assert_close(marginal, expected.view(1, 7, 1).expand(3, 7, 1), rtol=1e-13, atol=1e-13)


def test_a_heading_is_pulled_the_shorter_way_round_and_momentum_is_kept():
    past = number(0.0, 0.0, math.pi - 0.1).view(1, 1, 3), number(0.0).view(1, 1, 1)
    (state, *_), _ = blend_scan(
        space_of(3),
        lambda s, t: s,
        as_seen,
        constant(0.1),
        number(0.0, 0.0, 0.1 - math.pi, 7.0).view(1, 4),
        torch.zeros(1, 1, dtype=torch.float64),
        torch.zeros(1, 1, 1, dtype=torch.int64),
        number(0.5).view(1, 1, 1),
        past,
    )
    assert state.flatten().tolist() == pytest.approx([0, 0, -math.pi, 7])


@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradients_agree_with_finite_differences(past, size):
    batch, time, K = 2, 4, 2
    index = torch.randint(0, max(past, 1), (batch, time, K), generator=torch.Generator().manual_seed(0))
    index[:, 2:, 1] = past + torch.arange(time - 2)  # of this very walk

    def scan(start, displacement, variance, beta, poses, variances, scale):
        walk, own = blend_scan(
            space_of(size),
            steps_of(displacement),
            as_seen,
            lambda known, t: (scale * (1 + known.sum(-1))).exp(),
            start,
            variance.exp(),
            index,
            beta.sigmoid(),
            (poses, variances.exp()),
        )
        return walk.state, walk.variance, own

    parts = [drawn(batch, size), drawn(batch, time, size, seed=1), drawn(batch, 1, seed=2)]
    parts += [drawn(batch, time, K, seed=3), drawn(batch, past, size, seed=4), drawn(batch, past, 1, seed=5)]
    parts += [0.1 * drawn(seed=6)]
    assert torch.autograd.gradcheck(scan, [part.requires_grad_() for part in parts])


# ---- the networks


def networks_that_add(*weights, matches):
    """Networks whose log-ratio is a weighted sum of their inputs: distances, variances of entries, that of the plan."""
    networks = PaperNetworks(LandmarkConfig(form="paper", matches=matches)).double().requires_grad_(False)
    first, _, last = networks.spread
    for parameter in (first.weight, first.bias, last.weight):
        parameter.zero_()
    first.weight[0], first.bias[0] = number(*weights), 100.0  # where an ELU is linear
    last.weight[0, 0], last.bias[0] = 1.0, -100.0
    return networks


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ([True, True], 1 * 0 + 2 * 1 + 3 * -1 + 5 * 2 + 7 * -1),
        ([True, False], 1 * 0 + 3 * -1 + 7 * -1),
    ],
)
def test_the_papers_variance_depends_on_distances_on_variances_of_entries_and_on_that_of_the_plan(there, expected):
    networks = networks_that_add(1.0, 2.0, 99.0, 3.0, 5.0, 99.0, 7.0, matches=3)  # the third entry is missing
    distance, known = number(1.0, math.e)[None], number(math.exp(-1), math.exp(2))[None]
    log_ratio = networks.log_ratio(distance, known, torch.tensor([there]), math.exp(-1))
    assert log_ratio.item() == pytest.approx(expected, abs=1e-4)


def test_the_filter_tells_the_network_the_variances_of_the_entries_found():
    """sigma_q^2 = sigma_p^2 sigma_1^2 sigma_2^2, of entries of variances 0.5 and 0.2; beta is 0."""
    networks = networks_that_add(0.0, 0.0, 1.0, 1.0, 0.0, matches=2)
    networks.beta[-1].bias.fill_(-1e9)
    motion = build_motion(MotionConfig(kind="free", noise=0.3), 2).double()
    lookup = Lookup(torch.tensor([[[0, 2]]]), torch.ones(1, 1, 2, dtype=torch.bool), drawn(1, 1, 2).exp())
    past = drawn(1, 3, 2), number(0.5, 77.0, 0.2).view(1, 3, 1)
    track, own = networks.filter(motion, motion.start(1), number(0.4)[None], drawn(1, 1, 2), lookup, past)
    assert own.item() == pytest.approx(0.3**2 * 0.5 * 0.2, rel=1e-4)
    assert track.variance.item() == pytest.approx(0.4 + 0.3**2 * 0.5 * 0.2, rel=1e-4)


def test_weights_are_zero_where_there_is_no_entry():
    networks = PaperNetworks(LandmarkConfig(form="paper", matches=2)).double()
    there = torch.tensor([[[True, False]]])
    beta = networks.weights(Lookup(torch.zeros(1, 1, 2, dtype=torch.int64), there, drawn(1, 1, 2).exp()))
    assert beta.flatten().tolist() == pytest.approx([1 / (1 + math.exp(2.0)), 0.0])  # before anything is learned
