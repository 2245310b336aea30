"""Ray-casting: the geometry of what is seen, and implementations that equal ray by ray."""

import math
from dataclasses import replace

import pytest
import torch
from ray_by_ray import ray_by_ray

from gtmsm.camera import AMBIENT, BOX, COLUMN, CONE, DIM, NOTHING, SPHERE
from gtmsm.errors import InputError
from gtmsm.kernels.operator import forced
from gtmsm.kernels.walks import raycast
from gtmsm.worlds.scene import Camera, Scene, draw_frames

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="Triton needs a CUDA device")

WALL, FLOOR, CEILING = (200, 40, 40), (40, 200, 40), (40, 40, 200)
SOLIDS = (COLUMN, SPHERE, CONE, BOX)
ROOM = ((-3.0, -2.0, 3.0, -2.0), (3.0, -2.0, 3.0, 2.0), (3.0, 2.0, -3.0, 2.0), (-3.0, 2.0, -3.0, -2.0))


def place(walls=ROOM, objects=(), textures=None):
    """A single place; objects are (kind, x, y, radius, height, turn), white; textures are of wall, floor, ceiling."""
    if textures is None:
        textures = torch.tensor([WALL, FLOOR, CEILING], dtype=torch.uint8)[:, None, None].repeat(1, 4, 4, 1)
    return Scene(
        walls=torch.tensor(walls).view(1, -1, 4),
        wall_texture=torch.zeros(1, len(walls), dtype=torch.long),
        floor_texture=torch.full((1, 1, 1), 1),
        ceiling_texture=torch.full((1, 1, 1), 2),
        corner=torch.zeros(1, 2),
        tile=1.0,
        objects=torch.tensor([numbers for _, *numbers in objects]).view(1, -1, 5),
        object_kind=torch.tensor([kind for kind, *_ in objects], dtype=torch.long).view(1, -1),
        object_colour=torch.ones(1, len(objects), 3),
        textures=textures,
    )


