"""How actions move the pose, and how sure one can be of it."""

import math

import pytest
import torch

from gtmsm.errors import InputError
from gtmsm.model.motion import Free, MotionConfig, Walled, build_motion
from gtmsm.tensors import Belief


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def motion_of(kind, size=2, noise=1e-3, hidden=8, actions=5):
    torch.manual_seed(0)
    return build_motion(MotionConfig(kind=kind, state_size=size, noise=noise, hidden=hidden), actions).double()


def actions_of(batch, steps, size=5, scale=1.0):
    return scale * torch.randn(batch, steps, size, dtype=torch.float64, generator=seeded(1))


def open_wide(motion):
    """No wall anywhere: sigma_d is 1."""
    with torch.no_grad():
        motion.v.zero_()
        motion.c.fill_(50.0)
    return motion


@pytest.mark.parametrize(("kind", "cls"), [("free", Free), ("walled", Walled)])
def test_settings_name_the_motion(kind, cls):
    assert type(build_motion(MotionConfig(kind=kind), 5)) is cls


@pytest.mark.parametrize("size", [1, 2, 3])
def test_walking_freely_is_a_running_sum(size):
    motion, a = motion_of("free", size), actions_of(3, 12)
    start = torch.randn(3, size, dtype=torch.float64, generator=seeded(2))
    noise = torch.randn(3, 12, size, dtype=torch.float64, generator=seeded(3))
    s = start
    for t, pose in enumerate(motion.unroll(start, a, noise).unbind(1)):
        s = s + a[:, t] @ motion.M.T + noise[:, t]
        torch.testing.assert_close(pose, s, rtol=1e-12, atol=1e-12)


def test_there_and_back_again_ends_where_it_began():
    motion = motion_of("free", actions=2)
    with torch.no_grad():
        motion.M.copy_(torch.tensor([[1.0, -1.0], [0.5, -0.5]]))
    a = torch.eye(2, dtype=torch.float64)[[0, 0, 0, 1, 1, 1]][None]
    assert torch.equal(motion.unroll(motion.start(1), a)[0, -1], torch.zeros(2, dtype=torch.float64))


def test_where_no_wall_is_walled_is_free():
    walled, free, a = open_wide(motion_of("walled")), motion_of("free"), actions_of(4, 20)
    with torch.no_grad():
        free.M.copy_(walled.M)
    noise = walled.draw_noise(a, seeded(2))
    start = walled.start(4)
    torch.testing.assert_close(walled.unroll(start, a, noise), free.unroll(start, a, noise), rtol=1e-12, atol=1e-12)


