"""Scoring walks through rooms: poses in the start's frame, headings that wrap, colours of rooms."""

import math
from functools import cache

import numpy as np
import pytest
import torch

from gtmsm.data.clip import Clip
from gtmsm.data.record import record
from gtmsm.evaluation.examine.rooms import PIXELS_EVERY, RoomsExaminer
from gtmsm.evaluation.metrics import PSNR_CAP
from gtmsm.evaluation.score import Evaluation, EvaluationConfig, evaluate, glance
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.pose import PlaneWithHeading, wrapped
from gtmsm.worlds.floorplan import draw_floorplans
from gtmsm.worlds.physics import ACTIONS
from gtmsm.worlds.rooms import Rooms, RoomsConfig
from gtmsm.worlds.scavenger import ScavengerWalker
from gtmsm.worlds.textures import load_textures
from gtmsm.worlds.visibility import seen_before
from gtmsm.worlds.walkers import SpinWalker

CPU = torch.device("cpu")
LEFT, RIGHT = ACTIONS.index("turn left"), ACTIONS.index("turn right")
TURN = 2 * math.pi / 41
TAU, HORIZON = 33, 45


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def world_of(plan: str = "room") -> Rooms:
    plans = draw_floorplans(plan, 4, 2, load_textures("procedural"), 1)
    return Rooms(plans, RoomsConfig(plan=plan, textures="procedural", objects=2))


def spinner(turn: float = TURN, prior: str = "query") -> WorldModel:
    """A model that has never seen a frame but knows how an agent turns on the spot."""
    torch.manual_seed(0)
    settings = WorldModelConfig(
        vae=FrameVAEConfig(width=16, code_size=4),
        motion=MotionConfig(kind="turning"),
        recall=RecallConfig(prior=prior, neighbours=4, width=16),
    )
    model = WorldModel(settings, (3, 32, 32), len(ACTIONS))
    with torch.no_grad():
        model.motion.turn.zero_()
        model.motion.turn[LEFT], model.motion.turn[RIGHT] = turn, -turn
    return model


def examined(model: WorldModel, world: Rooms, clip: Clip, metric: bool) -> dict[str, float]:
    examiner = RoomsExaminer(world, TAU, metric)
    with torch.no_grad():
        walk = model.motion.unroll(model.motion.start(len(clip.a)), clip.a)
    examiner.note(clip, walk, clip.x[:, TAU:])
    return examiner.scores()


@pytest.fixture(scope="module")
def spin() -> tuple[Rooms, Clip]:
    world = world_of()
    return world, record(world, SpinWalker(), 5, TAU + HORIZON, seeded(2))


# ---- poses


def test_positions_stand_beside_those_of_who_knows_no_way():
    world = world_of()
    clip = record(world, ScavengerWalker(), 4, TAU + HORIZON, seeded(3))
    scores = examined(spinner(), world, clip, metric=True)
    way = (clip.true_pose - clip.true_start[:, None])[..., :2]
    width = world.width.double()
    still, mean = way[:, -1].norm(dim=-1) / width, (way[:, -1] - way.mean(1)).norm(dim=-1) / width
    assert scores["standing_still_position_error_relative"] == pytest.approx(still.mean().item(), rel=1e-5)
    assert scores["at_the_mean_position_error_relative"] == pytest.approx(mean.mean().item(), rel=1e-5)
    # A model that turns on the spot stands still.
    assert scores["position_error_relative"] == pytest.approx(still.mean().item(), rel=1e-4)


@pytest.mark.parametrize("metric", [True, False])
def test_a_model_that_turns_as_the_agent_does_is_never_off(spin, metric: bool):
    scores = examined(spinner(), *spin, metric)
    assert scores["heading_error"] < 0.01
    assert max(scores["heading_error_by_step"]) < 0.01
    assert scores["position_error"] < 1e-4
    assert len(scores["heading_error_by_step"]) == TAU + HORIZON


def test_a_mirror_image_is_as_good_where_nothing_could_tell(spin):
    assert examined(spinner(-TURN), *spin, metric=False)["heading_error"] < 0.01


def test_a_mirror_image_is_wrong_where_poses_are_in_the_units_of_the_world(spin):
    assert examined(spinner(-TURN), *spin, metric=True)["heading_error"] > 10