def random_places(places=3, walls=8, objects=5, side=16, seed=0, tiles=(3, 5)):
    """Rooms with walls inside, a wall of no length, objects of all kinds and none, noisy textures."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low, high, *shape):
        return low + (high - low) * torch.rand(*shape, generator=generator)

    def indices(*shape):
        return torch.randint(7, shape, generator=generator)

    inner = uniform(-2, 2, places, walls, 2)
    segments = torch.cat([inner, inner + uniform(-1, 1, places, walls, 2)], -1)
    segments[:, : min(4, walls)] = torch.tensor(ROOM)[:walls] * uniform(0.8, 1.2, places, 1, 1)
    segments[:, 5:6, 2:] = segments[:, 5:6, :2]
    sizes = [uniform(-2.5, 2.5, places, objects, 2), uniform(0.1, 0.4, places, objects, 1)]
    sizes += [uniform(0.2, 0.9, places, objects, 1), uniform(-7, 7, places, objects, 1)]
    return Scene(
        walls=segments,
        wall_texture=indices(places, walls),
        floor_texture=indices(places, *tiles),
        ceiling_texture=indices(places, *tiles),
        corner=uniform(-3, 0, places, 2),
        tile=0.8,
        objects=torch.cat(sizes, -1),
        object_kind=torch.randint(5, (places, objects), generator=generator),
        object_colour=uniform(0, 1, places, objects, 3),
        textures=torch.randint(256, (7, side, side, 3), generator=generator, dtype=torch.uint8),
    )


def random_poses(n, places, seed=0):
    generator = torch.Generator().manual_seed(seed)
    spread = torch.tensor([4.0, 3.0, 40.0])
    return torch.randint(places, (n,), generator=generator), spread * (torch.rand(n, 3, generator=generator) - 0.5)


def look(scene, x, y, heading, **camera):
    """One frame as (row, column, colour), and its depth; the operator agrees on the frame."""
    camera = Camera(**{"pixels": 21, "antialias": 1} | camera)
    where, pose = torch.tensor([0]), torch.tensor([[x, y, heading]])
    frames, depth = ray_by_ray(scene, camera, where, pose)
    assert_alike(draw_frames(scene, camera, where, pose), frames)
    return frames[0].permute(1, 2, 0).int(), depth[0]


def assert_alike(fast, readable):
    """Up to rounding: of many pixels a few may lie on an edge."""
    assert fast.shape == readable.shape
    different = (fast.int() - readable.int()).abs().amax(1) > 2
    assert different.float().mean() <= 0.005, f"{int(different.sum())} of {different.numel()} pixels differ"


def share(frame, colour):
    """Of the middle column, how much is of this colour, however dim."""
    column = frame[:, frame.shape[1] // 2].float()
    like = torch.cosine_similarity(column, torch.tensor(colour).float()[None])
    return float((like > 0.99).float().mean())


# ---- geometry


@pytest.mark.parametrize("distance", [0.5, 1.0, 2.0])
def test_a_wall_straight_ahead_is_as_deep_as_it_is_far(distance):
    _, depth = look(place(), 3 - distance, 0.1, 0.0)
    torch.testing.assert_close(depth[10], torch.full((21,), distance, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("heading", [0.0, 0.5 * math.pi, math.pi, -0.5 * math.pi])
def test_depth_is_measured_along_where_one_looks(heading):
    expected = 3 - 0.5 * math.cos(heading) if abs(math.cos(heading)) > 0.5 else 2 - 0.25 * math.sin(heading)
    _, depth = look(place(), 0.5, 0.25, heading)
    assert depth[10, 10] == pytest.approx(expected, rel=1e-6)


def test_a_corner_is_deepest_where_its_walls_meet():
    scene = place(
        walls=((-2.0, -2.0, 2.0, -2.0), (2.0, -2.0, 2.0, 2.0), (2.0, 2.0, -2.0, 2.0), (-2.0, 2.0, -2.0, -2.0))
    )
    _, depth = look(scene, 0.0, 0.0, math.pi / 4 + 1e-4)
    assert depth[10].argmax() == 10
    assert depth[10, 10] == pytest.approx(2 * math.sqrt(2), rel=1e-3)
    torch.testing.assert_close(depth[10], depth[10].flip(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("distance", "view"), [(1.0, 80.0), (2.0, 80.0), (2.0, 60.0), (1.0, 120.0)])
def test_a_wall_fills_the_height_that_distance_and_field_of_view_say(distance, view):
    frame, _ = look(place(), 3 - distance, 0.0, 0.0, pixels=64, field_of_view=view)
    expected = min(1.0, 0.5 / (distance * math.tan(math.radians(view / 2))))
    assert share(frame, WALL) == pytest.approx(expected, abs=2.1 / 64)
    assert share(frame, FLOOR) == pytest.approx((1 - expected) / 2, abs=2.1 / 64)
    assert share(frame, CEILING) == pytest.approx((1 - expected) / 2, abs=2.1 / 64)


def test_the_floor_is_below_and_the_ceiling_above():
    frame, depth = look(place(), 0.0, 0.0, 0.0, eye=0.4)
    slope = math.tan(math.radians(40)) * 20 / 21
    assert frame[-1, 10].argmax() == 1 and depth[-1, 10] == pytest.approx(0.4 / slope)
    assert frame[0, 10].argmax() == 2 and depth[0, 10] == pytest.approx(0.6 / slope)


@pytest.mark.parametrize("kind", SOLIDS)
def test_an_object_before_a_wall_hides_it_and_one_behind_is_hidden(kind):
    ahead = (kind, 1.5, 0.0, 0.3, 0.6, 0.0)
    empty, _ = look(place(), 0.0, 0.0, 0.0)
    seen, depth = look(place(objects=[ahead]), 0.0, 0.0, 0.0)
    assert not torch.equal(seen, empty) and depth[11, 10] < 1.6
    behind, _ = look(place(walls=(*ROOM, (1.0, -2.0, 1.0, 2.0)), objects=[ahead]), 0.0, 0.0, 0.0)
    assert torch.equal(behind, look(place(walls=(*ROOM, (1.0, -2.0, 1.0, 2.0))), 0.0, 0.0, 0.0)[0])


@pytest.mark.parametrize("first", SOLIDS)
@pytest.mark.parametrize("second", SOLIDS)
def test_the_nearer_of_two_objects_is_seen_in_whichever_order_they_are_listed(first, second):
    near, far = (first, 1.0, 0.0, 0.3, 0.9, 0.2), (second, 2.0, 0.1, 0.4, 0.9, 0.5)
    one, depth = look(place(objects=[near, far]), 0.0, 0.0, 0.0, pixels=11)
    other, _ = look(place(objects=[far, near]), 0.0, 0.0, 0.0, pixels=11)
    assert torch.equal(one, other)
    assert torch.equal(
        depth, torch.minimum(*(look(place(objects=[it]), 0.0, 0.0, 0.0, pixels=11)[1] for it in (near, far)))
    )


def test_the_nearest_point_of_a_sphere_is_a_radius_before_its_centre():
    _, depth = look(place(objects=[(SPHERE, 2.0, 0.0, 0.5, 1.0, 0.0)]), 0.0, 0.0, 0.0)
    assert depth[10, 10] == pytest.approx(1.5, rel=1e-6)


def test_a_sphere_is_seen_as_wide_as_its_tangents():
    _, depth = look(place(objects=[(SPHERE, 2.0, 0.0, 0.5, 1.0, 0.0)]), 0.0, 0.0, 0.0, pixels=101)
    width = float((depth[50] < 2.0).float().mean())
    assert width == pytest.approx(math.tan(math.asin(0.5 / 2)) / math.tan(math.radians(40)), abs=0.02)


@pytest.mark.parametrize(("turn", "nearest"), [(0.0, 1.5), (math.pi / 4, 2 - 0.5 * math.sqrt(2)), (math.pi / 2, 1.5)])
def test_a_box_turned_by_45_degrees_shows_its_edge(turn, nearest):
    _, depth = look(place(objects=[(BOX, 2.0, 0.0, 0.5, 1.0, turn)]), 0.0, 0.0, 1e-4)
    assert depth[10, 10] == pytest.approx(nearest, rel=1e-3)


def test_a_cone_narrows_to_its_tip():
    _, depth = look(place(objects=[(CONE, 1.5, 0.0, 0.4, 0.5, 0.0)]), 0.0, 0.0, 0.0, pixels=65)
    wide = (depth[33:] < 1.6).sum(1)
    assert wide[0] <= 2 and (wide.diff()[: int(wide.argmax())] >= 0).all()
    assert depth[32, 32] == pytest.approx(1.5, abs=0.02)  # the tip, at the height of the eye


@pytest.mark.parametrize("kind", [COLUMN, BOX])
def test_what_is_lower_than_the_eye_shows_its_top(kind):
    _, depth = look(place(objects=[(kind, 1.0, 0.0, 0.3, 0.2, 0.0)]), 0.0, 0.0, 0.0, pixels=65)
    slope = -torch.arange(-32, 33) / 32.5 * math.tan(math.radians(40))
    on_top = [row for row in range(33, 65) if 0.7 <= -0.3 / float(slope[row]) <= 1.3]
    assert len(on_top) > 5
    for row in on_top:
        assert depth[row, 32] == pytest.approx(-0.3 / float(slope[row]), rel=1e-5)


@pytest.mark.parametrize("kind", SOLIDS)
def test_objects_are_not_flat_colours(kind):
    frame, depth = look(place(objects=[(kind, 1.0, 0.0, 0.35, 0.7, math.pi / 4)]), 0.0, 0.0, 0.3, pixels=32)
    reds = frame[..., 0][(frame[..., 0] == frame[..., 1]) & (frame[..., 1] == frame[..., 2])]
    assert len(reds.unique()) >= (2 if kind == BOX else 5)


# ---- textures


def stripes(side=8):
    """Wall: one red column, the first. Floor and ceiling: plain."""
    textures = torch.full((3, side, side, 3), 100, dtype=torch.uint8)
    textures[0, :, 0] = torch.tensor([255, 0, 0], dtype=torch.uint8)
    return textures


def test_a_texture_begins_at_the_first_end_of_a_wall_and_repeats_every_unit():
    scene = place(walls=((1.0, 1.5, 1.0, -1.5),), textures=stripes())  # seen from the west, from left to right
    frame, _ = look(scene, 0.0, 0.0, 0.0, pixels=90, field_of_view=120.0)
    y = -((torch.arange(90) + 0.5) / 45 - 1) * math.tan(math.radians(60))
    red = frame[45, :, 0] > 2 * frame[45, :, 1]
    on_wall = y.abs() < 1.49
    assert torch.equal(red[on_wall], ((1.5 - y) % 1 < 1 / 8)[on_wall])


def test_a_wall_shows_neither_its_top_at_its_foot_nor_its_foot_at_its_top():
    textures = torch.full((3, 8, 8, 3), 100, dtype=torch.uint8)
    textures[0, 0], textures[0, -1] = 255, 0
    frame, depth = look(place(textures=textures), 2.0, 0.0, 0.0, pixels=64)
    wall = frame[:, 32, 0][depth[:, 32] == depth[32, 32]]
    assert len(wall) > 35
    assert (wall.diff() <= 0).all() and wall[0] > 190 and wall[-1] == 0


def test_floors_have_no_seam_where_coordinates_change_sign():
    scene = random_places(places=1, walls=0, objects=0, tiles=(1, 1))
    steps = torch.tensor([[0.0, 0.0, 0.7], [5.0, 0.0, 0.7], [-3.0, -2.0, 0.7], [-4.0, 7.0, 0.7]])
    frames = draw_frames(scene, Camera(antialias=1), torch.zeros(4, dtype=torch.long), steps + 0.25)
    for frame in frames[1:]:
        assert_alike(frame[None], frames[:1])


def test_tiles_are_counted_from_the_south_west_and_the_outermost_go_on():
    plain = torch.arange(0, 240, 40, dtype=torch.uint8)[:, None, None, None].repeat(1, 4, 4, 3)
    scene = replace(
        place(walls=()), textures=plain, floor_texture=torch.tensor([[[0, 1, 2], [3, 4, 5]]]),
        ceiling_texture=torch.zeros(1, 2, 3, dtype=torch.long), corner=torch.tensor([[-1.5, -1.0]]),
    )  # fmt: skip
    for x, y, texture in [(-1, -0.5, 0), (0, -0.5, 1), (1, -0.5, 2), (-1, 0.5, 3), (1, 0.5, 5), (9, -9, 2), (-9, 9, 3)]:
        frame, depth = look(scene, x, y, 0.0, pixels=3, field_of_view=170.0)  # almost straight down
        assert frame[2, 1, 0] == round(40 * texture / (1 + DIM * float(depth[2, 1])))


def test_far_textures_are_averaged_not_sampled():
    checks = torch.zeros(3, 32, 32, 3, dtype=torch.uint8)
    checks[:, ::2, ::2], checks[:, 1::2, 1::2] = 255, 255
    scene = place(walls=((30.0, -90.0, 30.0, 90.0),), textures=checks)
    frame, depth = look(scene, 0.0, 0.0, 0.0, pixels=32)
    grey = frame[16, :, 0] * (1 + DIM * depth[16])
    assert (grey - grey.mean()).abs().max() < 25  # after dimming, 128 is few steps of grey


def test_every_level_of_the_pyramid_is_the_average_of_the_one_before():
    scene = random_places(side=8)
    levels = scene.pyramid.split([64, 16, 4, 1], dim=1)
    colours = [torch.stack([level & 255, level >> 8 & 255, level >> 16 & 255], -1) for level in levels]
    assert torch.equal(colours[0].view(7, 8, 8, 3), scene.textures.int())
    average = scene.textures.float().view(7, 4, 2, 4, 2, 3).mean((2, 4)).view(7, 16, 3)
    assert (colours[1] - average).abs().max() <= 0.5
    assert (colours[3][:, 0] - scene.textures.float().mean((1, 2))).abs().max() <= 0.51


# ---- light


def test_light_fades_with_depth():
    for distance in (0.5, 2.0):
        frame, _ = look(place(), 3 - distance, 0.0, 0.0)
        assert frame[10, 10, 0] == pytest.approx(WALL[0] * 0.82 / (1 + DIM * distance), abs=1)


def test_walls_of_different_directions_differ():
    east, _ = look(place(), 2.0, 0.0, 0.0)
    north, _ = look(place(), 0.0, 1.0, math.pi / 2)
    assert abs(int(east[10, 10, 0]) - int(north[10, 10, 0])) > 20


def test_no_side_of_an_object_is_black():
    assert AMBIENT > 0.4
    for heading in torch.arange(0, 6.3, 0.7).tolist():
        scene = place(objects=[(SPHERE, math.cos(heading), math.sin(heading), 0.3, 0.6, 0.0)])
        frame, _ = look(scene, 0.0, 0.0, heading)
        assert frame[14, 10].min() > 40


# ---- symmetries


def test_a_full_turn_returns_the_same_frame():
    scene, camera = random_places(), Camera()
    where, pose = random_poses(6, 3)
    turned = pose + torch.tensor([0.0, 0.0, 2 * math.pi])
    assert_alike(draw_frames(scene, camera, where, turned), draw_frames(scene, camera, where, pose))


def test_a_mirrored_room_is_a_mirrored_picture():
    scene = random_places(objects=0, tiles=(1, 1))
    scene = replace(scene, textures=scene.textures[:, :1, :1].expand(-1, 4, 4, 3).contiguous())  # plain ones
    mirrored = replace(scene, walls=scene.walls * torch.tensor([1.0, -1.0, 1.0, -1.0]))
    where, pose = random_poses(6, 3)
    one = draw_frames(scene, Camera(), where, pose)
    other = draw_frames(mirrored, Camera(), where, pose * torch.tensor([1.0, -1.0, -1.0]))
    assert_alike(one.flip(-1), other)


@pytest.mark.parametrize("quarter", [1, 2, 3])
def test_a_world_and_its_walker_moved_together_see_the_same_shapes(quarter):
    things = [(COLUMN, 1.5, 0.4, 0.3, 0.4, 0.0), (BOX, 1.2, -0.5, 0.2, 0.6, 0.3), (CONE, 2.0, 0.0, 0.4, 0.7, 0.0)]
    c, s = round(math.cos(quarter * math.pi / 2)), round(math.sin(quarter * math.pi / 2))
    turned = [(k, c * x - s * y, s * x + c * y, r, h, turn + quarter * math.pi / 2) for k, x, y, r, h, turn in things]
    walls = [(c * x0 - s * y0, s * x0 + c * y0, c * x1 - s * y1, s * x1 + c * y1) for x0, y0, x1, y1 in ROOM]
    _, before = look(place(objects=things), 0.0, 0.0, 0.1)
    _, after = look(place(walls=walls, objects=turned), 0.0, 0.0, 0.1 + quarter * math.pi / 2)
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-4)


def test_antialiasing_averages_the_rays_of_a_pixel():
    scene = random_places()
    where, pose = random_poses(3, 3)
    fine = draw_frames(scene, Camera(pixels=36, antialias=1), where, pose)
    average = fine.float().view(3, 3, 12, 3, 12, 3).mean((3, 5))
    assert (draw_frames(scene, Camera(pixels=12, antialias=3), where, pose) - average).abs().max() <= 1


def test_padding_changes_nothing():
    scene = random_places()
    nowhere = torch.zeros(3, 2, 4)
    padded = replace(
        scene,
        walls=torch.cat([nowhere, scene.walls], 1),
        wall_texture=torch.cat([torch.zeros(3, 2, dtype=torch.long), scene.wall_texture], 1),
        objects=torch.cat([torch.rand(3, 2, 5), scene.objects], 1),
        object_kind=torch.cat([torch.full((3, 2), NOTHING), scene.object_kind], 1),
        object_colour=torch.cat([torch.rand(3, 2, 3), scene.object_colour], 1),
    )
    where, pose = random_poses(6, 3)
    assert torch.equal(draw_frames(padded, Camera(), where, pose), draw_frames(scene, Camera(), where, pose))


# ---- awkward places


@pytest.mark.parametrize("kind", SOLIDS)
@pytest.mark.parametrize(
    "pose",
    [
        (3.0, 0.0, 0.0),  # on a wall, facing it
        (3.0, 0.0, math.pi / 2),  # on it, looking along it
        (3.0, 2.0, 0.3),  # in a corner
        (1.0, 0.5, 1.0),  # in the middle of an object
        (1.2, 0.5, 0.0),  # within it
        (1.0, 0.2, math.pi / 2),  # touching it
        (50.0, 50.0, 1.0),  # outside
        (0.0, 0.0, 1e4),  # dizzy
    ],
)
def test_awkward_poses_are_seen_from_without_complaint(kind, pose):
    scene = place(objects=[(kind, 1.0, 0.5, 0.3, 0.6, 0.0)])
    frame, depth = look(scene, *pose, pixels=9)
    assert frame.shape == (9, 9, 3) and depth.isfinite().all() and (depth > 0).all()


@pytest.mark.parametrize("kind", SOLIDS)
def test_an_object_of_no_size_is_not_seen(kind):
    scene = place(objects=[(kind, 1.05, 0.033, 0.0, 0.6, 0.0)])
    assert torch.equal(look(scene, 0.0, 0.0, 0.0)[0], look(place(), 0.0, 0.0, 0.0)[0])


def test_no_frames_of_no_walls_and_no_objects():
    scene = random_places(walls=0, objects=0)
    assert draw_frames(scene, Camera(), torch.zeros(0, dtype=torch.long), torch.zeros(0, 3)).shape == (0, 3, 32, 32)
    where, pose = random_poses(2, 3)
    assert_alike(draw_frames(scene, Camera(), where, pose), ray_by_ray(scene, Camera(), where, pose)[0])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"pixels": 0}, "pixels is 0"),
        ({"field_of_view": 180.0}, "field_of_view is 180.0"),
        ({"antialias": 0}, "antialias is 0"),
        ({"eye": 1.5}, "eye is 1.5"),
    ],
)
def test_a_camera_that_sees_nothing_is_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        Camera(**wrong)


def test_textures_that_cannot_be_halved_are_refused():
    with pytest.raises(InputError, match="side of 12 texels"):
        _ = random_places(side=12).pyramid


# ---- implementations

CAMERAS = [
    Camera(pixels=1, antialias=1),
    Camera(pixels=7, antialias=3, field_of_view=50.0),
    Camera(pixels=16, antialias=1, eye=0.8),
    Camera(pixels=19, antialias=2, field_of_view=110.0, eye=0.3),
]


@pytest.mark.parametrize("camera", CAMERAS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 8, 5), (3, 5, 9)])
def test_frames_equal_those_cast_ray_by_ray(camera, shape):
    places, walls, objects = shape
    scene = random_places(places, walls, objects, seed=sum(shape))
    where, pose = random_poses(3, places)
    assert_alike(draw_frames(scene, camera, where, pose), ray_by_ray(scene, camera, where, pose)[0])


def test_frames_do_not_depend_on_how_many_are_cast_at_once(monkeypatch):
    scene, camera = random_places(), Camera(antialias=1)
    where, pose = random_poses(9, 3)
    together = draw_frames(scene, camera, where, pose)
    monkeypatch.setattr(raycast, "RAYS", 2 * camera.rays**2)
    assert torch.equal(draw_frames(scene, camera, where, pose), together)


def test_double_precision_places_and_poses_are_taken():
    scene, camera = random_places(), Camera(pixels=8)
    double = replace(scene, walls=scene.walls.double(), objects=scene.objects.double(), corner=scene.corner.double())
    where, pose = random_poses(4, 3)
    assert torch.equal(draw_frames(double, camera, where.int(), pose.double()), draw_frames(scene, camera, where, pose))


def test_a_scene_moves_with_all_it_holds():
    scene = random_places()
    made = scene.pyramid
    moved = scene.to("cpu")
    assert moved.tile == scene.tile and torch.equal(moved.pyramid, made)
    assert scene.pyramid is made


def by_triton(scene, camera, where, pose, device):
    """Frames by the kernel, on a CPU again."""
    with forced("cuda"):
        return draw_frames(scene.to(device), camera, where.to(device), pose.to(device)).cpu()


@pytest.mark.filterwarnings("ignore:(divide by zero|invalid value|overflow) encountered:RuntimeWarning")  # interpreted
@pytest.mark.parametrize("camera", [*CAMERAS[:2], Camera(pixels=9, antialias=1, field_of_view=110.0, eye=0.3)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 9), (3, 0, 0)])
def test_the_triton_raycast_equals_the_others(camera, shape, triton_device):
    places, walls, objects = shape
    scene = random_places(places, walls, objects, seed=sum(shape))
    where, pose = random_poses(3, places)
    assert_alike(by_triton(scene, camera, where, pose, triton_device), draw_frames(scene, camera, where, pose))


@on_a_gpu
@pytest.mark.parametrize("camera", [*CAMERAS, Camera(), Camera(pixels=64), Camera(pixels=128, antialias=1)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 8, 5), (3, 5, 9), (3, 0, 0)])
def test_the_triton_raycast_equals_the_others_on_a_gpu(camera, shape):
    places, walls, objects = shape
    scene = random_places(places, walls, objects, seed=sum(shape))
    where, pose = random_poses(16, places)
    assert_alike(by_triton(scene, camera, where, pose, "cuda"), draw_frames(scene, camera, where, pose))


@on_a_gpu
def test_the_readable_raycast_runs_on_a_gpu():
    scene, (where, pose) = random_places(), random_poses(16, 3)
    with forced("readable"):
        frames = draw_frames(scene.to("cuda"), Camera(), where.cuda(), pose.cuda()).cpu()
    assert_alike(frames, draw_frames(scene, Camera(), where, pose))


@on_a_gpu
def test_the_triton_raycast_can_be_captured_in_a_graph():
    scene, camera = random_places().to("cuda"), Camera()
    where, pose = (part.cuda() for part in random_poses(16, 3))
    first = draw_frames(scene, camera, where, pose)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        frames = draw_frames(scene, camera, where, pose)
    graph.replay()
    assert torch.equal(frames, first)
    pose += torch.tensor([0.1, 0.1, 0.5], device="cuda")
    graph.replay()
    assert torch.equal(frames, draw_frames(scene, camera, where, pose))


def test_the_triton_raycast_takes_no_frames(triton_device):
    none = torch.zeros(0, dtype=torch.long)
    assert by_triton(random_places(), Camera(), none, torch.zeros(0, 3), triton_device).shape == (0, 3, 32, 32)
