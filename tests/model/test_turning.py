"""Agents with a heading: they move along it, drift, and glide."""

import math

import pytest
import torch
from torch.func import functional_call

from gtmsm.errors import InputError
from gtmsm.model.motion import Drifting, Gliding, MotionConfig, Rolling, Turning, build_motion
from gtmsm.tensors import Belief

KINDS = {"turning": Turning, "drifting": Drifting, "gliding": Gliding, "rolling": Rolling}
EVERY = ["free", "walled", *KINDS]
FORWARD, LEFT, RIGHT = range(3)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


def exactly(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def motion_of(kind, actions=3, noise=0.05, hidden=7, literal=False):
    """A motion whose every parameter matters."""
    torch.manual_seed(0)
    settings = MotionConfig(kind=kind, noise=noise, hidden=hidden, literal=literal)
    motion = build_motion(settings, actions).double()
    with torch.no_grad():
        for name, parameter in motion.named_parameters():
            if name in ("move", "turn", "V", "friction", "spin_V"):
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=seeded(3)))
    return motion


def one_hot(*which, actions=3):
    return torch.eye(actions, dtype=torch.float64)[list(which)][None]


def walker(turn=math.pi / 2, move=1.0):
    """Goes ahead, turns left, turns right."""
    motion = motion_of("turning")
    with torch.no_grad():
        motion.move.copy_(exactly([move, 0.0, 0.0], [0.0, 0.0, 0.0]))
        motion.turn.copy_(exactly(0.0, turn, -turn))
    return motion