def test_a_wall_stops_the_walker():
    motion = motion_of("walled", size=1, hidden=1, actions=2)
    with torch.no_grad():  # sigma_d(q) = sigmoid(20 - 100 relu(q - 3)): open up to 3, shut from 3.5 on
        motion.M.copy_(torch.tensor([[1.0, -1.0]]))
        motion.W.fill_(1.0), motion.b.fill_(-3.0), motion.v.fill_(-100.0), motion.c.fill_(20.0)
    forth, back = torch.eye(2, dtype=torch.float64)
    a = torch.stack([forth] * 8 + [back] * 2)[None]
    walked = motion.unroll(motion.start(1), a).flatten()
    expected = torch.tensor([1, 2, 3, 3, 3, 3, 3, 3, 2, 1], dtype=torch.float64)
    torch.testing.assert_close(walked, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", ["free", "walled"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_unrolling_is_stepping(kind, size):
    motion, a = motion_of(kind, size), actions_of(3, 15)
    noise = motion.draw_noise(a, seeded(2))
    s = motion.start(3)
    for t, pose in enumerate(motion.unroll(s, a, noise).unbind(1)):
        s = motion.step(s, a[:, t]) + noise[:, t]
        torch.testing.assert_close(pose, s, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", ["free", "walled"])
def test_without_noise_the_mean_path_is_walked(kind):
    motion, a = motion_of(kind), actions_of(2, 9)
    still = torch.zeros(2, 9, 2, dtype=torch.float64)
    assert torch.equal(motion.unroll(motion.start(2), a), motion.unroll(motion.start(2), a, still))


@pytest.mark.parametrize("kind", ["free", "walled"])
def test_every_walk_begins_at_the_origin(kind):
    start = motion_of(kind).start(4)
    assert torch.equal(start, torch.zeros(4, 2, dtype=torch.float64))


def test_noise_is_as_strong_as_the_settings_say():
    noise = motion_of("free", noise=0.2).draw_noise(actions_of(200, 200), seeded(4))
    assert noise.std().item() == pytest.approx(0.2, rel=0.02)
    assert abs(noise.mean().item()) < 0.005


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_uncertainty_of_a_free_walk_grows_by_r_squared_a_step(size):
    motion, a = motion_of("free", size, noise=0.1), actions_of(3, 13)
    root = torch.randn(3, size, size, dtype=torch.float64, generator=seeded(5))
    first = root @ root.mT
    belief = motion.believe(Belief(motion.start(3), first), a)
    t = torch.arange(1, 14, dtype=torch.float64)[None, :, None, None]
    expected = first[:, None] + t * 0.1**2 * torch.eye(size, dtype=torch.float64)
    torch.testing.assert_close(belief.covariance, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(belief.mean, motion.unroll(motion.start(3), a))


def test_a_pose_known_exactly_is_a_belief_of_no_spread():
    motion, a = motion_of("walled", noise=0.1), actions_of(2, 7)
    certain = Belief(motion.start(2), torch.zeros(2, 2, 2, dtype=torch.float64))
    unsaid = Belief(motion.start(2))
    torch.testing.assert_close(
        motion.believe(unsaid, a).covariance, motion.believe(certain, a).covariance, rtol=1e-12, atol=1e-14
    )


def test_covariances_follow_the_jacobians_of_the_steps():
    motion, a = motion_of("walled", noise=0.1), actions_of(2, 9)
    belief = motion.believe(Belief(motion.start(2)), a)
    for i in range(2):
        s, P = motion.start(1)[0], torch.zeros(2, 2, dtype=torch.float64)
        for t in range(9):
            J = torch.autograd.functional.jacobian(lambda s, i=i, t=t: motion.step(s, a[i, t]), s)
            s, P = motion.step(s, a[i, t]).detach(), J @ P @ J.T + 0.01 * torch.eye(2, dtype=torch.float64)
            torch.testing.assert_close(belief.covariance[i, t], P, rtol=1e-9, atol=1e-12)


def gentle_walls():
    """Steps shrink smoothly to the right: sigma_d falls from 0.9 to 0.1 over a few units of length."""
    motion = motion_of("walled", noise=0.02, hidden=2)
    with torch.no_grad():
        motion.M.copy_(torch.tensor([[0.4, 0.0, 0.3, 0.2, -0.1], [0.0, 0.4, 0.1, -0.2, 0.3]]))
        motion.W.copy_(torch.tensor([[1.0, 0.3], [0.2, 1.0]]))
        motion.b.fill_(3.0), motion.v.fill_(-0.8), motion.c.fill_(5.0)
    return motion


def test_the_belief_between_gentle_walls_is_that_of_many_sampled_walks():
    motion, walks = gentle_walls(), 40_000
    a = torch.rand(1, 10, 5, dtype=torch.float64, generator=seeded(6))
    belief = motion.believe(Belief(motion.start(1)), a)
    many = a.expand(walks, -1, -1)
    samples = motion.unroll(motion.start(walks), many, motion.draw_noise(many, seeded(7))).detach()
    for t in (0, 4, 9):
        sampled = torch.cov(samples[:, t].T)
        scale = sampled.diagonal().mean().item()
        # four standard errors of a variance, and a little for what linearising leaves out
        torch.testing.assert_close(belief.covariance[0, t], sampled, rtol=0, atol=0.04 * scale)
        torch.testing.assert_close(belief.mean[0, t], samples[:, t].mean(0), rtol=0, atol=0.03 * scale**0.5)
    free = 10 * motion.noise**2 * torch.eye(2, dtype=torch.float64)
    assert (belief.covariance[0, 9] - free).abs().max() > 0.2 * free.max(), "these walls would not have mattered"


@pytest.mark.parametrize("kind", ["free", "walled"])
def test_believing_in_two_parts_is_believing_at_once(kind):
    motion, a = motion_of(kind, noise=0.1), actions_of(3, 11)
    whole = motion.believe(Belief(motion.start(3)), a)
    first = motion.believe(Belief(motion.start(3)), a[:, :4])
    second = motion.believe(first[:, -1], a[:, 4:])
    torch.testing.assert_close(second.mean, whole.mean[:, 4:], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(second.covariance, whole.covariance[:, 4:], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["free", "walled"])
def test_every_parameter_of_a_motion_feels_where_the_walk_ends(kind):
    motion = motion_of(kind)
    with torch.no_grad():
        motion.M.mul_(10)  # long steps, to reach the fence
    motion.unroll(motion.start(3), actions_of(3, 8))[:, -1].square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in motion.parameters())


def test_an_earlier_action_moves_every_later_pose_and_no_earlier_one():
    motion, a = motion_of("walled"), actions_of(1, 6).requires_grad_()
    poses = motion.unroll(motion.start(1), a)
    for t in range(6):
        (gradient,) = torch.autograd.grad(poses[0, t].sum(), a, retain_graph=True)
        assert (gradient[0].abs().sum(-1) > 0).tolist() == [i <= t for i in range(6)]


@pytest.mark.parametrize("kind", ["free", "walled"])
def test_a_scout_walks_freely_with_the_same_moves(kind):
    motion, a = motion_of(kind), actions_of(2, 7)
    scout = motion.scout()
    assert list(scout.names) == ["M"]
    assert not scout.angles
    expected = (a @ motion.M.T).cumsum(1)
    torch.testing.assert_close(scout.motion(motion.start(2), a), expected, rtol=1e-12, atol=1e-12)


def test_a_scout_is_a_copy():
    motion = motion_of("walled")
    before = motion.M.detach().clone()
    with torch.no_grad():
        motion.scout().motion.M.add_(1)
    assert torch.equal(motion.M, before)


def open_everywhere(logit=0.0, moves=((1.0, -1.0), (0.0, 0.0))):
    """No wall is known yet; sigma_d is everywhere as open as `logit` says."""
    motion = motion_of("walled", actions=2)
    with torch.no_grad():
        motion.M.copy_(torch.tensor(moves))
        motion.v.zero_(), motion.c.fill_(logit)
    return motion


@pytest.mark.parametrize("logit", [-4.0, 0.0, 4.0])
@pytest.mark.parametrize(("made", "opens"), [(8, True), (6, True), (4, False), (2, False)])
def test_walls_settle_for_what_most_steps_do(logit, made, opens):
    motion = open_everywhere(logit)
    a = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(1, 10, 2)
    steps = torch.zeros(1, 10, 2, dtype=torch.float64)
    steps[0, :made, 0] = 1.0
    motion.regret(torch.zeros_like(steps), a, steps).mean().backward()
    # of ten steps, each that was made opens sigma_d by as much as one that failed closes it
    assert motion.c.grad.item() == pytest.approx((10 - 2 * made) / 10 / 6)
    assert (motion.c.grad < 0) == opens


def test_moves_settle_for_what_most_steps_do():
    motion = open_everywhere(moves=((0.5, 0.0), (0.0, 0.0)))
    a = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(1, 10, 2)
    steps = torch.zeros(1, 10, 2, dtype=torch.float64)
    steps[0, :8, 0] = 1.0
    motion.regret(torch.zeros_like(steps), a, steps).mean().backward()
    assert motion.M.grad[0, 0].item() == pytest.approx(-0.6, abs=1e-4)


def test_who_does_not_try_to_move_learns_nothing_of_walls():
    motion = open_everywhere(moves=((1.0, 0.0), (0.0, 0.0)))
    a = torch.eye(2, dtype=torch.float64)[None]
    steps = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    regret = motion.regret(torch.zeros_like(steps), a, steps)
    assert regret[0, 0] > 0.9 and regret[0, 1] < 0.01


def test_what_was_foreseen_is_not_regretted():
    motion = open_everywhere(logit=10.0)
    a = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    steps = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]], dtype=torch.float64)
    assert motion.regret(torch.zeros_like(steps), a, steps).max() < 0.01


