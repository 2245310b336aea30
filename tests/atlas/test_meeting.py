"""The rigid motion between two agents' frames."""

import math

import pytest
import torch
from torch import Tensor

from gtmsm.atlas.meeting import Meeting, _agreed, is_clear, meet
from gtmsm.atlas.recognisers import ByLandmarks, ByLikeness, Sights, recogniser
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.memory import Memory
from gtmsm.model.motion import MotionConfig
from gtmsm.model.motion.turning import Turning
from gtmsm.model.recognition import LandmarkConfig
from gtmsm.pose import Plane, PlaneWithHeading, Space
from gtmsm.tensors import Belief, Gaussian

POSES = {2: Plane(2), 3: PlaneWithHeading()}


def some_meeting(space: Space, seed: int) -> Meeting:
    chance = torch.Generator().manual_seed(seed)
    half = 0.1 * torch.randn(space.size, space.size, generator=chance)
    return Meeting(2 * torch.randn(space.size, generator=chance), half @ half.mT, 10.0, 0.9)


@pytest.mark.parametrize("space", POSES.values(), ids=["plane", "heading"])
def test_there_and_back_is_where_one_was(space: Space):
    motion, pose = some_meeting(space, 0), torch.randn(5, space.size)
    there = space.step(motion.origin, pose)
    back = space.step(motion.inverse(space).origin, there)
    assert space.difference(back, pose).abs().max() < 1e-5
    again = motion.inverse(space).inverse(space)
    assert torch.allclose(again.covariance, motion.covariance, atol=1e-5)


@pytest.mark.parametrize("space", POSES.values(), ids=["plane", "heading"])
def test_one_motion_after_the_other_is_one_motion(space: Space):
    inner, outer, pose = some_meeting(space, 0), some_meeting(space, 1), torch.randn(5, space.size)
    both = space.step(inner.then(outer, space).origin, pose)
    assert space.difference(both, space.step(outer.origin, space.step(inner.origin, pose))).abs().max() < 1e-5


def test_the_uncertainty_of_two_motions_is_that_of_samples():
    space, inner, outer = PlaneWithHeading(), some_meeting(PlaneWithHeading(), 2), some_meeting(PlaneWithHeading(), 3)
    torch.manual_seed(0)
    one, two = (
        m.origin + 0.1 * torch.randn(100_000, 3) @ torch.linalg.cholesky(m.covariance + 1e-9 * torch.eye(3)).mT
        for m in (inner, outer)
    )
    spread = space.step(two, one).T.cov()
    assert torch.allclose(0.01 * inner.then(outer, space).covariance, spread, atol=0.03 * float(spread.abs().max()))


def landmarks_with_heading() -> ByLandmarks:
    settings = WorldModelConfig(
        vae=FrameVAEConfig(width=16, code_size=4),
        motion=MotionConfig(kind="turning", noise=1e-2),
        landmark=LandmarkConfig(form="bayes", width=8),
    )
    return ByLandmarks(WorldModel(settings, (3, 8, 8), 4).require_landmarks("test"))


@pytest.mark.parametrize("wrong", [0.0, 0.5, 0.8])
def test_a_motion_is_found_among_sights_most_of_which_are_wrong(wrong: float):
    space, chance = PlaneWithHeading(), torch.Generator().manual_seed(1)
    pose = torch.cat([6 * torch.rand(100, 2, generator=chance), 6 * torch.rand(100, 1, generator=chance)], 1)
    true = torch.tensor([3.0, -2.0, 2.5])
    sighted = space.step(true, pose) + 0.02 * torch.randn(100, 3, generator=chance)
    astray = torch.rand(100, generator=chance) < wrong
    anywhere = torch.cat([8 * torch.randn(100, 2, generator=chance), 6 * torch.rand(100, 1, generator=chance)], 1)
    sighted = torch.where(astray[:, None], anywhere, sighted)[:, None]
    sights = Sights(pose, sighted, torch.full((100, 1), 0.9), torch.full((100, 1, 3), 0.02**2))
    found = _agreed(landmarks_with_heading(), sights)
    assert found is not None
    error = space.difference(true, found.origin)
    assert error[:2].norm() < 0.03 and abs(float(error[2])) < math.radians(0.5)
    assert found.sights == pytest.approx(0.9 * float((~astray).sum()), rel=0.1)
    assert float(error @ torch.linalg.inv(found.covariance) @ error) < 16.3  # as sure as it is: 999 of 1,000


def test_too_few_sights_are_no_meeting():
    few = int(ByLandmarks.fewest) - 1
    pose = torch.rand(few, 3)
    sights = Sights(pose, pose[:, None], torch.ones(few, 1), torch.full((few, 1, 3), 1e-3))
    assert _agreed(landmarks_with_heading(), sights) is None