def test_a_heading_is_off_by_what_it_is_off_after_all_its_turns(spin):
    """A degree a step too far is 78 degrees too far at the end; errors never exceed half a turn."""
    by_step = examined(spinner(TURN + math.radians(1)), *spin, metric=True)["heading_error_by_step"]
    assert by_step == pytest.approx(list(range(1, TAU + HORIZON + 1)), abs=0.01)
    far = examined(spinner(TURN + math.radians(4)), *spin, metric=True)["heading_error_by_step"]
    assert far[44] == pytest.approx(180, abs=0.01)
    assert far[49] == pytest.approx(160, abs=0.01)


def a_walk(n: int = 4, steps: int = 40) -> tuple[WorldModel, Rooms, Clip]:
    """A model with a heading, and the clip of a world that moves exactly as it believes."""
    world = world_of()
    world.reset(n, seeded(3))
    model = spinner()
    with torch.no_grad():
        model.motion.move.copy_(0.1 * torch.randn(2, len(ACTIONS), generator=seeded(4)))
        model.motion.turn.copy_(0.2 * torch.randn(len(ACTIONS), generator=seeded(5)))
        a = torch.eye(len(ACTIONS))[torch.randint(len(ACTIONS), (n, steps), generator=seeded(6))]
        start = world.pose
        poses = model.motion.unroll(start, a)
    before = torch.cat([start[:, None], poses[:, :-1]], 1)
    clip = Clip(
        torch.rand(n, steps, 3, 32, 32, generator=seeded(7)), a, poses, PlaneWithHeading().displacement(before, poses)
    )
    return model, world, clip


def test_where_a_walk_began_on_the_map_does_not_matter():
    model, world, clip = a_walk()
    scores = examined(model, world, clip, metric=True)
    assert scores["heading_error"] < 0.01
    assert max(scores["position_error_by_step"]) < 1e-4


@pytest.mark.parametrize("scale", [1.0, 0.2, 7.0])
@pytest.mark.parametrize("mirrored", [False, True])
def test_a_map_of_another_scale_or_mirrored_is_as_good_where_nothing_could_tell(scale: float, mirrored: bool):
    model, world, clip = a_walk()
    with torch.no_grad():
        model.motion.move *= scale
        if mirrored:
            model.motion.move[1] *= -1
            model.motion.turn *= -1
    free = examined(model, world, clip, metric=False)
    assert free["heading_error"] < 0.02
    assert max(free["position_error_by_step"]) < 1e-4
    if scale != 1.0 or mirrored:
        assert examined(model, world, clip, metric=True)["position_error"] > 0.05


def test_positions_are_also_told_in_widths_of_the_room():
    model, world, clip = a_walk(n=1)
    with torch.no_grad():
        model.motion.move *= 2
    scores = examined(model, world, clip, metric=True)
    width = world.plans.width[world.where].item()
    assert scores["position_error_relative"] == pytest.approx(scores["position_error"] / width)


@pytest.mark.parametrize("metric", [True, False])
def test_true_poses_can_be_told_in_the_coordinates_of_a_model(metric: bool):
    model, world, clip = a_walk()
    with torch.no_grad():
        if not metric:
            model.motion.move *= torch.tensor([[3.0], [-3.0]])
            model.motion.turn *= -1
        walk = model.motion.unroll(model.motion.start(len(clip.a)), clip.a)
        _, known = RoomsExaminer(world, TAU, metric).places(clip, walk)
        torch.testing.assert_close(known, model.motion.place(walk), rtol=0, atol=1e-3)


def test_true_poses_in_the_coordinates_of_a_model_that_is_often_wrong_are_not_blown_up():
    """The inverse of the map onto the truth would stretch them by 1 / R²; the map onto the model does not."""
    _, world, clip = a_walk(n=40, steps=60)
    true, _ = RoomsExaminer(world, TAU, True).places(clip, clip.true_pose)
    noise = true[..., :2].std() * torch.randn(true[..., :2].shape, generator=seeded(8))
    walk = torch.cat([true[..., :2] + noise, clip.true_pose[..., 2:] - clip.true_start[:, None, 2:]], -1)
    _, known = RoomsExaminer(world, TAU).places(clip, walk)
    assert known[..., :2].std() == pytest.approx(true[..., :2].std().item(), rel=0.1)
    off = (walk - known[..., :3])[..., :2].flatten(0, 1).double()
    left = off.T @ true[..., :2].flatten(0, 1).double()  # neither another scale nor another turn would be nearer
    assert left.trace().item() == pytest.approx(0, abs=0.01)
    assert (left[0, 1] - left[1, 0]).item() == pytest.approx(0, abs=0.01)


