"""Walks that leave a place and come back."""

import pytest
import torch

from gtmsm.data.clip import Clip
from gtmsm.data.record import record
from gtmsm.errors import InputError
from gtmsm.pose import wrapped
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.returns import BACK, CLEAR, LOOK, LoopWalker, Returning, ReturnWalker, SpinReturnWalker
from gtmsm.worlds.rooms import Rooms, RoomsConfig, draw_rooms

MIDDLE = 9
AT_A = len(LOOK)


@pytest.fixture(scope="module")
def large() -> ImageWalk:
    """19 by 19 cells of noise."""
    images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return ImageWalk(images, ImageWalkConfig(size=64))


@pytest.fixture(scope="module")
def room() -> Rooms:
    return draw_rooms(RoomsConfig(textures="procedural", objects=0, antialias=1), 2, 0)


def walked(world: ImageWalk | Rooms, walker: Returning, n: int = 16, seed: int = 0) -> Clip:
    return record(world, walker, n, walker.tau + walker.horizon, torch.Generator().manual_seed(seed))


def cells_of(clip: Clip) -> list[set[tuple[float, ...]]]:
    return [set(map(tuple, path)) for path in clip.true_pose.tolist()]


@pytest.mark.parametrize("walker", [LoopWalker(), LoopWalker(other_way=True), ReturnWalker(30)])
def test_nobody_pushes_against_a_wall(large: ImageWalk, walker: Returning):
    clip = walked(large, walker)
    moves = clip.a.argmax(-1) < 4
    assert torch.equal(clip.true_step.abs().sum(-1) == 1, moves)


@pytest.mark.parametrize("away", [0, 1, 30])
def test_nothing_of_a_is_in_view_until_the_way_back(large: ImageWalk, away: int):
    walker = ReturnWalker(away)
    clip = walked(large, walker)
    elsewhere = clip.true_pose[:, AT_A + CLEAR - 1 : walker.tau]
    assert elsewhere.shape[1] == away + 1
    # Views are 8 pixels wide and 3 apart: from 3 cells on they share no pixel with one of the block around the middle.
    assert ((elsewhere - MIDDLE).abs().amax(-1) - 1 >= 3).all()


@pytest.mark.parametrize("away", [0, 7, 30])
def test_all_that_is_scored_of_a_return_was_looked_at_before(large: ImageWalk, away: int):
    walker = ReturnWalker(away)
    clip = walked(large, walker)
    looked, back = cells_of(clip[:, :AT_A]), cells_of(clip[:, walker.tau + walker.skip :])
    assert all(len(before) == 9 for before in looked)
    assert back == looked


def test_wanderers_get_around(large: ImageWalk):
    clip = walked(large, ReturnWalker(300), n=4)
    assert all(len(cells) > 60 for cells in cells_of(clip))


def test_a_loop_by_the_same_way_sees_nothing_new(large: ImageWalk):
    walker = LoopWalker()
    clip = walked(large, walker)
    before, after = cells_of(clip[:, : walker.tau]), cells_of(clip[:, walker.tau :])
    assert all(new <= old for new, old in zip(after, before, strict=True))
    far = (clip.true_pose[:, walker.tau - 1] - MIDDLE).abs().sum(-1)
    assert (far == 16).all()


def test_a_loop_by_another_way_meets_the_first_at_its_ends_only(large: ImageWalk):
    walker = LoopWalker(other_way=True)
    clip = walked(large, walker)
    there, back = (cells_of(clip[:, part]) for part in (slice(AT_A, walker.tau), slice(walker.tau, -AT_A)))
    assert not any(one & other for one, other in zip(there, back, strict=True))
    assert (clip.true_pose[:, -1] == MIDDLE).all()


@pytest.mark.parametrize("walker", [LoopWalker(), ReturnWalker(20)])
def test_the_same_seed_walks_the_same_way(large: ImageWalk, walker: Returning):
    first, again, other = (walked(large, walker, seed=seed).a for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("away", [0, 40])
def test_an_agent_that_turns_looks_away_and_back(room: Rooms, away: int):
    walker = SpinReturnWalker(away)
    clip = walked(room, walker, n=6)
    off = wrapped(clip.true_pose[..., 2] - clip.true_start[:, None, 2]).abs().rad2deg()
    # The sweep covers 0 to 70 degrees and 40 on either side; all that is elsewhere looks 40 degrees to its sides.
    turn = 360 / 41
    assert (off[:, walker.out - 1 : walker.tau] > 130).all()
    side = wrapped(clip.true_pose[..., 2] - clip.true_start[:, None, 2]).sign()[:, :1]
    ahead = (side * wrapped(clip.true_pose[..., 2] - clip.true_start[:, None, 2])).rad2deg()
    scored, seen = ahead[:, walker.tau + walker.skip :], ahead[:, : walker.sweep]
    assert ((scored[:, :, None] - seen[:, None]).abs().amin(-1) < 0.01).all()
    assert scored.amin() > turn - 0.01 and scored.amax() < 8 * turn + 0.01


def test_walks_of_another_shape_are_refused(large: ImageWalk, room: Rooms):
    small = ImageWalk(torch.zeros(1, 3, 20, 20, dtype=torch.uint8), ImageWalkConfig(size=20))
    with pytest.raises(InputError, match="has 28 [+] 28 steps; 30 were asked for"):
        LoopWalker()(large, 30, torch.Generator())
    with pytest.raises(InputError, match="5 cells per axis, too few"):
        ReturnWalker(0)(small, 16 + BACK + AT_A, torch.Generator())
    with pytest.raises(InputError, match="one over images, not in Rooms"):
        LoopWalker()(room, 56, torch.Generator())
    with pytest.raises(InputError, match="steps away is -1"):
        ReturnWalker(-1)
