"""Ground movement as in Quake III."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gtmsm.camera import BOX, COLUMN, NOTHING
from gtmsm.errors import InputError
from gtmsm.worlds.physics import ACTIONS, IDLE, Body, Obstacles, Physics, PhysicsConfig
from gtmsm.worlds.scene import Scene

CPU = torch.device("cpu")
FORWARD, BACKWARD, STRAFE_LEFT, STRAFE_RIGHT, TURN_LEFT, TURN_RIGHT, VEER_LEFT, VEER_RIGHT = range(8)
QUAKE = PhysicsConfig(top_speed=320.0, stop_speed=100.0, radius=24.0)


def scene_of(walls, objects=((0.0, 0.0, 0.0, 0.0, 0.0),), kinds=(NOTHING,)):
    tile = torch.zeros(1, 1, 1, dtype=torch.long)
    return Scene(
        walls=torch.tensor(walls).float()[None],
        wall_texture=torch.zeros(1, len(walls), dtype=torch.long),
        floor_texture=tile,
        ceiling_texture=tile,
        corner=torch.zeros(1, 2),
        tile=1.0,
        objects=torch.tensor(objects).float()[None],
        object_kind=torch.tensor(kinds)[None],
        object_colour=torch.ones(1, len(kinds), 3),
        textures=torch.zeros(1, 2, 2, 3, dtype=torch.uint8),
    )


def obstacles_of(*walls, n=1, **furniture):
    everywhere = walls or ((1e5, 1e5, 1e5, 1e5 + 1),)
    return Obstacles.of(scene_of(everywhere, **furniture)).at(torch.zeros(n, dtype=torch.long))


def walked(actions, pose=(0.0, 0.0, 0.0), obstacles=None, config=None):
    """The body after each action."""
    physics, body = Physics(config or PhysicsConfig(), CPU), Body.at_rest(torch.tensor([pose]))
    bodies = [body]
    for action in actions:
        bodies.append(physics.step(bodies[-1], torch.tensor([action]), obstacles or obstacles_of()))
    return bodies


def test_the_figures_of_quake():
    x = torch.cat([body.position[:, 0] for body in walked([FORWARD] * 10 + [IDLE] * 7, config=QUAKE)])
    expected = [7.8, 17.3] + [21.3] * 8 + [16.5, 10.8, 7.1, 4.4, 1.7, 0, 0]
    assert x.diff().tolist() == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("action", [FORWARD, BACKWARD, STRAFE_LEFT, STRAFE_RIGHT])
def test_the_terminal_speed_is_the_top_speed(action):
    assert walked([action] * 20)[-1].velocity.norm().item() == pytest.approx(PhysicsConfig().top_speed, rel=1e-5)


@pytest.mark.parametrize(
    ("action", "direction"), [(FORWARD, (0, 1)), (BACKWARD, (0, -1)), (STRAFE_LEFT, (-1, 0)), (STRAFE_RIGHT, (1, 0))]
)
def test_actions_move_as_they_are_named(action, direction):
    position = walked([action], pose=(0.0, 0.0, math.pi / 2))[-1].position[0]
    assert torch.allclose(position / position.norm(), torch.tensor(direction).float(), atol=1e-6)


def test_quake_has_no_bonus_for_standing_still():
    bodies = walked([IDLE] * 3)
    assert torch.equal(bodies[-1].pose, bodies[0].pose)


@given(speed=st.floats(0.001, 2.0))
@settings(max_examples=40, deadline=None)
def test_the_stopping_distance_has_a_closed_form(speed):
    physics = Physics(PhysicsConfig(), CPU)
    start = Body.at_rest(torch.zeros(1, 3))
    body = Body(start.position, torch.tensor([[speed, 0.0]]), start.heading, start.touched)
    for _ in range(12):
        body = physics.step(body, torch.tensor([IDLE]))
    assert body.velocity.norm() == 0
    expected = physics.stopping_distance(torch.tensor([speed], dtype=torch.float64))
    assert body.position[0, 0].item() == pytest.approx(expected.item(), abs=1e-5)


def test_velocity_survives_a_turn():
    before, after = walked([FORWARD] * 10 + [TURN_LEFT])[-2:]
    direction = after.velocity[0] / after.velocity.norm()
    assert torch.allclose(direction, torch.tensor([1.0, 0.0]), atol=1e-6)
    assert after.heading - before.heading == pytest.approx(PhysicsConfig().turn)


def test_a_full_turn_takes_41_steps_and_moves_nobody():
    body = walked([TURN_LEFT] * 41, pose=(1.0, 2.0, 0.3))[-1]
    assert body.heading.item() == pytest.approx(0.3 + 2 * math.pi, abs=1e-6)
    assert body.position.tolist() == [[1.0, 2.0]]


def test_left_then_right_cancel():
    body = walked(([TURN_LEFT] * 7 + [TURN_RIGHT] * 7) * 5, pose=(0.0, 0.0, 0.3))[-1]
    assert body.heading.item() == pytest.approx(0.3, abs=1e-7)


def test_four_quarter_turns_walk_a_square():
    side = [FORWARD] * 12 + [IDLE] * 8 + [TURN_LEFT] * 10
    bodies = walked(side * 4, config=PhysicsConfig(turn_steps=40))
    assert bodies[len(side)].position[0, 0] > 1
    assert torch.allclose(bodies[-1].position, torch.zeros(1, 2), atol=1e-5)


def test_running_and_turning_walks_a_circle():
    bodies = walked([VEER_RIGHT] * 123)
    once, twice = bodies[82].position, bodies[123].position
    assert torch.allclose(once, twice, atol=1e-3)
    assert bodies[102].position[0].sub(once[0]).norm() > 1


def test_sliding_along_a_wall_keeps_the_velocity_along_it():
    wall = (-10.0, 1.0, 10.0, 1.0)
    heading = math.pi / 4
    free = walked([FORWARD] * 40, pose=(0.0, 0.0, heading))
    body = walked([FORWARD] * 40, pose=(0.0, 0.0, heading), obstacles=obstacles_of(wall))[-1]
    assert body.touched.item()
    assert abs(body.velocity[0, 1]) < 1e-4
    # Quake: whoever runs into a wall at an angle is still pushed along it.
    assert body.velocity[0, 0] >= free[-1].velocity[0, 0] - 1e-5
    assert body.position[0, 1].item() == pytest.approx(1 - 0.15, abs=1e-5)


def test_a_wall_stops_from_both_sides():
    wall = obstacles_of((1.0, -1.0, 1.0, 1.0))
    assert walked([FORWARD] * 30, obstacles=wall)[-1].position[0, 0].item() == pytest.approx(0.85, abs=1e-5)
    behind = walked([FORWARD] * 30, pose=(2.0, 0.0, math.pi), obstacles=wall)[-1]
    assert behind.position[0, 0].item() == pytest.approx(1.15, abs=1e-5)


def test_the_end_of_a_wall_is_round():
    wall = obstacles_of((1.0, 0.0, 1.0, 5.0))
    body = walked([FORWARD] * 40, pose=(0.0, -0.05, 0.0), obstacles=wall)[-1]
    assert body.position[0, 0] > 2


@pytest.mark.parametrize(("kind", "reach"), [(COLUMN, 0.3), (BOX, 0.3 * math.sqrt(2))])
def test_an_object_is_as_wide_as_its_disc(kind, reach):
    thing = obstacles_of(objects=((1.5, 0.0, 0.3, 0.5, 0.0),), kinds=(kind,))
    body = walked([FORWARD] * 40, obstacles=thing)[-1]
    assert body.position[0, 0].item() == pytest.approx(1.5 - reach - 0.15, abs=1e-4)


def test_who_meets_an_object_off_centre_slides_around_it():
    thing = obstacles_of(objects=((1.5, 0.1, 0.3, 0.5, 0.0),), kinds=(COLUMN,))
    bodies = walked([FORWARD] * 60, obstacles=thing)
    assert any(body.touched.item() for body in bodies)
    assert bodies[-1].position[0, 0] > 2.5


def test_padding_is_in_nobodys_way():
    nothing = obstacles_of((0.0, 0.0, 0.0, 0.0))
    assert not any(body.touched.item() for body in walked([FORWARD] * 10, obstacles=nothing))


@given(seed=st.integers(0, 1000), angle=st.floats(0.9, 2.8))
@settings(max_examples=20, deadline=None)
def test_nobody_gets_through_a_corner(seed, angle):
    generator = torch.Generator().manual_seed(seed)
    n = 32
    x, y = 9 * math.cos(angle), 9 * math.sin(angle)
    obstacles = obstacles_of((0.0, 0.0, 9.0, 0.0), (0.0, 0.0, x, y), n=n)
    toward = angle / 2
    start = torch.tensor([math.cos(toward), math.sin(toward), toward + math.pi]).repeat(n, 1)
    start[:, 2] += 0.5 * torch.randn(n, generator=generator)
    body, physics = Body.at_rest(start), Physics(PhysicsConfig(), CPU)
    for _ in range(20):
        action = torch.randint(0, 2, (n,), generator=generator) * 6  # ahead, or ahead and to the left
        body = physics.step(body, action, obstacles)
    inside = (body.position[:, 1] > 0.1) & (body.position @ torch.tensor([math.sin(angle), -math.cos(angle)]) > 0.1)
    assert inside.all()


def test_there_are_the_eight_actions_of_labyrinth():
    assert len(ACTIONS) == 8
    assert ACTIONS[VEER_LEFT] == "forward and turn left"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"top_speed": 0.0}, "top_speed is 0.0; expected a number above 0"),
        ({"ticks": 0}, "ticks is 0; expected 1 or more"),
        ({"friction": 60.0}, "friction is 60.0; a tick rate of 60 needs it below 60"),
        ({"top_speed": 10.0}, "through walls; make it less than 9"),
    ],
)
def test_bodies_that_make_no_sense_are_refused(given, complaint):
    with pytest.raises(InputError, match=complaint):
        PhysicsConfig(**given)