def test_how_poses_lie_in_the_world_is_found_by_other_walks_and_but_for_turn_mirror_and_scale():
    """A map that is turned, mirrored and twice as large is the same map; one that is stretched is another."""
    model, world, clip = a_walk(n=4, steps=60)
    move, turn = model.motion.move.clone(), model.motion.turn.clone()
    turned = 2 * torch.tensor([[0.6, 0.8], [0.8, -0.6]])
    believed = []
    with torch.no_grad():
        for change, sign in ((torch.eye(2), 1), (turned, -1), (torch.diag(torch.tensor([2.0, 0.5])), 1)):
            model.motion.move.copy_(change @ move)
            model.motion.turn.copy_(sign * turn)
            examiner = RoomsExaminer(world, TAU)
            examiner.calibrate(model, ScavengerWalker(), 60, 3)
            believed.append(examiner.in_world(model.motion.unroll(model.motion.start(len(clip.a)), clip.a)))
    same, alike, other = believed
    torch.testing.assert_close(alike, same, rtol=0, atol=1e-4)
    assert (other - same)[..., :2].abs().max() > 0.1


def test_true_places_are_seen_from_the_start():
    _, world, clip = a_walk()
    places, _ = RoomsExaminer(world, TAU, True).places(clip, clip.true_pose)
    heading = clip.true_pose[..., 2] - clip.true_start[:, None, 2]
    torch.testing.assert_close(places[..., 2:], torch.stack([heading.cos(), heading.sin()], -1), rtol=0, atol=1e-5)
    far = (clip.true_pose - clip.true_start[:, None])[..., :2].norm(dim=-1)
    torch.testing.assert_close(places[..., :2].norm(dim=-1), far, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("angle", "same"), [(0.0, 0.0), (190.0, -170.0), (-190.0, 170.0), (359.0, -1.0), (725.0, 5.0)])
def test_an_angle_is_told_between_half_a_turn_left_and_right(angle: float, same: float):
    assert wrapped(torch.tensor(angle).double().deg2rad()).rad2deg().item() == pytest.approx(same)


# ---- what was seen before


def test_a_full_turn_of_41_steps_revisits_nothing_before_step_42(spin):
    world, clip = spin
    seen = RoomsExaminer(world, TAU, False).revisited(clip)
    steps = torch.arange(TAU + 1, TAU + HORIZON + 1)
    # 42 looks where step 1 did, 74 where 33 did; 75 is as new as 34 was.
    assert torch.equal(seen, ((steps >= 42) & (steps <= 74)).expand(5, HORIZON))


def test_the_same_spot_seen_in_another_direction_is_not_revisited():
    _, world, clip = a_walk(steps=TAU + 1)
    pose = clip.true_pose[:, :1].repeat(1, TAU + 1, 1)
    for aside, turned, seen in ((0.0, 7.0, True), (0.0, 9.0, False), (0.24, 0.0, True), (0.26, 0.0, False)):
        there = pose.clone()
        there[:, -1, 0] += aside
        there[:, -1, 2] += math.radians(turned) + 4 * math.pi
        moved = Clip(clip.x, clip.a, there, clip.true_step)
        assert RoomsExaminer(world, TAU, True).revisited(moved).all() == seen


def test_no_retrieval_is_exactly_right(spin):
    world, clip = spin
    nothing = torch.zeros(5, HORIZON, dtype=torch.long)
    assert RoomsExaminer(world, TAU, False).hits(clip, nothing) is None


# ---- colours of rooms


@pytest.fixture(scope="module")
def rooms() -> tuple[Rooms, Clip]:
    world = world_of("rooms")
    return world, record(world, ScavengerWalker(), 3, 60, seeded(2))


def test_the_truth_has_the_right_colours(rooms):
    world, clip = rooms
    errors = RoomsExaminer(world, TAU, True).judge(clip, clip.x[:, TAU:])
    assert errors.keys() == {"floor_colour_error", "wall_colour_error"}
    assert not any(error.any() for error in errors.values())


def test_colours_that_are_off_by_ten_are_off_by_ten(rooms):
    world, clip = rooms
    for error in RoomsExaminer(world, TAU, True).judge(clip, clip.x[:, TAU:] + 10 / 255).values():
        torch.testing.assert_close(error, torch.full((3, 27), 10.0), rtol=0, atol=1e-3)


