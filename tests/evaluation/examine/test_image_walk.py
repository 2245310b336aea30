"""What is particular to scoring walks over images."""

import math

import pytest
import torch
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.data.record import record
from gtmsm.evaluation.examine import ImageWalkExaminer
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.walkers import PoissonWalker

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
    assert torch.equal(examiner.true_places(clip), clip.true_pose)
    assert examiner.judge(clip, clip.x[:, TAU:]) == {} and examiner.masks(clip) == {}
