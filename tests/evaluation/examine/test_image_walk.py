"""What is particular to scoring walks over images."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.data.record import as_clip, record
from gtmsm.evaluation.examine import ImageWalkExaminer
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.motion import Free, MotionConfig
from gtmsm.worlds.image_walk import MOVES, ImageWalk, ImageWalkConfig
from gtmsm.worlds.slip import SlipConfig, Slipping, slipping
from gtmsm.worlds.walkers import PoissonWalker
from gtmsm.worlds.world import World

TAU = 20


@pytest.fixture(scope="module")
def world() -> ImageWalk:
    images = torch.randint(256, (3, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return ImageWalk(images, ImageWalkConfig(size=20))


@pytest.fixture(scope="module")
def clip(world: ImageWalk) -> Clip:
    return record(world, PoissonWalker(), 4, 2 * TAU, torch.Generator().manual_seed(1))


def through(*cells: tuple[int, int]) -> Clip:
    """A walk of which only the cells matter."""
    pose = torch.tensor([cells], dtype=torch.float32)
    blank = torch.zeros(1, len(cells), 1, 1, 1)
    return Clip(x=blank, a=blank.flatten(2), true_pose=pose, true_step=torch.zeros_like(pose))


def examined(world: ImageWalk, clip: Clip, walk: Tensor) -> float:
    """R² of the poses in `walk`, told to the examiner in two portions."""
    examiner = ImageWalkExaminer(world, TAU)
    for some in (slice(1), slice(1, None)):
        examiner.note(clip[some], walk[some], clip.x[some, TAU:])
    r2: float = examiner.scores()["pose_r2"]
    return r2


def test_a_step_is_a_revisit_where_its_very_cell_was_memorised(world: ImageWalk):
    clip = through((2, 2), (2, 3), (2, 2), (3, 3), (2, 3))
    assert ImageWalkExaminer(world, tau=2).revisited(clip).tolist() == [[True, False, True]]


def test_a_cell_met_again_only_among_the_predicted_steps_is_no_revisit(world: ImageWalk):
    clip = through((2, 2), (3, 3), (3, 3))
    assert ImageWalkExaminer(world, tau=1).revisited(clip).tolist() == [[False, False]]


def test_another_clip_of_the_batch_does_not_make_a_place_known(world: ImageWalk):
    pose = torch.tensor([[[1.0, 1], [2, 2]], [[2.0, 2], [2, 2]]])
    examiner = ImageWalkExaminer(world, tau=1)
    assert examiner.same_place(pose[:, :1], pose[:, 1:])[..., 0].tolist() == [[False], [True]]


def test_a_hit_is_any_entry_recorded_at_the_present_cell(world: ImageWalk):
    clip = through((2, 2), (2, 3), (2, 2), (2, 2), (2, 3), (4, 4))
    examiner = ImageWalkExaminer(world, tau=3)
    for retrieved, hits in (([0, 1, 0], [True, True, False]), ([2, 0, 1], [True, False, False])):
        assert examiner.hits(clip, torch.tensor([retrieved])).tolist() == [hits]


def test_nobody_hits_a_place_that_was_never_memorised(world: ImageWalk, clip: Clip):
    examiner = ImageWalkExaminer(world, TAU)
    retrieved = torch.randint(TAU, (4, TAU), generator=torch.Generator().manual_seed(2))
    assert not (examiner.hits(clip, retrieved) & ~examiner.revisited(clip)).any()


def test_the_true_walk_explains_itself(world: ImageWalk, clip: Clip):
    assert examined(world, clip, clip.true_pose) == pytest.approx(1, abs=1e-9)


def test_a_turned_stretched_and_shifted_walk_is_as_good_as_the_true_one(world: ImageWalk, clip: Clip):
    c, s = math.cos(0.7), math.sin(0.7)
    walk = clip.true_pose @ torch.tensor([[c, s], [-s, c]]) @ torch.diag(torch.tensor([0.2, -3.0])) + 5
    assert examined(world, clip, walk) == pytest.approx(1, abs=1e-6)


def test_a_walk_folded_onto_one_axis_explains_that_axis_alone(world: ImageWalk, clip: Clip):
    spread = (clip.true_pose.double() - clip.true_pose.double().mean((0, 1))).square().sum((0, 1))
    folded = clip.true_pose * torch.tensor([1.0, 0.0])
    # The axis that is left may tell a little of the other, by chance.
    assert float(spread[0] / spread.sum()) - 1e-6 <= examined(world, clip, folded) < 0.9


def test_places_are_cells_for_the_truth_and_for_the_model(world: ImageWalk, clip: Clip):
    examiner = ImageWalkExaminer(world, TAU)
    assert all(torch.equal(places, clip.true_pose) for places in examiner.places(clip, clip.true_pose))
    assert examiner.judge(clip, clip.x[:, TAU:]) == {} and examiner.masks(clip) == {}


# ---- where steps fail

UP, DOWN, LEFT, RIGHT, STAY = range(5)


def blocked_at(world: ImageWalk, actions: list[int]) -> Clip:
    """A walk from the centre (2, 2) of a grid whose cell (2, 4) is solid."""
    solid = torch.zeros(1, 5, 5, dtype=torch.bool)
    solid[0, 2, 4] = True
    world.place(torch.tensor([0]), torch.tensor([[2, 2]]), solid)
    return as_clip(world, torch.tensor([actions]))


@pytest.fixture
def obstructed() -> ImageWalk:
    images = torch.randint(256, (3, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return ImageWalk(images, ImageWalkConfig(size=20, obstacles=1, obstacle_side=2))


def test_nobody_is_asked_for_what_came_after_an_obstacle(obstructed: ImageWalk):
    clip = blocked_at(obstructed, [RIGHT, RIGHT, LEFT, RIGHT, UP, RIGHT, RIGHT, DOWN, LEFT])
    # A hit while memorising is no excuse; the one from (1, 4) down into (2, 4), the eighth step, is.
    masks = ImageWalkExaminer(obstructed, tau=3).masks(clip)
    assert clip.true_pose[0, 3:].tolist() == [[2, 3], [1, 3], [1, 4], [1, 4], [1, 4], [1, 3]]
    assert masks["unhindered"].tolist() == [[True, False, False, False, False, False]]
    free = ImageWalkExaminer(obstructed, tau=3).unhindered(clip)
    assert free.tolist() == [[True, True, True, True, False, False]]


def test_the_edge_of_the_image_is_no_obstacle(obstructed: ImageWalk):
    clip = blocked_at(obstructed, [STAY, LEFT, LEFT, LEFT, LEFT])
    assert ImageWalkExaminer(obstructed, tau=1).unhindered(clip).all()


def test_nobody_is_asked_for_what_came_after_a_slip(world: ImageWalk):
    slippery = Slipping(world, SlipConfig(probability=0.2))
    clip = record(slippery, PoissonWalker(), 6, 30, torch.Generator().manual_seed(0))
    free = ImageWalkExaminer(slippery, TAU).unhindered(clip)
    for now, slipped in zip(free.tolist(), slippery.slipped[:, TAU:].tolist(), strict=True):
        first = slipped.index(True) if any(slipped) else len(slipped)
        assert now == [t < first for t in range(len(slipped))]


def test_a_walk_that_is_off_by_a_cell_from_some_step_on_is_right_until_then(obstructed: ImageWalk):
    clip = blocked_at(obstructed, [RIGHT, RIGHT, LEFT, RIGHT, UP, RIGHT, RIGHT, DOWN, LEFT])
    walk = clip.true_pose - clip.true_start[:, None]
    walk[:, 1] += 0.6
    walk[:, 5:] += torch.tensor([0.0, 0.8])
    reckoned = walk.clone()
    reckoned[:, 2:] += 1
    examiner = ImageWalkExaminer(obstructed, 4, metric=True)
    examiner.note(clip, walk, clip.x[:, 4:], reckoned)
    scores = examiner.scores()
    assert scores["position_within_half_cell_memorised"] == pytest.approx(3 / 4)
    assert scores["position_within_half_cell_predicted"] == pytest.approx(1 / 3), "three steps are before the obstacle"
    assert scores["dead_reckoning_position_within_half_cell_memorised"] == pytest.approx(1 / 4)
    assert scores["dead_reckoning_position_within_half_cell_predicted"] == 0
    off = [0, 0.6 * math.sqrt(2), 0, 0, 0, 0.8, 0.8, 0.8, 0.8]
    assert scores["position_error_by_step"] == pytest.approx(off, abs=1e-6)
    assert scores["unhindered_fraction"] == pytest.approx(3 / 5)


def test_cells_are_also_found_by_equal_frames_and_true_moves(obstructed: ImageWalk):
    clip = blocked_at(obstructed, [RIGHT, RIGHT, LEFT, RIGHT, UP, RIGHT, RIGHT, DOWN, LEFT])
    lost = torch.full_like(clip.true_pose, 7.0)
    examiner = ImageWalkExaminer(obstructed, 9, metric=True)
    examiner.note(clip, lost, clip.x[:, 9:])
    told = examiner.by_equal_frames(clip)
    right = ((told - (clip.true_pose - clip.true_start[:, None])).norm(dim=-1) < 0.5).float().mean().item()
    scores = examiner.scores()
    assert scores["equal_frames_position_within_half_cell_memorised"] == pytest.approx(right) and right > 0.5
    assert scores["position_within_half_cell_memorised"] == 0


def test_metric_poses_are_cells_from_the_start(world: ImageWalk, clip: Clip):
    walk = clip.true_pose - clip.true_start[:, None]
    right, stretched = ImageWalkExaminer(world, TAU, metric=True), ImageWalkExaminer(world, TAU, metric=True)
    right.note(clip, walk, clip.x[:, TAU:])
    stretched.note(clip, 2 * walk, clip.x[:, TAU:])
    assert right.scores() == {"pose_r2": pytest.approx(1)}
    assert stretched.scores()["pose_r2"] < 0.5
    assert "true displacements as targets" in right.privileges and "as they are" in right.poses
    plain = ImageWalkExaminer(world, TAU)
    assert "no displacement loss" in plain.privileges and "affine" in plain.poses


def test_poses_of_any_other_space_are_brought_into_cells(world: ImageWalk, clip: Clip):
    from_start = clip.true_pose - clip.true_start[:, None]
    walk = from_start @ torch.tensor([[0.3, 0.1], [-0.2, 0.4]])
    examiner = ImageWalkExaminer(world, TAU)
    examiner.note(clip, walk, clip.x[:, TAU:])
    torch.testing.assert_close(examiner.in_world(walk), from_start, atol=1e-4, rtol=0)


@pytest.mark.parametrize("slip", [0.0, 0.3])
def test_poses_are_fitted_on_other_walks_than_those_scored(world: ImageWalk, clip: Clip, slip: float):
    torch.manual_seed(0)
    model = WorldModel(WorldModelConfig(motion=MotionConfig(kind="free")), (3, 8, 8), 5)
    assert isinstance(model.motion, Free)
    with torch.no_grad():
        model.motion.M.copy_((torch.tensor(MOVES).float() @ torch.tensor([[0.3, 0.1], [-0.2, 0.4]])).T)
    examiner = ImageWalkExaminer(slipping(world, SlipConfig(probability=slip)), TAU)
    examiner.calibrate(model, to_and_fro, 6, 0)
    from_start = clip.true_pose - clip.true_start[:, None]
    walk = from_start @ torch.tensor([[0.3, 0.1], [-0.2, 0.4]])
    torch.testing.assert_close(examiner.in_world(walk), from_start, atol=1e-4, rtol=0)
    if not slip:  # where the scored walks are stretched, the map stays that of the others
        examiner.note(clip, 2 * walk, clip.x[:, TAU:])
        assert examiner.scores()["pose_r2"] < 0.5
        shown = examiner.gallery(model)
        np.testing.assert_allclose(shown.true_displacement, shown.displacement, atol=1e-4)


def to_and_fro(world: World, steps: int, generator: torch.Generator) -> torch.Tensor:
    """Never far enough for a wall."""
    there = torch.randint(4, (world.agents, steps // 2), generator=generator)
    return torch.stack([there, there ^ 1], dim=-1).flatten(1)


def test_r2_at_steps_that_can_be_known_forgives_what_came_after_an_obstacle(obstructed: ImageWalk):
    clip = blocked_at(obstructed, [RIGHT, RIGHT, LEFT, RIGHT, UP, RIGHT, RIGHT, DOWN, LEFT])
    walk = clip.true_pose - clip.true_start[:, None]
    walk[:, 7:] += 5.0  # from the obstacle on, nobody can know
    examiner = ImageWalkExaminer(obstructed, 3, metric=True)
    examiner.note(clip, walk, clip.x[:, 3:])
    scores = examiner.scores()
    assert scores["pose_r2_unhindered"] == pytest.approx(1)
    assert scores["pose_r2"] < 0.5
