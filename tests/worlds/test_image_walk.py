"""Section 4.1: walking on images."""

from itertools import product

import pytest
import torch

from gtmsm.errors import InputError
from gtmsm.worlds.image_walk import ACTIONS, ImageWalk, ImageWalkConfig

GRIDS = [(32, 8, 3), (48, 8, 3), (64, 8, 5), (9, 8, 1), (16, 5, 4), (31, 8, 3)]
DELTAS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1), "stay": (0, 0)}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(count, size):
    return torch.randint(0, 256, (count, 3, size, size), generator=seeded(), dtype=torch.uint8)


def world_of(count=6, start="centre", grid=(32, 8, 3)):
    size, crop, stride = grid
    return ImageWalk(noise(count, size), ImageWalkConfig(size=size, crop=crop, stride=stride, start=start))


def all_cells(cells):
    return torch.tensor(list(product(range(cells), repeat=2)))


def test_the_paper_has_nine_positions_per_axis():
    assert ImageWalkConfig().cells == 9


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("action", range(5))
def test_every_action_moves_one_cell_or_meets_a_wall(grid, action):
    world = world_of(grid=grid)
    last = world.config.cells - 1
    cells = all_cells(world.config.cells)
    world.place(torch.zeros(len(cells), dtype=torch.long), cells)
    world.step(torch.full((len(cells),), action))
    row_move, column_move = DELTAS[ACTIONS[action]]
    for (row, column), pose in zip(cells.tolist(), world.pose.tolist(), strict=True):
        assert pose == [min(max(row + row_move, 0), last), min(max(column + column_move, 0), last)]


@pytest.mark.parametrize("grid", GRIDS)
def test_an_agent_sees_the_crop_cut_by_hand(grid):
    size, crop, stride = grid
    images = noise(2, size)
    config = ImageWalkConfig(size=size, crop=crop, stride=stride)
    world = ImageWalk(images, config)
    leftover = size - (crop + (config.cells - 1) * stride)
    for row, column in all_cells(config.cells).tolist():
        world.place(torch.tensor([1]), torch.tensor([[row, column]]))
        top, left = leftover // 2 + row * stride, leftover // 2 + column * stride
        by_hand = images[1, :, top : top + crop, left : left + crop].float() / 255
        assert torch.equal(world.look()[0], by_hand)


@pytest.mark.parametrize("grid", GRIDS)
def test_the_margins_on_both_sides_differ_by_at_most_a_pixel(grid):
    size, crop, stride = grid
    config = ImageWalkConfig(size=size, crop=crop, stride=stride)
    behind_the_last_cell = size - config.margin - (config.cells - 1) * stride - crop
    assert 0 <= behind_the_last_cell - config.margin <= 1


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("start", ["centre", "random"])
def test_a_walk_is_step_and_look_in_turn(grid, start):
    world = world_of(start=start, grid=grid)
    actions = torch.randint(5, (7, 33), generator=seeded(1))
    world.reset(7, seeded(2))
    walk = world.walk(actions)
    end = world.pose
    world.reset(7, seeded(2))
    for t in range(33):
        world.step(actions[:, t])
        assert torch.equal(walk.poses[:, t], world.pose)
        assert torch.equal(walk.frames[:, t], world.look())
    assert torch.equal(end, world.pose)


def test_a_walk_goes_on_where_the_last_one_ended():
    world = world_of()
    actions = torch.randint(5, (4, 40), generator=seeded(1))
    world.reset(4)
    whole = world.walk(actions)
    world.reset(4)
    parts = [world.walk(part) for part in actions.split(15, dim=1)]
    assert torch.equal(torch.cat([part.poses for part in parts], 1), whole.poses)
    assert torch.equal(torch.cat([part.frames for part in parts], 1), whole.frames)


def test_going_once_around_a_square_shows_the_first_crop_again():
    world = world_of()
    world.reset(3, seeded())
    before = world.look()
    up, down, left, right, _ = range(5)
    walk = world.walk(torch.tensor([[up, left, down, right]]).repeat(3, 1))
    assert torch.equal(walk.frames[:, -1], before)


