"""A world and a walker become a clip."""

import pytest
import torch

from gtmsm.data.record import record
from gtmsm.worlds.image_walk import MOVES, ImageWalk, ImageWalkConfig
from gtmsm.worlds.walkers import PoissonWalker


@pytest.fixture
def world():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (5, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return ImageWalk(images, ImageWalkConfig(start="random"))


def recorded(world, seed=1, n=4, steps=30):
    return record(world, PoissonWalker(), n, steps, torch.Generator().manual_seed(seed))


def test_a_clip_has_a_frame_an_action_and_a_pose_for_every_step(world):
    clip = recorded(world)
    assert clip.x.shape == (4, 30, 3, 8, 8)
    assert clip.a.shape == (4, 30, 5)
    assert clip.true_pose.shape == (4, 30, 2)


def test_actions_are_one_hot(world):
    a = recorded(world).a
    assert a.dtype == torch.float32
    assert torch.equal(a.sum(-1), torch.ones(4, 30))
    assert torch.equal(a.max(-1).values, torch.ones(4, 30))


def test_each_pose_is_what_its_action_led_to(world):
    clip = recorded(world)
    moves = torch.tensor(MOVES)[clip.a.argmax(-1)].float()
    expected = (clip.true_pose[:, :-1] + moves[:, 1:]).clamp(0, 8)
    assert torch.equal(clip.true_pose[:, 1:], expected)


def test_each_frame_is_what_is_seen_from_its_pose(world):
    clip = recorded(world)
    for t in (0, 13, 29):
        world.place(world.image, clip.true_pose[:, t].long())
        assert torch.equal(world.look(), clip.x[:, t])


def test_the_same_seed_records_the_same_clip(world):
    first, second = recorded(world), recorded(world)
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.a, second.a)
    assert torch.equal(first.true_pose, second.true_pose)


def test_another_seed_records_another_clip(world):
    assert not torch.equal(recorded(world, seed=1).a, recorded(world, seed=2).a)
