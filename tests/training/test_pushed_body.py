"""A body that keys push, against the physics of the rooms, which it was not told."""

from functools import cache

import pytest
import torch
from torch import Tensor

from gtmsm.model.motion import MotionConfig
from gtmsm.model.motion.turning import Gliding
from gtmsm.training.pushed_body import FASTEST, PushedBody, _along, fit_body, teach
from gtmsm.worlds.physics import ACTIONS, KEYS, Body, Physics, PhysicsConfig

BODIES, STEPS = 48, 40
AHEAD, LEFT = ACTIONS.index("forward"), ACTIONS.index("turn left")


@cache
def walked() -> tuple[Tensor, Tensor]:
    """Actions and poses of bodies on open ground, from rest; keys are held for some steps."""
    chance = torch.Generator().manual_seed(0)
    physics, body = Physics(PhysicsConfig(), torch.device("cpu")), Body.at_rest(torch.zeros(BODIES, 3))
    action, actions, poses = torch.zeros(BODIES, dtype=torch.long), [], []
    for _ in range(STEPS):
        fresh = torch.rand(BODIES, generator=chance) < 0.3
        action = torch.where(fresh, torch.randint(len(ACTIONS), (BODIES,), generator=chance), action)
        body = physics.step(body, action)
        actions.append(torch.nn.functional.one_hot(action, len(ACTIONS)).float())
        poses.append(body.pose)
    return torch.stack(actions, 1), torch.stack(poses, 1)


def begun(keep: float = 0.6) -> PushedBody:
    """Moves by keys, with momentum of one number."""
    keys = torch.tensor(list(KEYS.values())).float().T
    return PushedBody(PhysicsConfig().turn * keys[2], 0.05 * keys[:2] + 0.002, keep, 0.13)


@cache
def fitted() -> PushedBody:
    body, (a, true) = begun(), walked()

    def misfit(states: Tensor) -> Tensor:
        return 100 * (states[..., :2] - true[..., :2]).square().sum(-1).mean()

    fit_body(body, a, misfit, [], 15)
    body.drop_weak_pushes()
    fit_body(body, a, misfit, [], 45)
    return body


def off(body: PushedBody) -> float:
    """How far from the truth walks end, as a share of how far they lead."""
    a, true = walked()
    with torch.no_grad():
        path = body.unroll(torch.zeros(BODIES, 5), a)[..., :2]
    return float((path[:, -1] - true[:, -1, :2]).norm(dim=-1).mean() / true[:, -1, :2].norm(dim=-1).mean())


def test_the_law_of_the_rooms_is_told_by_positions_alone():
    assert off(begun()) > 0.05
    assert off(fitted()) < 0.01


def test_a_key_that_only_turns_does_not_push():
    body, spins = fitted(), torch.eye(len(ACTIONS))[LEFT].expand(1, 20, -1)
    with torch.no_grad():
        states = body.unroll(torch.zeros(1, 5), spins)
    assert bool((states[..., :2] == 0).all()) and states[0, -1, 2] > 1


def test_who_lets_go_comes_to_rest_and_who_pushes_on_reaches_a_top_speed():
    body, held = fitted(), torch.eye(len(ACTIONS))[AHEAD].expand(1, 40, -1)
    top = PhysicsConfig().top_speed * PhysicsConfig().ticks * PhysicsConfig().tick
    with torch.no_grad():
        states = body.unroll(torch.zeros(1, 5), torch.cat([held, torch.zeros(1, 40, len(ACTIONS))], 1))
    step = states[0, :, 0].diff()
    torch.testing.assert_close(step[35], torch.tensor(top), rtol=0.03, atol=0)
    assert step[-1].abs() < 0.03 * top


def test_no_direction_is_special():
    """Heading the other way from the start, a body goes the same way the other way round."""
    body, (a, _) = fitted(), walked()
    with torch.no_grad():
        one = body.unroll(torch.zeros(BODIES, 5), a)
        other = body.unroll(torch.tensor([0.0, 0.0, torch.pi, 0.0, 0.0]).repeat(BODIES, 1), a)
    torch.testing.assert_close(other[..., :2], -one[..., :2], rtol=0, atol=1e-4)
    torch.testing.assert_close(other[..., 3:], one[..., 3:], rtol=0, atol=1e-4)


def test_turns_change_only_where_they_are_asked_for():
    """Told headings that are turned too far, a body learns them if it may."""
    body, (a, _) = begun(), walked()
    began = body.turn.detach().clone()
    heading = 1.01 * (a @ began).cumsum(1)

    def misfit(states: Tensor) -> Tensor:
        return 1e4 * (states[..., 2] - heading).square().mean() + states[..., :2].square().mean()

    fit_body(body, a, misfit, [], 5)
    assert torch.equal(body.turn, began)
    fit_body(body, a, misfit, [], 30, turns=True)
    torch.testing.assert_close(body.turn[LEFT], 1.01 * began[LEFT], rtol=1e-3, atol=0)


def test_states_go_on_where_a_walk_was_cut():
    body, (a, _) = fitted(), walked()
    with torch.no_grad():
        whole = body.unroll(torch.zeros(BODIES, 5), a)
        rest = body.unroll(whole[:, 14], a[:, 15:])
    torch.testing.assert_close(rest, whole[:, 15:], rtol=0, atol=1e-5)


def test_curves_by_which_bodies_drift_apart_are_strange_and_do_not_end_a_fit():
    body, (a, _) = begun(), walked()
    assert body.strangeness == 0
    with torch.no_grad():
        body.drag[FASTEST // 2] += 2  # a little faster is much faster after it
    assert body.strangeness > 1
    fit_body(body, a, lambda states: states[..., :2].square().sum(-1).mean(), [], 10)
    assert all(bool(part.isfinite().all()) for part in body.parameters())


def test_a_gliding_network_learns_to_step_as_the_body_does():
    torch.manual_seed(0)
    motion, body, (a, true) = Gliding(MotionConfig(kind="gliding"), len(ACTIONS)), fitted(), walked()
    teach(motion, body, a, 1_500, torch.Generator().manual_seed(1), batch=256)
    with torch.no_grad():
        path = motion.unroll(motion.start(BODIES), a)
    torch.testing.assert_close(motion.turn, body.turn)
    far = true[:, -1, :2].norm(dim=-1).mean()
    assert (path[:, -1, :2] - true[:, -1, :2]).norm(dim=-1).mean() < 0.03 * far
    assert (path[..., 2] - true[..., 2]).abs().max() < 0.02


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU captures graphs")
def test_captured_states_and_gradients_are_those_of_the_loop_after_parameters_changed():
    keys = torch.tensor(list(KEYS.values()), device="cuda").float().T
    a, body = walked()[0].cuda(), PushedBody(PhysicsConfig().turn * keys[2], 0.05 * keys[:2], 0.6, 0.13)
    states, parameters = _along(body, a), [body.push, body.drag, body.fade]
    others = [torch.full((len(a), 5), 7.0, device="cuda") for _ in range(64)]  # where something may have been freed
    with torch.no_grad():
        body.push.add_(0.01)
    found = []
    for along in (states, states, lambda: body.unroll(body.start(len(a)), a)):
        path = along()
        gradients = torch.autograd.grad(path.square().mean(), parameters)
        # A replay writes its results where the one before wrote them, and a backward pass uses up those of its forward.
        found.append([part.clone() for part in (path.detach(), *gradients)])
    assert len(others) == 64
    for first, second, plain in zip(*found, strict=True):
        torch.testing.assert_close(first, plain)
        torch.testing.assert_close(second, plain)