@pytest.mark.parametrize(("kind", "cls"), KINDS.items())
def test_settings_name_the_motion(kind, cls):
    assert type(build_motion(MotionConfig(kind=kind), 5)) is cls


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize(("batch", "steps"), [(1, 1), (1, 9), (4, 15), (2, 0)])
@pytest.mark.parametrize("noisy", [False, True])
def test_unrolling_is_stepping(kind, batch, steps, noisy):
    motion, a = motion_of(kind), drawn(batch, steps, 3, seed=1)
    noise = motion.draw_noise(a, seeded(2)) if noisy else None
    s = 0.3 * drawn(batch, motion.state_size, seed=4)
    poses = motion.unroll(s, a, noise)
    assert poses.shape == (batch, steps, motion.state_size)
    for t, pose in enumerate(poses.unbind(1)):
        s = motion.step(s, a[:, t]) + (noise[:, t] if noisy else 0)
        torch.testing.assert_close(pose, s, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", EVERY)
def test_two_paths_at_once_are_the_mean_path_and_a_sampled_one(kind):
    motion, a = motion_of(kind), drawn(3, 12, 3, seed=1)
    noise = motion.draw_noise(a, seeded(2))
    mean, sample, _ = motion.unroll_twice(a, noise)
    torch.testing.assert_close(mean, motion.unroll(motion.start(3), a), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sample, motion.unroll(motion.start(3), a, noise), rtol=1e-12, atol=1e-12)
    assert not torch.equal(mean, sample)


@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_of_an_agent_with_a_heading_are_the_displacements_of_its_mean_path(kind):
    motion, a = motion_of(kind), drawn(3, 12, 3, seed=1)
    mean, _, step = motion.unroll_twice(a, motion.draw_noise(a, seeded(2)))
    torch.testing.assert_close(step, motion.displacement(mean), rtol=1e-10, atol=1e-12)
    parameters = list(motion.parameters())
    uneven = drawn(*step.shape, seed=5)
    known, through_poses = (
        torch.autograd.grad((uneven * steps.square()).sum(), parameters, retain_graph=True)
        for steps in (step, motion.displacement(mean))
    )
    torch.testing.assert_close(known, through_poses, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["free", "walled"])
def test_without_a_heading_no_displacements_are_returned(kind):
    motion, a = motion_of(kind), drawn(3, 12, 3, seed=1)
    assert motion.unroll_twice(a, motion.draw_noise(a, seeded(2))).step is None


class WalkAndStep(torch.nn.Module):
    """A walk, and one step, as a function of a motion's weights."""

    def __init__(self, motion):
        super().__init__()
        self.motion = motion

    def forward(self, start, a, noise):
        return self.motion.unroll(start, a, noise), self.motion.step(start, a[:, 0])


@pytest.mark.parametrize("kind", EVERY)
def test_gradients_of_a_step_and_of_a_walk_agree_with_finite_differences(kind):
    motion, a = motion_of(kind, hidden=3), 0.5 * drawn(2, 4, 3, seed=1)
    names, parameters = zip(*motion.named_parameters(), strict=True)
    start, noise = 0.3 * drawn(2, motion.state_size, seed=4), motion.draw_noise(a, seeded(2))
    inputs = [x.detach().clone().requires_grad_() for x in (start, a, noise, *parameters)]

    def walk(start, a, noise, *weights):
        named = {f"motion.{name}": weight for name, weight in zip(names, weights, strict=True)}
        return functional_call(WalkAndStep(motion), named, (start, a, noise))

    assert torch.autograd.gradcheck(walk, inputs)


@pytest.mark.parametrize("kind", EVERY)
def test_displacements_of_a_walk_lead_from_pose_to_pose(kind):
    motion, a = motion_of(kind), drawn(2, 9, 3, seed=1)
    poses = motion.unroll(motion.start(2), a)
    s, size = motion.start(2)[:, : motion.pose_size], motion.pose_size
    for t, d in enumerate(motion.displacement(poses).unbind(1)):
        if size == 3:
            c, sine = s[:, 2].cos(), s[:, 2].sin()
            d = torch.stack([c * d[:, 0] - sine * d[:, 1], sine * d[:, 0] + c * d[:, 1], d[:, 2]], -1)
        s = s + d
        torch.testing.assert_close(s, poses[:, t, :size], rtol=1e-10, atol=1e-12)


def test_the_displacements_of_a_turning_agent_are_its_matrix_times_its_actions():
    motion, a = motion_of("turning"), drawn(2, 9, 3, seed=1)
    poses = motion.unroll(motion.start(2), a)
    torch.testing.assert_close(motion.displacement(poses), a @ motion.M.T, rtol=1e-10, atol=1e-12)


def test_the_displacements_of_a_drifting_agent_are_its_momentum():
    motion, a = motion_of("drifting"), drawn(2, 9, 3, seed=1)
    poses = motion.unroll(motion.start(2), a)
    torch.testing.assert_close(motion.displacement(poses), poses[..., 3:], rtol=1e-10, atol=1e-12)


# ---- turning


def test_four_quarter_turns_walk_a_square():
    side = [FORWARD] * 3 + [LEFT]
    walked = walker().unroll(torch.zeros(1, 3, dtype=torch.float64), one_hot(*side * 4))[0]
    corners = exactly([3.0, 0.0], [3.0, 3.0], [0.0, 3.0], [0.0, 0.0])
    torch.testing.assert_close(walked[3::4, :2], corners, rtol=0, atol=1e-14)
    assert walked[-1, 2].item() == pytest.approx(2 * math.pi)


def test_turning_right_walks_the_mirror_image():
    motion = walker()
    left, right = (motion.unroll(motion.start(1), one_hot(*([FORWARD] * 3 + [turn]) * 4)) for turn in (LEFT, RIGHT))
    torch.testing.assert_close(left * exactly(1.0, -1.0, -1.0), right, rtol=0, atol=1e-14)


def test_a_full_turn_leads_back_to_the_same_place_but_not_to_the_same_heading():
    motion = walker(turn=2 * math.pi / 41)
    poses = motion.unroll(motion.start(1), one_hot(*[LEFT] * 41))
    torch.testing.assert_close(motion.place(poses)[0, -1], motion.place(motion.start(1))[0], rtol=0, atol=1e-13)
    assert poses[0, -1, 2].item() == pytest.approx(2 * math.pi)


def test_an_agent_stands_still_until_it_is_shown_otherwise():
    poses = build_motion(MotionConfig(kind="turning"), 4).double().unroll(
        torch.zeros(2, 3, dtype=torch.float64), drawn(2, 9, 4)
    )  # fmt: skip
    assert not poses[..., :2].any()


def test_thirty_degrees_and_three_hundred_and_ninety_are_the_same_place():
    motion = motion_of("turning")
    place = motion.place(exactly(*([1.0, 2.0, math.radians(angle)] for angle in (30, 390, 210))))
    torch.testing.assert_close(place[0], place[1], rtol=0, atol=1e-12)
    assert (place[0] - place[2]).norm().item() == pytest.approx(2)


@pytest.mark.parametrize("kind", KINDS)
def test_momentum_is_no_part_of_a_place(kind):
    motion = motion_of(kind)
    s = drawn(5, motion.state_size)
    moving = s.clone()
    moving[:, 3:] += 1
    assert motion.place(s).shape == (5, 4)
    assert torch.equal(motion.place(s), motion.place(moving))


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_lies_straight_ahead_of_itself_at_no_distance(kind):
    motion = motion_of(kind)
    place = motion.place(drawn(5, motion.state_size))
    expected = exactly(0.0, 0.0, 1.0, 0.0).expand(5, 4)
    torch.testing.assert_close(motion.relative(place, place), expected, rtol=0, atol=1e-15)


def test_a_place_ahead_lies_ahead_and_one_to_the_left_lies_to_the_left():
    motion = motion_of("turning")
    here = motion.place(exactly(1.0, 2.0, math.pi / 2))
    ahead = motion.place(exactly(1.0, 5.0, math.pi))
    left = motion.place(exactly(0.0, 2.0, math.pi / 2))
    torch.testing.assert_close(motion.relative(ahead, here), exactly(3.0, 0.0, 0.0, 1.0), rtol=0, atol=1e-15)
    torch.testing.assert_close(motion.relative(left, here), exactly(0.0, 1.0, 1.0, 0.0), rtol=0, atol=1e-15)


def moved(pose, shift, turn):
    """The same poses on a map that is shifted and turned."""
    c, s = math.cos(turn), math.sin(turn)
    x, y, heading = pose.unbind(-1)
    return torch.stack([shift[0] + c * x - s * y, shift[1] + s * x + c * y, heading + turn], dim=-1)


def test_where_a_map_lies_does_not_matter_to_how_places_lie_from_each_other():
    motion, one, other = motion_of("turning"), drawn(5, 3), drawn(5, 3, seed=1)
    expected = motion.relative(motion.place(one), motion.place(other))
    elsewhere = (motion.place(moved(pose, (7.0, -3.0), 2.1)) for pose in (one, other))
    torch.testing.assert_close(motion.relative(*elsewhere), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["free", "walled"])
def test_without_a_heading_places_lie_from_each_other_as_points_do(kind):
    motion, one, other = motion_of(kind), drawn(5, 2), drawn(5, 2, seed=1)
    assert torch.equal(motion.relative(one, other), one - other)


# ---- beliefs


@pytest.mark.parametrize("kind", KINDS)
def test_the_belief_of_an_agent_with_a_heading_is_that_of_many_sampled_walks(kind):
    motion, walks = motion_of(kind, noise=0.02), 40_000
    a = 0.5 * drawn(1, 8, 3, seed=6)
    belief = motion.believe(Belief(motion.start(1)), a)
    many = a.expand(walks, -1, -1)
    samples = motion.unroll(motion.start(walks), many, motion.draw_noise(many, seeded(7))).detach()
    for t in (0, 3, 7):
        sampled = torch.cov(samples[:, t].T)
        scale = sampled.diagonal()[:3].mean().item()
        # four standard errors of a variance, and a little for what linearising leaves out
        torch.testing.assert_close(belief.covariance[0, t], sampled, rtol=0, atol=0.04 * scale)
    assert not belief.covariance[0, :, 3:].any(), "momentum follows from the actions alone"


@pytest.mark.parametrize("kind", KINDS)
def test_believing_in_two_parts_is_believing_at_once(kind):
    motion, a = motion_of(kind), drawn(3, 11, 3, seed=1)
    whole = motion.believe(Belief(motion.start(3)), a)
    first = motion.believe(Belief(motion.start(3)), a[:, :4])
    second = motion.believe(first[:, -1], a[:, 4:])
    torch.testing.assert_close(second.mean, whole.mean[:, 4:], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(second.covariance, whole.covariance[:, 4:], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_shakes_the_pose_but_not_the_momentum(kind):
    motion = motion_of(kind)
    noise = motion.draw_noise(drawn(2, 9, 3), seeded(2))
    assert noise.shape == (2, 9, motion.state_size)
    assert noise[..., :3].all()
    assert not noise[..., 3:].any()


# ---- drifting


def pressing(key, steps, actions=3):
    return one_hot(*[key] * steps, actions=actions)


def test_a_key_held_down_ends_in_the_terminal_displacement():
    motion = motion_of("drifting")
    d = motion.unroll(motion.start(1), pressing(0, 500))[0, -1, 3:]
    limit, keep = motion.log_limit.exp(), motion.friction.sigmoid()
    torch.testing.assert_close(d, limit * torch.tanh(keep * d / limit + motion.M[:, 0]), rtol=1e-10, atol=1e-12)


def test_taken_literally_a_drift_is_the_equation_of_the_paper():
    motion, a = motion_of("drifting", literal=True), drawn(2, 9, 3)
    d, expected = torch.zeros(2, 3, dtype=torch.float64), []
    for t in range(9):
        d = motion.log_limit.exp() * torch.tanh(motion.friction.sigmoid() * d + a[:, t] @ motion.M.T)
        expected.append(d)
    torch.testing.assert_close(motion.unroll(motion.start(2), a)[..., 3:], torch.stack(expected, 1))
    torch.testing.assert_close(motion.step(motion.start(2), a[:, 0])[..., 3:], expected[0])
    with pytest.raises(InputError, match="literal is for drifting motions; kind is gliding"):
        MotionConfig(kind="gliding", literal=True)


def test_without_keys_a_drift_dies_down():
    motion = motion_of("drifting")
    push = pressing(0, 5)
    d = motion.unroll(motion.start(1), torch.cat([push, torch.zeros(1, 40, 3, dtype=torch.float64)], 1))[0, :, 3:].abs()
    assert (d[5:] < d[4:-1]).all()
    assert (d[-1] < 1e-6).all()


def test_no_drift_exceeds_its_limit_however_hard_the_push():
    motion = motion_of("drifting")
    d = motion.unroll(motion.start(3), 100 * drawn(3, 50, 3))[..., 3:]
    assert (d.abs() <= motion.log_limit.exp()).all()
    assert (d.abs().amax((0, 1)) > 0.99 * motion.log_limit.exp()).all()


# ---- gliding


def engine(turn=0.3):
    """No friction, no corrections: a key that pushes ahead, and two that turn."""
    motion = motion_of("gliding")
    with torch.no_grad():
        motion.keep.fill_(100.0)  # sigma(100) = 1
        motion.V.zero_()
        motion.move.copy_(exactly([0.2, 0.0, 0.0], [0.0, 0.0, 0.0]))
        motion.turn.copy_(exactly(0.0, turn, -turn))
    return motion


def test_momentum_survives_a_turn():
    motion = engine()
    poses = motion.unroll(motion.start(1), one_hot(FORWARD, *[LEFT] * 20))[0]
    expected = 0.2 * torch.arange(1, 22, dtype=torch.float64)
    torch.testing.assert_close(poses[:, 0], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(poses[:, 1], torch.zeros_like(expected), rtol=0, atol=1e-12)
    assert poses[-1, 2].item() == pytest.approx(20 * 0.3)
    torch.testing.assert_close(poses[:, 3:].norm(dim=-1), torch.full_like(expected, 0.2), rtol=1e-12, atol=0)


def test_momentum_of_the_paper_turns_with_the_agent():
    motion = motion_of("drifting")
    with torch.no_grad():
        motion.move.zero_()
        motion.move[0, FORWARD] = 1.0
        motion.turn.copy_(torch.tensor([0.0, 1.0, -1.0]))
    d = motion.unroll(motion.start(1), one_hot(FORWARD, *[LEFT] * 5))[0, :, 3:]
    assert not d[:, 1].any(), "an agent that was pushed ahead never drifts sideways"


def test_friction_slows_a_glide_by_the_same_share_every_step():
    motion = engine(turn=0.0)
    with torch.no_grad():
        motion.keep.copy_(torch.logit(exactly(0.7, 0.7)))
    v = motion.unroll(motion.start(1), one_hot(FORWARD, *[LEFT] * 8))[0, :, 3]
    torch.testing.assert_close(v[1:], 0.7 * v[:-1], rtol=1e-12, atol=0)


# ---- rolling


def test_a_rolling_agent_turns_on_when_the_key_is_released_until_friction_has_stopped_it():
    motion = motion_of("rolling")
    with torch.no_grad():
        motion.spin_V.zero_()
        motion.spin_keep.copy_(torch.logit(exactly(0.2, 0.5)))
        motion.turn.copy_(exactly(0.0, 0.3, -0.3))
    idle = torch.zeros(1, 3, 3, dtype=torch.float64)
    turned = motion.displacement(motion.unroll(motion.start(1), torch.cat([one_hot(LEFT, LEFT), idle], 1)))[0, :, 2]
    # The speed of turns is 0.3 after one step and 0.45 after two; a fifth of it is turned in the next step.
    torch.testing.assert_close(turned, exactly(0.3, 0.36, 0.09, 0.045, 0.0225), rtol=1e-12, atol=1e-12)


def test_a_rolling_agent_that_holds_a_key_turns_as_was_found():
    motion, found = motion_of("rolling"), {name: exactly(*rows) for name, rows in FOUND.items()}
    with torch.no_grad():
        motion.spin_V.zero_()
    motion.adopt(found)
    torch.testing.assert_close(held_down(motion)[:, 2], found["turn"], rtol=1e-9, atol=1e-12)


# ---- scouts


def test_a_scout_of_a_turning_agent_scans_its_turns():
    scout = motion_of("turning").scout()
    assert type(scout.motion) is Turning
    assert list(scout.names) == ["turn"]
    assert scout.angles


@pytest.mark.parametrize("kind", ["drifting", "gliding", "rolling"])
def test_a_scout_of_an_agent_with_momentum_searches_for_moves_and_turns_without_it(kind):
    scout = motion_of(kind).scout()
    assert type(scout.motion) is Turning
    assert set(scout.names) == {"move", "turn"}
    assert not scout.angles
    assert len(scout.spread) == sum(scout.motion.get_parameter(name).numel() for name in scout.names)


@pytest.mark.parametrize("kind", KINDS)
def test_a_scout_is_a_copy(kind):
    motion = motion_of(kind)
    before = {name: value.clone() for name, value in motion.state_dict().items()}
    scout = motion.scout().motion
    with torch.no_grad():
        for parameter in scout.parameters():
            parameter.add_(1)
    assert all(torch.equal(value, before[name]) for name, value in motion.state_dict().items())


TURNS = pytest.mark.parametrize("turn", [2 * math.pi / 41, 3.0, 0.0])


@TURNS
@pytest.mark.parametrize("kind", ["turning", "gliding"])
def test_an_agent_turns_by_the_angles_that_were_found(kind, turn):
    motion, found = motion_of(kind), exactly(0.0, turn, -turn)
    motion.adopt({"turn": found, "move": torch.zeros(2, 3, dtype=torch.float64)})
    turned = motion.step(motion.start(3), torch.eye(3, dtype=torch.float64))[:, 2]
    torch.testing.assert_close(turned, found, rtol=1e-12, atol=1e-12)


FOUND = {"move": [[0.2, 0.0, -0.1], [0.0, 0.05, 0.0]], "turn": [0.0, 0.15, -0.15]}


def held_down(motion, steps=300):
    """The displacement that each key leads to in the end."""
    a = torch.eye(3, dtype=torch.float64)[:, None].expand(3, steps, 3)
    return motion.displacement(motion.unroll(motion.start(3), a))[:, -1]


def test_a_drifting_agent_that_holds_a_key_moves_about_as_was_found():
    motion, found = motion_of("drifting"), {name: exactly(*rows) for name, rows in FOUND.items()}
    motion.adopt(found)
    expected = torch.cat([found["move"], found["turn"][None]]).T
    torch.testing.assert_close(held_down(motion), expected, rtol=0.1, atol=1e-9)  # a tanh is not quite a line


def test_a_gliding_agent_that_holds_a_key_moves_as_was_found():
    motion, found = motion_of("gliding"), {name: exactly(*rows) for name, rows in FOUND.items()}
    with torch.no_grad():
        motion.V.zero_()
    motion.adopt(found | {"turn": torch.zeros(3, dtype=torch.float64)})
    torch.testing.assert_close(held_down(motion)[:, :2], found["move"].T, rtol=1e-9, atol=1e-12)


def test_nothing_found_leaves_a_drifting_agent_at_rest():
    motion = motion_of("drifting")
    motion.adopt({"move": torch.zeros(2, 3, dtype=torch.float64), "turn": torch.zeros(3, dtype=torch.float64)})
    assert not held_down(motion).any()
    assert motion.log_limit.isfinite().all()


def test_only_walled_motions_know_walls():
    assert {kind: motion_of(kind).walls for kind in EVERY} == {
        "free": (), "walled": ("W", "b", "v", "c"), "turning": (), "drifting": (), "gliding": (),
        "rolling": (),
    }  # fmt: skip
