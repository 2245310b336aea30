"""Finding the motion before refining it."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from gtmsm.data.clip import Clip
from gtmsm.data.record import one_hot, record
from gtmsm.errors import InputError
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.motion import Motion, MotionConfig, Scout
from gtmsm.pose import Plane, PlaneWithHeading
from gtmsm.tensors import Gaussian
from gtmsm.training.prospect import (
    ProspectConfig,
    _unlike,
    _verdict_of_restarts,
    cross_entropy_search,
    match_codes,
    prospect,
    retrieval_score,
    scan_angles,
)
from gtmsm.worlds.floorplan import draw_floorplans
from gtmsm.worlds.image_walk import MOVES, ImageWalk, ImageWalkConfig
from gtmsm.worlds.physics import ACTIONS
from gtmsm.worlds.rooms import Rooms, RoomsConfig
from gtmsm.worlds.textures import load_textures
from gtmsm.worlds.walkers import PoissonWalker, SpinWalker, SpinWalkerConfig

BRIEF = {"candidates": 256, "rounds": 20, "restarts": 2, "clips": 16, "tau": 24, "horizon": 8}
UP, DOWN, LEFT, RIGHT, STAY = range(5)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def world_of():
    """Images so large that a short walk from the centre meets no wall, and of noise: no two crops are alike."""
    images = torch.randint(0, 256, (6, 3, 128, 128), generator=seeded(), dtype=torch.uint8)
    return ImageWalk(images, ImageWalkConfig(size=128))


def source_of(world):
    walker = PoissonWalker()
    return lambda n, steps, generator: record(world, walker, n, steps, generator)


def model_that_sees(kind="walled"):
    """A model whose codes tell crops apart: a random projection of pixels does, once it is sure of itself."""
    torch.manual_seed(0)
    model = WorldModel(WorldModelConfig(vae=FrameVAEConfig(width=64), motion=MotionConfig(kind=kind)), (3, 8, 8), 5)
    last = model.vae.encoder[-1]
    with torch.no_grad():
        last.weight[:16] *= 10
        last.weight[16:] = 0
        last.bias[16:] = -3.0
    return model


def test_a_search_finds_the_top_of_a_hill():
    top = torch.tensor([0.8, -1.3, 0.4])
    search = ProspectConfig(candidates=256, rounds=20, restarts=1, length=0)
    find = cross_entropy_search(lambda v: -(v - top).square().sum(1), 3, search, seeded())
    torch.testing.assert_close(find.vector, top, rtol=0, atol=0.05)
    assert find.score == pytest.approx(0, abs=0.01)


def test_a_search_of_fixed_length_finds_the_best_direction():
    direction = torch.tensor([0.6, 0.0, -0.8, 0.0])
    find = cross_entropy_search(lambda v: v @ direction, 4, ProspectConfig(candidates=256, restarts=1), seeded())
    assert find.vector.norm().item() == pytest.approx(1.4, rel=1e-5)
    torch.testing.assert_close(find.vector, 1.4 * direction, rtol=0, atol=0.1)


def test_of_two_mirrored_tops_a_search_settles_on_one():
    top = torch.tensor([1.0, -0.7])
    search = ProspectConfig(candidates=256, rounds=20, restarts=1, length=0)
    find = cross_entropy_search(
        lambda v: -torch.minimum((v - top).square().sum(1), (v + top).square().sum(1)), 2, search, seeded()
    )
    assert min((find.vector - top).norm(), (find.vector + top).norm()) < 0.05


def test_a_search_that_knows_its_scale_keeps_it_and_its_signs():
    top = torch.tensor([0.15, -0.02, 0.3])
    search = ProspectConfig(candidates=256, rounds=20, restarts=1)
    find = cross_entropy_search(lambda v: -(v - top).square().sum(1), 3, search, seeded(), (0.2, 0.1, 0.2))
    torch.testing.assert_close(find.vector, top, rtol=0, atol=0.01)


def test_of_a_walk_and_its_mirror_image_a_search_settles_on_one():
    top = torch.tensor([0.15, -0.15, 0.1, 0.05])  # turns, then ahead and aside
    mirrored = top * torch.tensor([-1.0, -1.0, 1.0, -1.0])
    search = ProspectConfig(candidates=256, rounds=20, restarts=1)
    find = cross_entropy_search(
        lambda v: -torch.minimum((v - top).square().sum(1), (v - mirrored).square().sum(1)),
        4,
        search,
        seeded(),
        (0.2, 0.2, 0.1, 0.1),
    )
    assert min((find.vector - top).norm(), (find.vector - mirrored).norm()) < 0.01


def test_of_several_restarts_the_best_wins():
    scores = []

    def score(vectors):
        scores.append(-vectors.square().sum(1))
        return scores[-1]

    find = cross_entropy_search(score, 2, ProspectConfig(candidates=32, rounds=1, restarts=5, length=0), seeded())
    assert find.score == pytest.approx(max(s.max().item() for s in scores))


def test_motions_are_the_same_up_to_a_linear_map_and_not_where_an_axis_is_lost():
    walk = torch.randn(50, 2, generator=seeded(1))
    turned_and_stretched = walk @ torch.tensor([[0.3, 2.0], [-1.0, 0.4]])
    folded = walk[:, :1] * torch.tensor([1.0, 0.5])
    other = torch.randn(50, 2, generator=seeded(2))
    still = torch.zeros(50, 2)
    unlike = _unlike(walk, torch.stack([turned_and_stretched, folded, other, still]))
    assert unlike[0] < 1e-9 and 0.3 < unlike[1] < 0.7 and unlike[2] > 0.8 and unlike[3] == 1
    torch.testing.assert_close(_unlike(folded, walk[None]), unlike[1:2])  # whichever of the two is the best find


@pytest.mark.parametrize(
    ("scores", "same", "chance", "said"),
    [
        ([-7.0, -7.1, -7.2], [True, True, True], 0.01, "motion found: 3 of 3 searches ended there (1.0% of"),
        ([-7.0, -7.1, -9.0], [True, True, False], 0.01, "motion found: 2 of 3"),
        ([-7.0, -7.2, -7.1], [True, True, False], 0.01, "motion not found for certain: 2 of 3"),
        ([-7.0, -9.0, -9.1], [True, False, False], 0.01, "motion not found for certain: 1 of 3"),
        ([-7.0, -7.1, -7.2], [True, True, True], 1.0, "motion not found for certain: 3 of 3"),
    ],
    ids=["all agree", "another is worse", "another is as good", "found once", "all motions are the same"],
)
def test_a_search_is_as_sure_as_its_restarts_agree(scores, same, chance, said):
    verdict = _verdict_of_restarts(torch.tensor(scores), torch.tensor(same), chance)
    assert verdict.startswith(said)
    others = [score for score, alike in zip(scores, same, strict=True) if not alike]
    other = f"the best other motion {max(others):.2f}" if others else "no search found another one"
    assert verdict.endswith(f"score -7.00; {other}")


def test_restarts_on_a_score_that_says_nothing_do_not_agree():
    chance = seeded(7)
    search = ProspectConfig(candidates=64, rounds=5, restarts=3)
    find = cross_entropy_search(lambda v: torch.randn(len(v), generator=chance), 10, search, seeded())
    assert find.verdict.startswith("motion not found for certain: 1 of 3 searches")


def test_a_single_search_confirms_nothing():
    find = cross_entropy_search(lambda v: v[:, 0], 5, ProspectConfig(candidates=64, rounds=3, restarts=1), seeded())
    assert find.verdict == f"motion not confirmed by a single search, score {find.score:.2f}"


def test_the_same_seed_finds_the_same():
    search = ProspectConfig(candidates=64, rounds=3, restarts=2)
    finds = [cross_entropy_search(lambda v: v[:, 0], 5, search, seeded(seed)) for seed in (1, 1, 2)]
    assert torch.equal(finds[0].vector, finds[1].vector)
    assert not torch.equal(finds[0].vector, finds[2].vector)


def codes_and_actions():
    clip = record(world_of(), PoissonWalker(), 12, 40, seeded(4))
    return model_that_sees().vae.encode(clip.x), clip


def test_the_true_motion_scores_better_than_any_of_many_random_ones():
    code, clip = codes_and_actions()
    true = torch.tensor(MOVES).T.float()
    true = 1.4 * true / true.norm()
    random = torch.randn(200, 2, 5, generator=seeded(5))
    random = 1.4 * random / random.flatten(1).norm(dim=1).view(-1, 1, 1)
    moves = torch.cat([true[None], random])
    places = torch.einsum("nsa,bta->nbts", moves, clip.a).cumsum(2)
    scores = retrieval_score(places, match_codes(code, 32), tau=32, neighbours=5, delta=1e-3)
    assert scores.shape == (201,)
    assert scores.argmax() == 0
    assert scores[0] > scores[1:].max() + 1


def test_turning_and_mirroring_a_pose_space_changes_no_score():
    code, clip = codes_and_actions()
    places = clip.true_pose[None].double()
    turn = torch.tensor([[math.cos(1.0), -math.sin(1.0)], [math.sin(1.0), math.cos(1.0)]], dtype=torch.float64)
    flip = torch.tensor([[1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
    all_ways = torch.cat([places, places @ turn.T, places @ flip, -places])
    scores = retrieval_score(all_ways, match_codes(code, 32), tau=32, neighbours=32, delta=1e-3)
    torch.testing.assert_close(scores, scores[:1].expand(4), rtol=1e-5, atol=1e-5)


def test_a_score_is_that_of_a_plain_loop():
    places = torch.randn(3, 2, 9, 2, dtype=torch.float64, generator=seeded(1))
    code = Gaussian(*(torch.randn(2, 9, 4, dtype=torch.float64, generator=seeded(s)) for s in (2, 3)))
    expected = torch.zeros(3, dtype=torch.float64)
    for n in range(3):
        for i in range(2):
            for t in range(6, 9):
                distance2 = (places[n, i, :6] - places[n, i, t]).square().sum(-1)
                near = distance2.argsort()[:3]
                weight = 1 / (distance2[near] + 0.01)
                match = code[i, near].log_prob(code.mean[i, t]) - code[i, t].log_prob(code.mean[i, t])
                expected[n] += ((weight / weight.sum()) * match.clamp_min(-30).exp()).sum().log() / 6
    scores = retrieval_score(places, match_codes(code, 6), tau=6, neighbours=3, delta=0.01)
    torch.testing.assert_close(scores, expected, rtol=1e-10, atol=1e-10)


def test_by_their_spread_codes_match_as_far_as_they_are_near():
    code = Gaussian(*(torch.randn(2, 9, 4, dtype=torch.float64, generator=seeded(s)) for s in (2, 3)))
    match = match_codes(code, 6, "spread")
    distance2 = (code.mean[:, 6:, None] - code.mean[:, None, :6]).square().sum(-1)
    torch.testing.assert_close(match, -10 * distance2 / distance2.mean(), rtol=1e-10, atol=1e-12)
    assert match.mean().item() == pytest.approx(-10)


@pytest.mark.parametrize("yardstick", ["variance", "spread"])
def test_a_code_matches_itself_best(yardstick):
    code = Gaussian(torch.randn(1, 4, 3, generator=seeded(1)).repeat(1, 2, 1), torch.full((1, 8, 3), -4.0))
    match = match_codes(code, 4, yardstick)[0]
    torch.testing.assert_close(match.diagonal(), torch.zeros(4), rtol=0, atol=1e-4)
    assert match.argmax(-1).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["free", "walled"])
def test_prospecting_finds_moves_that_undo_each_other(kind):
    model = model_that_sees(kind)
    find = prospect(model, source_of(world_of()), ProspectConfig(**BRIEF), seeded(2))
    M = model.motion.M.detach()
    torch.testing.assert_close(M.flatten(), find.vector)
    assert find.verdict.startswith("motion found: 2 of 2 searches ended there") and "no search found" in find.verdict
    step = M.norm(dim=0)[:STAY].mean()
    assert (M[:, UP] + M[:, DOWN]).norm() < 0.4 * step
    assert (M[:, LEFT] + M[:, RIGHT]).norm() < 0.4 * step
    assert M[:, STAY].norm() < 0.4 * step
    sine = torch.det(M[:, [UP, LEFT]]) / (M[:, UP].norm() * M[:, LEFT].norm())
    assert sine.abs() > 0.3, "two axes must not fold onto each other"


def test_prospecting_among_frames_of_noise_is_said_to_find_nothing_for_certain():
    walked, chance = source_of(world_of()), seeded(9)

    def noise(n, steps, generator):
        clip = walked(n, steps, generator)
        return replace(clip, x=torch.rand(clip.x.shape, generator=chance))

    find = prospect(model_that_sees(), noise, ProspectConfig(**BRIEF), seeded(2))
    assert find.verdict.startswith("motion not found for certain: 1 of 2 searches"), find.verdict


def test_prospecting_leaves_walls_and_codes_alone():
    model = model_that_sees()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    prospect(model, source_of(world_of()), ProspectConfig(candidates=32, rounds=1, restarts=1, clips=2), seeded(2))
    changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["motion.M"]


def test_prospecting_in_chunks_finds_the_same():
    search = ProspectConfig(candidates=64, rounds=2, restarts=1, clips=4)
    finds = [prospect(model_that_sees(), source_of(world_of()), search, seeded(2), chunk=chunk) for chunk in (7, 64)]
    torch.testing.assert_close(finds[0].vector, finds[1].vector, rtol=1e-4, atol=1e-4)


class Compass(Motion):
    """Every action is a step of length 1 in a direction of its own; staying is known to be staying."""

    state_size, space = 2, Plane(2)

    def __init__(self):
        super().__init__(MotionConfig())
        self.angle = nn.Parameter(torch.zeros(4))

    def step(self, s, a):
        directions = torch.stack([self.angle.cos(), self.angle.sin()], dim=-1)
        return s + a[..., :4] @ directions

    def unroll(self, start, a, noise=None):
        return self.step(start[:, None], a.cumsum(1))

    def scout(self):
        return Scout(self, ("angle",))


def test_prospecting_finds_whatever_parameters_a_motion_names():
    model = model_that_sees()
    model.motion = Compass()
    prospect(model, source_of(world_of()), ProspectConfig(**BRIEF, length=0), seeded(2))
    angle = model.motion.angle.detach()
    assert (angle[UP] - angle[DOWN]).cos() < -0.97, angle
    assert (angle[LEFT] - angle[RIGHT]).cos() < -0.97, angle
    assert (angle[UP] - angle[LEFT]).sin().abs() > 0.3, angle


# ---- angles


def peaks(rates, waves=400):
    """A score that is 1 at these rates, of either sign, and elsewhere many small and narrow peaks."""

    def score(vectors):
        off = vectors.abs() - torch.tensor(rates)
        comb = torch.cos(off[..., None] * torch.arange(1, waves)).mean(-1) + 0.2 * torch.cos(41 * off)
        return comb[:, torch.tensor(rates) > 0].sum(1)

    return score


def test_a_scan_finds_the_right_one_of_many_narrow_peaks():
    find = scan_angles(peaks((0.0, 0.153, 0.4)), torch.tensor([False, True, True]), ProspectConfig(angles=2_048))
    torch.testing.assert_close(find.vector.abs(), torch.tensor([0.0, 0.153, 0.4]), rtol=0, atol=1e-4)
    assert find.verdict.startswith("motion found: 4 of 4 scans ended there"), (
        find.verdict
    )  # as a pair they would have one angle


@pytest.mark.parametrize("rates", [(0.153, 0.4, 0.7, 1.0, 1.3, 1.6), (0.153, 0.153, 0.7, 0.7, 1.3)])
def test_any_number_of_turns_can_be_found_for_certain(rates):
    find = scan_angles(peaks(rates), torch.ones(len(rates), dtype=torch.bool), ProspectConfig(angles=1_024))
    torch.testing.assert_close(find.vector.abs(), torch.tensor(rates), rtol=0, atol=1e-3)
    assert find.verdict.startswith("motion found: "), find.verdict


def test_where_a_turn_and_its_mirror_image_score_the_same_turns_cancel():
    find = scan_angles(peaks((0.153, 0.153)), torch.tensor([True, True]), ProspectConfig(angles=2_048))
    torch.testing.assert_close(find.vector.abs(), torch.tensor([0.153, 0.153]), rtol=0, atol=1e-4)
    assert find.vector.prod() < 0


def test_turns_of_which_every_multiple_is_as_good_are_not_found_for_certain():
    find = scan_angles(
        lambda v: torch.cos(2 * math.pi * v / 0.3).sum(1), torch.tensor([True, True]), ProspectConfig(angles=2_048)
    )
    assert find.verdict.startswith("motion not found for certain"), find.verdict
    assert "has 100% of its lead" in find.verdict


def test_a_scan_too_coarse_to_tell_angles_apart_finds_none_for_certain():
    find = scan_angles(
        lambda v: -(v.abs() - math.pi / 2).abs().sum(1), torch.tensor([True, True]), ProspectConfig(angles=16)
    )
    assert find.verdict.startswith("motion not found for certain"), find.verdict


def test_scans_of_a_score_that_says_nothing_do_not_agree():
    chance = seeded(7)
    find = scan_angles(
        lambda v: torch.randn(len(v), generator=chance), torch.tensor([True, True]), ProspectConfig(angles=512)
    )
    assert find.verdict.startswith("motion not found for certain: 1 of 5 scans"), find.verdict


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_a_score_that_is_the_same_for_all_turns_finds_none(noise):
    chance = seeded(7)
    find = scan_angles(
        lambda v: noise * torch.randn(len(v), generator=chance) - 3,
        torch.tensor([True, True]),
        ProspectConfig(angles=64),
    )
    assert find.verdict.startswith("motion not found for certain"), find.verdict


def test_where_no_action_is_used_no_turn_is_found():
    find = scan_angles(lambda v: v.sum(1), torch.tensor([False, False]), ProspectConfig(angles=16))
    assert find.verdict.startswith("motion not found: no action was used") and not find.vector.any()


def test_angles_that_no_action_uses_stay_zero():
    used = torch.tensor([False, True, False, True])
    find = scan_angles(peaks((0.3, 0.153, 0.3, 0.153)), used, ProspectConfig(angles=1_024))
    assert (find.vector != 0).tolist() == used.tolist()


class Landmarks(nn.Module):
    """Sees where it looks: waves of many lengths of its heading, which a frame of one pixel holds."""

    def __init__(self):
        super().__init__()
        self.wave = torch.randint(1, 4, (12,), generator=seeded(3))
        self.phase = 7 * torch.rand(12, generator=seeded(4))

    def encode(self, x):
        mean = torch.cos(x[..., 0, 0] * self.wave + self.phase)
        return Gaussian(mean, torch.full_like(mean, -2.0))


def spinning(walker):
    """Clips of agents that turn on the spot; a frame is nothing but the heading."""
    plans = draw_floorplans("room", 3, 0, load_textures("procedural"), 0)
    world = Rooms(plans, RoomsConfig(textures="procedural", objects=0))

    def source(n, steps, generator):
        world.reset(n, generator)
        start, actions = world.pose, walker(world, steps, generator)
        poses = world.travel(actions)
        before = torch.cat([start[:, None], poses[:, :-1]], 1)
        return Clip(
            poses[..., 2:, None, None],
            one_hot(actions, len(ACTIONS)),
            poses,
            PlaneWithHeading().displacement(before, poses),
        )

    return source


@pytest.mark.parametrize(("yardstick", "pauses"), [("variance", False), ("spread", True)], ids=["one way", "both ways"])
def test_prospecting_finds_how_far_a_step_of_turning_turns(yardstick, pauses):
    torch.manual_seed(0)
    settings = WorldModelConfig(vae=FrameVAEConfig(width=8), motion=MotionConfig(kind="turning"))
    model = WorldModel(settings, (3, 8, 8), len(ACTIONS))
    model.vae = Landmarks()
    clips = 16 if pauses else 8
    search = ProspectConfig(tau=33, horizon=20, neighbours=2, clips=clips, angles=512, yardstick=yardstick)
    find = prospect(model, spinning(SpinWalker(SpinWalkerConfig(pauses=pauses))), search, seeded(2))
    left, right = ACTIONS.index("turn left"), ACTIONS.index("turn right")
    step = 2 * math.pi / 41
    assert find.verdict.startswith("motion found: "), find.verdict
    sign = math.copysign(1, find.vector[left])  # a world and its mirror image look the same
    near = 6e-3 if pauses else 1e-3  # half turns and back say less about a full one
    assert find.vector[left].item() == pytest.approx(sign * step, abs=near)
    assert find.vector[right].item() == pytest.approx(-sign * step, abs=near)
    turned = model.motion.step(model.motion.start(8), torch.eye(8))[:, 2].detach()
    torch.testing.assert_close(turned[[left, right]], find.vector[[left, right]], rtol=1e-4, atol=1e-6)
    others = [i for i in range(8) if i not in (left, right)]
    assert not find.vector[others].any() and not turned[others].any()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"candidates": 31}, "candidates is 31; a search needs at least 32"),
        ({"rounds": 0}, "a search needs at least 1 round and 1 restart"),
        ({"restarts": 0}, "a search needs at least 1 round and 1 restart"),
        ({"neighbours": 33}, "neighbours is 33; give 1 to tau = 32 of them"),
        ({"angles": 15}, "angles is 15; a scan needs at least 16 values"),
        ({"elite": 0.0}, "elite is 0.0; give the share to keep"),
        ({"loops": -1}, "loops is -1; give a number of steps, or 0"),
        ({"loop_updates": 0}, "loop_updates is 0; give at least 1"),
        ({"length": -1.0}, "length is -1.0; give a positive one, or 0"),
    ],
)
def test_a_search_that_cannot_run_is_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        ProspectConfig(**wrong)