def test_only_the_part_that_is_wrong_counts(rooms):
    world, clip = rooms
    frames = clip.x[:, TAU:].clone()
    frames[..., -8:, :] += 0.1  # what lies at the feet
    errors = RoomsExaminer(world, TAU, True).judge(clip, frames)
    assert (errors["floor_colour_error"] > 20).all()
    assert not errors["wall_colour_error"].any()


def test_rooms_walked_in_are_told_from_those_never_entered(rooms):
    world, clip = rooms
    masks = RoomsExaminer(world, TAU, True).masks(clip)
    assert masks.keys() == {"reentered_rooms", "seen_rooms", "seen_rooms_late"}
    for i, place in enumerate(world.where.tolist()):
        region = world.plans.region_at(torch.full((60,), place), clip.true_pose[i, :, :2]).tolist()
        is_room = world.plans.is_room[place].tolist()
        expected = [now >= 0 and is_room[now] and now in region[:TAU] for now in region[TAU:]]
        assert masks["seen_rooms"][i].tolist() == expected
    assert not masks["seen_rooms_late"].any(), "none of these steps is after the 400th"


def anywhere_in(world: Rooms, place: int, count: int) -> torch.Tensor:
    """Points of rooms and corridors."""
    low, high = world.plans.spots[place].amin(0), world.plans.spots[place].amax(0)
    points = low + (high - low) * torch.rand(50 * count, 2, generator=seeded(place))
    inside = points[world.plans.region_at(torch.full((50 * count,), place), points) >= 0]
    return inside[:count]


