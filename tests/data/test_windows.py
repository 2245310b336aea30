"""Clips rendered once, cut into windows again and again."""

import pytest
import torch

from gtmsm.data.record import record
from gtmsm.data.windows import Windows, record_windows
from gtmsm.errors import InputError
from gtmsm.tensors import Gaussian
from gtmsm.worlds.floorplan import draw_floorplans
from gtmsm.worlds.rooms import Rooms, RoomsConfig
from gtmsm.worlds.scavenger import ScavengerWalker
from gtmsm.worlds.textures import load_textures
from gtmsm.worlds.walkers import SpinWalker

CLIPS, STEPS = 5, 12


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def pool():
    """Every number of step t of clip c says so."""
    clip, step = torch.arange(CLIPS).view(-1, 1), torch.arange(STEPS).view(1, -1)
    said = torch.stack(torch.broadcast_tensors(clip, step), -1)
    return Windows(
        frames=said.byte()[..., None, None].expand(CLIPS, STEPS, 2, 3, 3),
        a=said.float(),
        true_pose=10.0 * said,
        true_step=100.0 * said,
    )


@pytest.mark.parametrize("steps", [1, 7, STEPS])
def test_a_window_is_consecutive_steps_of_one_clip(pool, steps):
    clip, step = pool(200, steps, seeded()).a.unbind(-1)
    assert torch.equal(clip, clip[:, :1].expand(200, steps))
    assert torch.equal(step - step[:, :1], torch.arange(steps).float().expand(200, steps))
    assert step.min() >= 0 and step.max() < STEPS


def test_frames_actions_and_poses_stay_together(pool):
    windows = pool(50, 4, seeded())
    assert windows.x.dtype == torch.float32
    torch.testing.assert_close(255 * windows.x[..., 1, 2], windows.a)
    assert torch.equal(windows.true_pose, 10 * windows.a)
    assert torch.equal(windows.true_step, 100 * windows.a)


def test_every_clip_and_every_start_is_drawn_as_often(pool):
    windows = pool(9_000, 4, seeded()).a[:, 0].long()
    count = (windows[:, 0] * 9 + windows[:, 1]).bincount(minlength=CLIPS * 9)
    assert len(count) == CLIPS * 9
    assert (count - 200).abs().max() < 5 * 200**0.5


def test_the_same_seed_cuts_the_same_windows(pool):
    first, again, other = (pool(6, 4, seeded(seed)).a for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_windows_longer_than_clips_are_refused(pool):
    with pytest.raises(InputError, match="asked for windows of 13 steps but clips have 12; record longer clips"):
        pool(1, 13, seeded())


@pytest.fixture(scope="module")
def rooms():
    plans = draw_floorplans("room", 3, 2, load_textures("procedural"), 0)
    return Rooms(plans, RoomsConfig(textures="procedural", objects=2))


@pytest.mark.parametrize("walker", [SpinWalker(), ScavengerWalker()])
def test_what_is_recorded_for_windows_is_what_is_recorded_as_a_clip(rooms, walker):
    windows = record_windows(rooms, walker, 3, 8, seeded(4))
    clip = record(rooms, walker, 3, 8, seeded(4))
    assert windows.frames.dtype == torch.uint8
    assert torch.equal(windows.frames.float() / 255, clip.x)
    for name in ("a", "true_pose", "true_step"):
        assert torch.equal(getattr(windows, name), getattr(clip, name))


@pytest.mark.parametrize("at_once", [1, 2, 64])
def test_codes_that_were_computed_once_stay_with_their_frames(pool, at_once):
    def encode(frames):
        mean = 255 * frames[..., 1, 2]
        return Gaussian(mean, -mean)

    coded = pool.encoded(encode, at_once)
    plain, windows = pool(50, 4, seeded()), coded(50, 4, seeded())
    assert plain.code is None and torch.equal(windows.x, plain.x)
    torch.testing.assert_close(windows.code.mean, windows.a)
    assert torch.equal(windows.code.log_var, -windows.code.mean)
    assert torch.equal(windows[:, 1:3].code.mean, windows.code.mean[:, 1:3])