def test_the_same_seed_gives_the_same_agents():
    first, second = world_of(start="random"), world_of(start="random")
    first.reset(50, seeded(3))
    second.reset(50, seeded(3))
    assert torch.equal(first.image, second.image)
    assert torch.equal(first.cell, second.cell)


def test_agents_are_dropped_on_every_image():
    world = world_of(count=6)
    world.reset(300, seeded())
    assert set(world.image.tolist()) == set(range(6))


def test_random_starts_cover_every_cell_alike():
    world = world_of(start="random")
    world.reset(81 * 100, seeded())
    counts = (world.cell[:, 0] * 9 + world.cell[:, 1]).bincount(minlength=81)
    assert counts.min() > 50 and counts.max() < 160


def test_a_fixed_start_is_the_centre_cell():
    world = world_of()
    world.reset(20, seeded())
    assert torch.equal(world.pose, torch.full((20, 2), 4.0))


def test_without_a_generator_agents_stand_in_the_centre_of_the_images_in_order():
    world = world_of(count=3, start="random")
    world.reset(5)
    assert world.image.tolist() == [0, 1, 2, 0, 1]
    assert torch.equal(world.pose, torch.full((5, 2), 4.0))


def test_frames_lie_between_zero_and_one():
    images = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1).expand(2, 3, 32, 32)
    world = ImageWalk(images, ImageWalkConfig())
    world.reset(2)
    assert world.look()[0].max() == 0
    assert world.look()[1].min() == 1


def test_a_frame_has_the_shape_the_world_promises():
    world = world_of()
    assert world.look().shape[1:] == world.frame_shape == (3, 8, 8)


def test_crops_share_the_memory_of_the_images():
    images = noise(2, 32)
    world = ImageWalk(images, ImageWalkConfig())
    images.zero_()
    assert world.look().max() == 0


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"crop": 40}, "crop is 40, larger than the image of size 32"),
        ({"crop": 0}, "crop is 0"),
        ({"stride": 0}, "stride is 0"),
        ({"stride": 25}, "leave a single cell.*make stride 24 or less"),
        ({"crop": 32}, "leave a single cell; walking needs 2 or more per axis: make crop smaller"),
    ],
)
def test_a_grid_nobody_can_walk_on_is_refused(settings, complaint):
    with pytest.raises(InputError, match=complaint):
        ImageWalkConfig(**settings)


# Where shapes and types are checked as the tests run, the check speaks first, with a TypeError.
REFUSED = (InputError, TypeError)


def test_an_unknown_start_is_refused():
    with pytest.raises(REFUSED, match="start"):
        ImageWalkConfig(start="center")


def test_images_of_another_size_than_the_grid_are_refused():
    with pytest.raises(InputError, match="64x64 but size is 32"):
        ImageWalk(noise(1, 64), ImageWalkConfig())


def test_a_world_without_images_is_refused():
    with pytest.raises(InputError, match="no image"):
        ImageWalk(noise(0, 32), ImageWalkConfig())


@pytest.mark.parametrize(("image", "cell"), [(6, [0, 0]), (-1, [0, 0]), (0, [0, 9]), (0, [-1, 0])])
def test_a_place_that_does_not_exist_is_refused(image, cell):
    with pytest.raises(InputError, match="does not exist; choose from 0 to"):
        world_of(count=6).place(torch.tensor([image]), torch.tensor([cell]))


def test_more_images_than_cells_are_refused():
    with pytest.raises(REFUSED, match="2 images but 1 cells|cell"):
        world_of().place(torch.tensor([0, 1]), torch.tensor([[0, 0]]))


def test_actions_for_another_number_of_agents_are_refused():
    world = world_of()
    world.reset(2)
    with pytest.raises(InputError, match="for 3 agents; this world has 2"):
        world.walk(torch.zeros(3, 4, dtype=torch.long))


def test_no_agents_and_no_steps_are_refused():
    world = world_of()
    with pytest.raises(InputError, match="asked for 0 agents"):
        world.reset(0)
    with pytest.raises(InputError, match="at least one step"):
        world.walk(torch.zeros(1, 0, dtype=torch.long))
