"""The control that believes equal frames: exact where they tell, wrong where a slip goes unnoticed."""

import torch

from gtmsm.data.clip import Clip
from gtmsm.data.record import record
from gtmsm.evaluation.equal_frames import follow_by_equal_frames
from gtmsm.evaluation.examine import ImageWalkExaminer
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.slip import SlipConfig, slipping
from gtmsm.worlds.walkers import PoissonWalker, PoissonWalkerConfig

MOVES = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0], [0.0, 0.0]])


def noise(obstacles: int = 0) -> ImageWalk:
    """Pictures in which no two cells look the same."""
    pictures = torch.randint(256, (4, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return ImageWalk(pictures, ImageWalkConfig(size=20, obstacles=obstacles, obstacle_side=2))


def walk(world: ImageWalk, slip: float = 0.0) -> Clip:
    looking = PoissonWalker(PoissonWalkerConfig(look_first=True))  # or a first step that fails could not be noticed
    return record(slipping(world, SlipConfig(probability=slip)), looking, 4, 200, torch.Generator().manual_seed(1))


def followed(world: ImageWalk, clip: Clip) -> torch.Tensor:
    return ImageWalkExaminer(world, 100).by_equal_frames(clip) + clip.true_start[:, None]


def test_without_obstacles_true_moves_are_enough() -> None:
    clip = walk(world := noise())
    assert followed(world, clip).equal(clip.true_pose)


def test_an_obstacle_is_noticed_by_the_frame_that_stays() -> None:
    clip = walk(world := noise(obstacles=2))
    reckoned = (clip.true_start[:, None] + (clip.a @ MOVES).cumsum(1)).clamp(0, 4)
    right = (followed(world, clip) == clip.true_pose).all(-1).float().mean()
    assert right > 0.98 > (reckoned == clip.true_pose).all(-1).float().mean() + 0.2


def test_slips_into_new_places_lead_it_astray() -> None:
    clip = walk(world := noise(), slip=0.2)
    right = (followed(world, clip) == clip.true_pose).all(-1).float().mean()
    assert 0.1 < right < 0.95


def test_who_is_told_how_frames_overlap_sees_every_slip() -> None:
    clip = walk(world := noise(obstacles=2), slip=0.2)
    told = ImageWalkExaminer(world, 100).by_equal_frames(clip, overlaps=True) + clip.true_start[:, None]
    assert told.equal(clip.true_pose)


def test_steps_of_frames_that_share_nothing_are_taken_for_made() -> None:
    frames = torch.rand(1, 3, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    actions = torch.nn.functional.one_hot(torch.tensor([[4, 3, 1]]), 5).float()
    assert follow_by_equal_frames(frames, actions, MOVES, 9, torch.zeros(1, 2), stride=3).tolist() == [
        [[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    ]


def test_of_equal_frames_within_reach_the_nearest_to_the_plan_is_taken_and_none_beyond() -> None:
    # Cells 0 and 4 of a corridor show the same; the walk goes from 0 to 4, and the agent knows better.
    frames = torch.tensor([0.0, 1.0, 2.0, 3.0, 0.0])[None, :, None, None, None].expand(1, 5, 3, 2, 2)
    actions = torch.nn.functional.one_hot(torch.tensor([[4, 3, 3, 3, 3]]), 5).float()
    cells = follow_by_equal_frames(frames, actions, MOVES, 9, torch.zeros(1, 2))
    assert cells[0, :, 1].tolist() == [0, 1, 2, 3, 4]
    # On the way back over cell 1, the frame of cell 0 is within reach of the plan: it is believed.
    back = torch.nn.functional.one_hot(torch.tensor([[4, 3, 2, 2]]), 5).float()
    shown = torch.tensor([0.0, 1.0, 0.0, 0.0])[None, :, None, None, None].expand(1, 4, 3, 2, 2)
    assert follow_by_equal_frames(shown, back, MOVES, 9, torch.zeros(1, 2))[0, :, 1].tolist() == [0, 1, 0, 0]
