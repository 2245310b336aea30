"""Steps that fail: told from the view before them."""

import pytest
import torch

from gtmsm.errors import InputError
from gtmsm.model.bumps import Bumps
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.motion.base import MotionConfig
from gtmsm.model.planning import Obstacles
from gtmsm.model.recall import RecallConfig

FORWARD, LEFT = 0, 1
SCENES = torch.rand(1, 64, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def fails_at_dark(bumps: Bumps) -> None:
    """By hand: forward fails where the first number of a code is negative, from however far it was seen."""
    for parameter in bumps.parameters():
        torch.nn.init.zeros_(parameter)
    first, second, last = (layer for layer in bumps.network if isinstance(layer, torch.nn.Linear))
    with torch.no_grad():
        first.weight[0, 0], second.weight[0, 0], last.weight[FORWARD, 0] = -100.0, 1.0, 1.0


@pytest.fixture
def bumps() -> Bumps:
    bumps = Bumps(2, 2, 4)
    fails_at_dark(bumps)
    return bumps


def codes(*first: float) -> torch.Tensor:
    return torch.tensor([[[value, 0.3] for value in first]])


def actions(*which: int) -> torch.Tensor:
    return torch.eye(2)[torch.tensor([which])]


def test_a_step_fails_by_the_view_before_it_and_not_by_its_own(bumps: Bumps):
    made = bumps.noticed(codes(-1.0, 1.0, -1.0), actions(FORWARD, FORWARD, FORWARD), None)
    assert made[0, :, FORWARD].tolist() == [1, 0, 1]


def test_actions_that_cannot_fail_there_do_not(bumps: Bumps):
    assert bumps.noticed(codes(-1.0, 1.0), actions(FORWARD, LEFT), None)[0, 1].tolist() == [0, 1]


def test_the_view_before_the_first_step_may_be_known(bumps: Bumps):
    for before, expected in ((-1.0, 0.0), (1.0, 1.0)):
        made = bumps.noticed(codes(1.0), actions(FORWARD), codes(before)[:, 0])
        assert made[0, 0, FORWARD] == expected


def a_model() -> WorldModel:
    """An agent that turns by a quarter and walks a cell; its forward steps fail where it is dark."""
    torch.manual_seed(0)
    settings = WorldModelConfig(
        vae=FrameVAEConfig(width=8, code_size=2),
        motion=MotionConfig(kind="turning"),
        recall=RecallConfig(neighbours=1),
        bumps=4,
    )
    model = WorldModel(settings, (1, 4, 4), 2).eval().requires_grad_(False)
    model.motion.move.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    model.motion.turn.copy_(torch.tensor([0.0, torch.pi / 2]))
    assert model.bumps is not None
    fails_at_dark(model.bumps)
    model.vae.encoder[-1].bias[0] -= model.vae.encode(SCENES).mean[..., 0].median()
    return model


def walked(model: WorldModel, which: list[int], dark: list[bool]) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames whose codes say whether it is dark."""
    first = model.vae.encode(SCENES).mean[0, :, 0]
    light, shade = SCENES[0, first.argmax()], SCENES[0, first.argmin()]
    return torch.stack([shade if each else light for each in dark])[None], actions(*which)


def test_an_agent_that_bumped_while_memorising_stays_where_it_was():
    model = a_model()
    frames, tried = walked(model, [FORWARD, FORWARD, FORWARD, LEFT], [False, True, True, False])
    walk = model.follow(frames, tried).mean
    assert walk[0, :, 0].tolist() == [1, 2, 2, 2]  # the third step met what the second saw


def test_walking_on_from_a_memory_remembers_what_was_seen_last():
    model = a_model()
    frames, tried = walked(model, [FORWARD, FORWARD, FORWARD], [False, True, True])
    whole = model.follow(frames, tried).mean
    memory, here = model.memorise(frames[:, :2], tried[:, :2])
    torch.testing.assert_close(model.follow(frames[:, 2:], tried[:, 2:], memory, here).mean, whole[:, 2:])


def test_an_imagined_agent_bumps_where_memory_shows_a_wall():
    model = a_model()
    # To a wall two cells ahead, around, and back to where it began.
    way = [FORWARD, FORWARD, LEFT, LEFT, FORWARD, FORWARD, LEFT, LEFT]
    frames, tried = walked(model, way, [False, True, False, False, False, False, False, False])
    memory, here = model.memorise(frames, tried)
    dream = model.imagine(memory, here, actions(FORWARD, FORWARD, FORWARD, FORWARD))
    assert here.mean[0, 0] == pytest.approx(0, abs=1e-5)
    assert dream.poses[0, :, 0].tolist() == pytest.approx([1, 2, 2, 2], abs=1e-5)


def test_bumps_foreseen_at_once_are_those_of_step_after_step():
    model, generator = a_model(), torch.Generator().manual_seed(1)
    model.motion.turn[LEFT] = 0.7  # no pose comes back, so that no two entries are equally near
    which = torch.randint(2, (30,), generator=generator).tolist()
    frames, tried = walked(model, which, (torch.rand(30, generator=generator) < 0.4).tolist())
    memory, here = model.memorise(frames, tried)
    plan = torch.eye(2)[torch.randint(2, (5, 40), generator=generator)]
    state, made = here.mean.expand(5, -1), []
    for a in plan.split(1, dim=1):
        made.append(model.bumps.foreseen(model, memory, state, a))
        state = model.motion.unroll(state, made[-1])[:, -1]
    expected = torch.cat(made, dim=1)
    assert 10 < (expected != plan).any(-1).sum() < 100
    assert torch.equal(model.bumps.foreseen(model, memory, here.mean.expand(5, -1), plan), expected)


def test_bumps_foreseen_beyond_an_obstacle_are_those_of_step_after_step():
    model, generator = a_model(), torch.Generator().manual_seed(1)
    model.motion.turn[LEFT] = 0.7
    which = torch.randint(2, (30,), generator=generator).tolist()
    frames, tried = walked(model, which, (torch.rand(30, generator=generator) < 0.4).tolist())
    memory, here = model.memorise(frames, tried)
    bumped = torch.randn(8, 2, generator=generator).double().numpy() * 3
    obstacles = Obstacles(model.motion, bumped, bumped[:1] + 100, 0.5, 0.5)
    plan = torch.eye(2)[torch.randint(2, (5, 40), generator=generator)]
    state, path = here.mean.expand(5, -1), []
    for a in plan.split(1, dim=1):
        state = obstacles.unroll(state, model.bumps.foreseen(model, memory, state, a))[:, -1]
        path.append(state)
    expected = torch.stack(path, dim=1)
    dream = model.imagine(memory, here, plan, obstacles=obstacles)
    torch.testing.assert_close(dream.poses, expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(dream.poses, model.imagine(memory, here, plan).poses)


def test_fewer_than_no_units_are_refused():
    with pytest.raises(InputError, match="bumps is -1"):
        WorldModelConfig(bumps=-1)