def test_a_room_is_entered_again_only_after_it_was_left():
    """Agents that are carried from spot to spot, so that rooms and corridors come by in any order."""
    world, steps, tau = world_of("rooms"), 200, 80
    world.reset(6, seeded(2))
    places = world.where.tolist()
    spots = torch.stack([anywhere_in(world, place, steps // 5) for place in places]).repeat_interleave(5, 1)
    pose = torch.cat([spots, torch.zeros(6, steps, 1)], -1)
    clip = Clip(torch.zeros(6, steps, 3, 1, 1), torch.zeros(6, steps, 8), pose, torch.zeros_like(pose))
    masks = RoomsExaminer(world, tau, True).masks(clip)
    again, corridors = 0, 0
    for i, place in enumerate(places):
        region = world.plans.region_at(torch.full((steps,), place), spots[i]).tolist()
        is_room = world.plans.is_room[place].tolist()
        for t in range(tau, steps):
            left = any(region[then] != region[t] for then in range(tau - 1, t))
            expected = is_room[region[t]] and region[t] in region[:tau] and left
            assert masks["reentered_rooms"][i, t - tau] == expected
            again += expected
            corridors += not is_room[region[t]]
    assert again > 50 and corridors > 0, "these walks do go to and fro"


def test_a_single_room_has_no_rooms_to_mix_up(spin):
    world, clip = spin
    examiner = RoomsExaminer(world, TAU, False)
    assert examiner.judge(clip, clip.x[:, TAU:]) == {}
    assert examiner.masks(clip) == {}


def test_pixels_that_no_memorised_frame_showed_are_scored_apart():
    world, tau = world_of(), 3
    clip = record(world, SpinWalker(), 5, TAU + HORIZON, seeded(2))
    past, future = clip.true_pose[:, :tau], clip.true_pose[:, tau:]
    seen = seen_before(world.plans.scene, world.camera, world.where, past, future)
    assert 0.05 < seen[:, ::PIXELS_EVERY].float().mean() < 0.95, "part of the turn is new"
    examiner = RoomsExaminer(world, tau, metric=True)
    grey_where_new = torch.where(seen[:, :, None], clip.x[:, tau:], 0.5)
    examiner.note(clip, torch.zeros(*clip.a.shape[:2], 3), grey_where_new)
    scores = examiner.scores()
    assert scores["psnr_seen_pixels"] == PSNR_CAP
    assert scores["psnr_unseen_pixels"] < 30
    assert scores["seen_pixels"] == pytest.approx(seen[:, ::PIXELS_EVERY].double().mean().item())


# ---- scores of a model


@pytest.fixture(scope="module")
def scored() -> Evaluation:
    settings = EvaluationConfig(tau=TAU, horizon=HORIZON, clips=3)
    return evaluate(spinner(), world_of(), SpinWalker(), settings, CPU)


def test_controls_that_know_more_do_better(scored):
    controls = scored.scores["controls"]
    at_truth, at_belief, ceiling, anything = (
        controls[name]
        for name in ("copy_nearest_true_pose", "copy_nearest_predicted_pose", "vae_ceiling", "mean_frame")
    )
    assert at_truth["psnr_revisited"] > at_truth["psnr_unseen"]
    assert at_truth["psnr_pooled"] >= controls["random_retrieval"]["psnr_pooled"]
    assert at_truth["psnr_pooled"] == pytest.approx(at_belief["psnr_pooled"]), "it knows how it turns"
    assert at_truth["psnr_revisited"] > max(anything["psnr_revisited"], ceiling["psnr_revisited"])


def test_after_exactly_a_full_turn_the_same_is_seen_again(scored):
    # to the rounding of headings, which may move the edge of a texture
    assert scored.scores["controls"]["copy_nearest_true_pose"]["psnr_revisited"] > 40
    assert scored.scores["controls"]["copy_nearest_true_pose"]["psnr_revisited"] <= PSNR_CAP


def test_poses_in_rooms_are_scored_by_errors_and_never_called_converged(scored):
    assert scored.scores["heading_error"] < 0.01
    assert scored.scores["position_error"] < 1e-4
    assert scored.scores["revisited_fraction"] == pytest.approx(33 / 45)
    assert not {"pose_r2", "converged"} & scored.scores.keys()
    assert scored.scores["retrieval_revisited"] is None


def test_a_report_shows_the_steps_that_the_paper_shows(scored):
    assert scored.gallery.strips == ((34, 41), (70, 77))
    assert scored.gallery.truth.shape == (3, HORIZON, 3, 32, 32)


def test_what_an_action_does_is_compared_with_what_it_really_does(scored):
    np.testing.assert_allclose(scored.gallery.displacement[[LEFT, RIGHT], 2], [TURN, -TURN], atol=1e-4)
    np.testing.assert_allclose(scored.gallery.true_displacement[[LEFT, RIGHT], 2], [TURN, -TURN], atol=1e-4)
    assert scored.gallery.true_displacement[0, 0] > 0.01, "forward goes ahead"


def test_an_inferred_walk_lies_on_the_true_one_on_the_map(scored):
    np.testing.assert_allclose(scored.gallery.inferred_pose, scored.gallery.true_pose, atol=1e-3)


def test_the_end_of_a_walk_is_shown_where_the_paper_shows_nothing():
    model, world, clip = a_walk()
    examiner = RoomsExaminer(world, 30, True)
    with torch.no_grad():
        examiner.note(clip, model.motion.unroll(model.motion.start(4), clip.a), clip.x[:, 30:])
        assert examiner.gallery(model).strips == ((31, 40),)


def test_the_same_seed_gives_the_same_scores(scored):
    settings = EvaluationConfig(tau=TAU, horizon=HORIZON, clips=3)
    assert evaluate(spinner(), world_of(), SpinWalker(), settings, CPU).scores == scored.scores


def test_a_glance_agrees_with_the_scores(scored):
    settings = EvaluationConfig(tau=TAU, horizon=HORIZON, clips=3)
    seen = glance(spinner(), world_of(), SpinWalker(), settings)
    assert seen["psnr"] == pytest.approx(scored.scores["psnr_pooled"])
    assert seen["heading_error"] == pytest.approx(scored.scores["heading_error"])
    assert "retrieval" not in seen


def test_several_rooms_are_scored_room_by_room(monkeypatch: pytest.MonkeyPatch):
    """Of an agent that turns on the spot: its room was seen, and is entered again at the last step, let us say."""

    def masks(examiner: RoomsExaminer, clip: Clip) -> dict[str, torch.Tensor]:
        found = real(examiner, clip)
        return found | {"reentered_rooms": torch.arange(4).expand(2, 4) == 3}

    real = RoomsExaminer.masks
    monkeypatch.setattr(RoomsExaminer, "masks", masks)
    settings = EvaluationConfig(tau=6, horizon=4, clips=2, metric_poses=True)
    scores = evaluate(spinner(), world_of("rooms"), SpinWalker(), settings, CPU).scores
    assert scores["psnr_seen_rooms"] == pytest.approx(scores["psnr_pooled"])
    assert scores["psnr_reentered_rooms"] == pytest.approx(scores["psnr_by_step"][3])
    assert scores["psnr_seen_rooms_late"] is None
    assert scores["floor_colour_error"] > 0
    assert scores["controls"]["copy_nearest_true_pose"]["floor_colour_error"] >= 0