def test_of_two_motions_that_explain_as_much_none_is_clear():
    best, next_best = some_meeting(Plane(2), 0), some_meeting(Plane(2), 1)
    assert not is_clear([]) and is_clear([best]) and not is_clear([best, next_best])
    assert is_clear([Meeting(best.origin, best.covariance, 20.0, 0.9), next_best])


def test_entries_in_another_frame_are_less_sure_of_their_poses():
    space, motion = PlaneWithHeading(), some_meeting(PlaneWithHeading(), 4)
    pose, code = torch.tensor([[[0.0, 0.0, 0.0], [10.0, 0.0, 1.0]]]), torch.zeros(1, 2, 4)
    memory = Memory(Belief(space.place(pose)), Gaussian(code, code), variance=torch.full((1, 2, 2), 0.5))
    moved = motion.moved(memory, space)
    expected = space.step(motion.origin, pose)
    assert space.difference(space.pose_at(moved.place.mean), expected).abs().max() < 1e-5
    assert moved.variance is not None
    assert moved.variance[0, 1, 0] > moved.variance[0, 0, 0] > 0.5
    assert torch.equal(memory.place.mean, space.place(pose))
    # A doubt about the heading moves a place that is 10 away across the line of sight: half of it along each axis.
    added = 0.5 * float(motion.covariance[2, 2]) * 100 + 0.5 * float(motion.covariance.diagonal()[:2].sum())
    assert float(moved.variance[0, 1, 0]) - 0.5 == pytest.approx(added, rel=1e-4)


# ---- without landmarks


def a_walk(seed: int, here: Tensor, place: int = 0) -> Memory:
    """An agent goes to and fro around its origin, which is at `here`; its codes are smooth functions of where it is."""
    space, chance = PlaneWithHeading(), torch.Generator().manual_seed(seed)
    rate, phase = 0.1 + 0.05 * torch.rand(3, generator=chance), 6 * torch.rand(3, generator=chance)
    path = (rate * torch.arange(400)[:, None] + phase).sin()
    pose = space.place(space.step(here, path))
    waves = torch.randn(4, 16, generator=torch.Generator().manual_seed(place))
    code = torch.cat([(pose @ waves).sin(), (pose @ waves).cos()], -1)[None]
    return Memory(Belief(space.place(path)[None]), Gaussian(code, torch.full_like(code, -8.0)), weights="some")


@pytest.fixture(scope="module")
def walker() -> WorldModel:
    """It has no landmarks; a step is 0.1, a turn 0.1 too, in radians."""
    model = WorldModel(WorldModelConfig(motion=MotionConfig(kind="turning", noise=1e-2)), (3, 8, 8), 2)
    assert isinstance(model.motion, Turning)
    model.motion.move.data, model.motion.turn.data = torch.tensor([[0.1, 0.0], [0.0, 0.0]]), torch.tensor([0.0, 0.1])
    return model


def test_without_landmarks_maps_meet_by_views_that_look_alike(walker: WorldModel):
    space, there = PlaneWithHeading(), torch.tensor([0.4, -0.3, 1.0])
    mine = a_walk(1, torch.zeros(3))
    found = meet(walker, mine, a_walk(2, there))
    assert is_clear(found)
    error = space.difference(there, found[0].origin)
    assert error[:2].norm() < 0.1 and abs(float(error[2])) < math.radians(5)
    assert not meet(walker, mine, a_walk(3, there, place=1))


def test_how_much_views_differ_is_measured_in_steps_of_their_walks(walker: WorldModel):
    mine = a_walk(1, torch.zeros(3))
    known = recogniser(walker, mine)
    assert isinstance(known, ByLikeness)
    assert torch.allclose(known.tolerance, torch.tensor([0.15, 0.15, 0.1]))
    entries = mine.code
    near = Gaussian(entries.mean[:, 1:, None], entries.log_var[:, 1:, None])
    alike = known.alike(near, entries[:, :-1], torch.zeros(1, 399, 1, 3))
    assert 0.5 < float(alike.float().mean()) < 0.95
    sights = known.sights(mine, mine)
    assert torch.equal(sights.weight[:, 0], torch.ones(400))
    usual = (entries.mean[0, 1:] - entries.mean[0, :-1]).square().mean(-1).median() / (2 * math.exp(-8.0))
    assert float(known.usual) == pytest.approx(float(usual), rel=1e-4)
    assert 0.05 < float(sights.weight[:, 1].median()) < 0.95


def test_without_landmarks_more_places_must_be_recognised(walker: WorldModel):
    known, pose = recogniser(walker, a_walk(1, torch.zeros(3))), torch.rand(9, 3)
    assert _agreed(known, Sights(pose, pose[:, None], torch.ones(9, 1), torch.full((9, 1, 3), 1e-3))) is None