@pytest.mark.parametrize("kind", ["free", "walled"])
def test_going_is_stepping_where_nothing_is_in_the_way(kind):
    motion, a, s = motion_of(kind), actions_of(3, 4), 5 * torch.ones(3, 4, 2, dtype=torch.float64)
    torch.testing.assert_close(motion.go(s, a), s + a @ motion.M.T, rtol=1e-12, atol=1e-12)


def test_steps_retraced_are_the_poses_they_led_to():
    motion = motion_of("walled")
    poses = motion.unroll(motion.start(2), actions_of(2, 9))
    torch.testing.assert_close(motion.retrace(motion.displacement(poses)), poses, rtol=1e-12, atol=1e-12)
    assert torch.equal(motion.pose_at(motion.place(poses)), poses)


def test_who_has_no_velocity_is_where_it_is_seen():
    motion = motion_of("walled")
    s, pose = actions_of(3, 1, size=2)[:, 0], actions_of(3, 2, size=2)[:, 1]
    assert torch.equal(motion.settle(s, pose), pose)


def number(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(("kind", "rest"), [("gliding", []), ("drifting", [0.2])])
def test_an_agent_that_got_less_far_than_planned_is_slower_too(kind, rest):
    """Ahead is up on the map: planned to (0, 0.3) at a speed of 0.3, and seen at (0, 0.25)."""
    up = math.pi / 2
    planned = number(0.0, 0.3, up, 0.3, 0.0, *rest)
    settled = motion_of(kind).settle(planned, number(0.0, 0.25, up))
    believed = math.exp(-(0.05**2) / (2 * 0.2**2))
    assert settled.tolist() == pytest.approx([0.0, 0.25, up, 0.3 - believed * 0.05, 0.0, *rest])


@pytest.mark.parametrize("kind", ["gliding", "drifting"])
def test_a_correction_larger_than_a_step_leaves_the_speed(kind):
    motion = motion_of(kind)
    planned = 0.3 * torch.ones(2, motion.state_size, dtype=torch.float64)
    settled = motion.settle(planned, number(5.0, -5.0, 1.0).expand(2, 3))
    torch.testing.assert_close(settled[:, 3:], planned[:, 3:], rtol=0, atol=1e-12)
    assert torch.equal(settled[0, :3], number(5.0, -5.0, 1.0))


@pytest.mark.parametrize("kind", ["turning", "drifting", "gliding"])
def test_an_agent_with_a_heading_finds_its_poses_again(kind):
    motion = motion_of(kind)
    states = motion.unroll(motion.start(2), actions_of(2, 9, scale=0.3))
    pose, found = states[..., :3], motion.pose_at(motion.place(states))
    turn = torch.remainder(found[..., 2] - pose[..., 2] + math.pi, 2 * math.pi) - math.pi
    torch.testing.assert_close(found[..., :2], pose[..., :2], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(turn, torch.zeros_like(turn), rtol=0, atol=1e-9)
    torch.testing.assert_close(motion.retrace(motion.displacement(states)), pose, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"fence": -1.0}, "fence is -1.0; give the walls some distance from the start, or 0 for no fence"),
        ({"state_size": 0}, "state_size is 0; a pose needs at least 1 dimension"),
        ({"noise": -0.1}, "noise is -0.1; a standard deviation cannot be negative"),
        ({"hidden": 0}, "hidden is 0; a network needs at least 1 unit"),
    ],
)
def test_a_motion_nobody_can_build_is_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        MotionConfig(**wrong)
