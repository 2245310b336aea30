"""Section 4.1: walking on images."""

from itertools import product

import numpy as np
import pytest
import torch

from gtmsm.data.record import record
from gtmsm.errors import InputError
from gtmsm.kernels.operator import forced
from gtmsm.worlds.blocked_walk import most_rectangles
from gtmsm.worlds.image_map import draw_windows
from gtmsm.worlds.image_walk import ACTIONS, MOVES, ImageWalk, ImageWalkConfig
from gtmsm.worlds.walkers import PoissonWalker
from gtmsm.worlds.world import require_walk

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


def test_a_walk_by_the_kernels_of_a_gpu_is_the_walk_of_a_cpu(triton_device):
    walks = []
    for twin in ("readable", "cuda"):
        device = triton_device if twin == "cuda" else "cpu"
        world = ImageWalk(noise(3, 20).to(device), ImageWalkConfig(size=20))
        world.reset(4)
        choices = torch.randint(5, (4, 9), generator=seeded(1)).to(device)
        with forced(twin):
            walk = world.walk(choices)
            walks.append([walk.frames, walk.poses, world.look(), world.blocked])
    for one, other in zip(*walks, strict=True):
        assert torch.equal(one, other.cpu())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_recording_fits_into_a_graph():
    world = ImageWalk(noise(6, 32).cuda(), ImageWalkConfig())
    walker, generator = PoissonWalker(), torch.Generator("cuda").manual_seed(0)
    record(world, walker, 64, 288, generator)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        clip = record(world, walker, 64, 288, generator)
    torch.cuda.synchronize()  # on a busy GPU the captured seed could be set after the next line's
    generator.manual_seed(5)
    graph.replay()
    torch.cuda.synchronize()
    expected = record(world, walker, 64, 288, torch.Generator("cuda").manual_seed(5))
    for name in ("x", "a", "true_pose", "true_step"):
        assert torch.equal(getattr(clip, name), getattr(expected, name)), name


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
        ({"obstacles": -1}, "obstacles is -1; expected 0 to 25, as many as 9x9 cells can hold"),
        ({"obstacles": 26}, "obstacles is 26; expected 0 to 25"),
        ({"obstacles": 1, "obstacle_side": 0}, "obstacle_side is 0; expected 1 to 8 cells, to leave a way around"),
        ({"obstacles": 1, "obstacle_side": 9}, "obstacle_side is 9; expected 1 to 8 cells"),
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


@pytest.mark.parametrize("generator", [{}, 3, np.random.default_rng(0)])
def test_what_cannot_draw_is_refused(generator):
    with pytest.raises(REFUSED, match="generator"):
        world_of().reset(1, generator)


def test_actions_for_another_number_of_agents_are_refused():
    world = world_of()
    world.reset(2)
    with pytest.raises(InputError, match="for 3 agents; this world has 2"):
        world.walk(torch.zeros(3, 4, dtype=torch.long))


def test_no_agents_and_no_steps_are_refused():
    world = world_of()
    with pytest.raises(InputError, match="number of agents is 0"):
        world.reset(0)
    with pytest.raises(InputError, match="at least one step"):
        world.walk(torch.zeros(1, 0, dtype=torch.long))


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (torch.tensor([[0, 99]]), "actions are 0 to 99; expected 0 to 4, or -1 for none"),
        (torch.tensor([[-7, 1]]), "actions are -7 to 1"),
        (torch.zeros(3, 2, dtype=torch.long), "actions are for 3 agents; this world has 1"),
        (torch.rand(1, 2), "give a tensor of whole numbers"),
        (torch.zeros(2, dtype=torch.long), "give a tensor of whole numbers"),
        ([[1]], "give a tensor of whole numbers"),
        (torch.zeros(1, 2, dtype=torch.long, device="meta"), "give a tensor of whole numbers"),
        (None, "actions are None"),
    ],
)
def test_what_are_no_actions_is_not_walked(actions, said):
    with pytest.raises(InputError, match=said):
        require_walk(actions, agents=1, known=5, device=torch.device("cpu"))


@pytest.mark.parametrize("action", [5, -2])
def test_an_agent_cannot_do_what_is_no_action(action):
    with pytest.raises(InputError, match="expected 0 to 4"):
        world_of().step(torch.tensor([action]))


# ---- obstacles (App. D)


def maze_of(obstacles=4, obstacle_side=3, start="centre", grid=(32, 8, 3), n=40, seed=0):
    size, crop, stride = grid
    settings = {"start": start, "obstacles": obstacles, "obstacle_side": obstacle_side}
    world = ImageWalk(noise(6, size), ImageWalkConfig(size=size, crop=crop, stride=stride, **settings))
    world.reset(n, seeded(seed))
    return world


def reached_from(cell, solid):
    """Every cell that steps can lead to, by hand."""
    reached, ahead = {cell}, [cell]
    while ahead:
        row, column = ahead.pop()
        for move in MOVES[:4]:
            there = row + move[0], column + move[1]
            if there not in reached and all(0 <= i < len(solid) for i in there) and not solid[there[0]][there[1]]:
                reached.add(there)
                ahead.append(there)
    return reached


MAZES = [(1, 1), (4, 3), (25, 3), (3, 8)]


@pytest.mark.parametrize(("obstacles", "side"), MAZES)
@pytest.mark.parametrize("start", ["centre", "random"])
def test_every_free_cell_can_be_reached(obstacles, side, start):
    world = maze_of(obstacles, side, start)
    for cell, solid in zip(world.cell.tolist(), world.solid, strict=True):
        assert len(reached_from(tuple(cell), solid.tolist())) == (~solid).sum()


def test_a_single_obstacle_is_a_rectangle_with_sides_of_every_length():
    solid = maze_of(obstacles=1, n=400).solid
    heights, widths = solid.any(2).sum(1), solid.any(1).sum(1)
    assert torch.equal(solid.sum((1, 2)), heights * widths)
    for sides in (heights, widths):
        assert set(sides.tolist()) == {1, 2, 3}


def test_obstacles_are_anywhere_but_on_a_fixed_start():
    solid = maze_of(n=2000).solid.float().mean(0)
    assert solid[4, 4] == 0
    solid[4, 4] = 1
    assert solid.min() > 0.05


def test_an_image_holds_no_more_obstacles_than_the_config_allows():
    alternating = torch.zeros(9, 9, dtype=torch.bool)
    alternating[::2, ::2] = True
    assert alternating.sum() == most_rectangles(9)


@pytest.mark.parametrize("grid", [(32, 8, 3), (9, 8, 1), (31, 8, 3)])
@pytest.mark.parametrize("start", ["centre", "random"])
def test_a_walk_among_obstacles_is_step_and_look_in_turn(grid, start):
    world = maze_of(1, 1, start, grid, n=7, seed=2)
    actions = torch.randint(5, (7, 33), generator=seeded(1))
    walk, blocked = world.walk(actions), world.blocked
    end = world.pose
    world.reset(7, seeded(2))
    for t in range(33):
        world.step(actions[:, t])
        assert torch.equal(walk.poses[:, t], world.pose)
        assert torch.equal(walk.frames[:, t], world.look())
        assert torch.equal(blocked[:, t], world.blocked[:, 0])
    assert torch.equal(end, world.pose)


@pytest.mark.parametrize(("obstacles", "side"), MAZES)
def test_an_agent_is_blocked_exactly_where_it_would_have_stood_in_an_obstacle(obstacles, side):
    world = maze_of(obstacles, side)
    actions = torch.randint(5, (40, 60), generator=seeded(1))
    before = world.cell
    cells = world.walk(actions).poses.long()
    assert world.blocked.any() and not world.blocked.all()
    for t in range(60):
        aim = (before + torch.tensor(MOVES)[actions[:, t]]).clamp(0, 8)
        in_the_way = world.solid[torch.arange(40), aim[:, 0], aim[:, 1]]
        assert torch.equal(world.blocked[:, t], in_the_way)
        assert torch.equal(cells[:, t], torch.where(in_the_way[:, None], before, aim))
        before = cells[:, t]


def test_nobody_ever_stands_in_an_obstacle():
    world = maze_of(start="random", n=60)
    row, column = world.walk(torch.randint(5, (60, 200), generator=seeded(1))).poses.long().unbind(-1)
    assert not world.solid[torch.arange(60)[:, None], row, column].any()


def test_the_edge_of_the_image_blocks_nobody():
    world = maze_of(obstacles=1)
    world.place(torch.tensor([0]), torch.tensor([[0, 0]]), torch.zeros(1, 9, 9, dtype=torch.bool))
    world.walk(torch.tensor([[0, 2]]))
    assert world.blocked.tolist() == [[False, False]]


def test_doing_it_twice_is_doing_it_two_times():
    world = maze_of()
    actions = torch.randint(5, (40, 30), generator=seeded(1))
    twice = torch.rand(40, 30, generator=seeded(2)) < 0.3
    poses, blocked = world.walk(actions, twice).poses, world.blocked
    world.reset(40, seeded())
    for t in range(30):
        world.step(actions[:, t])
        was_blocked = world.blocked[:, 0]
        world.step(torch.where(twice[:, t], actions[:, t], world.rest))
        assert torch.equal(poses[:, t], world.pose)
        assert torch.equal(blocked[:, t], was_blocked | world.blocked[:, 0])


def test_the_same_seed_puts_the_same_obstacles_and_another_seed_others():
    first, again, other = (maze_of(seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.solid, again.solid)
    assert not torch.equal(first.solid, other.solid)


def test_every_reset_draws_obstacles_anew():
    world, generator = maze_of(), seeded()
    world.reset(10, generator)
    before = world.solid
    world.reset(10, generator)
    assert not torch.equal(before, world.solid)
    assert not torch.equal(world.solid[0], world.solid[1])


def test_obstacles_leave_images_and_starts_as_they_were():
    with_obstacles, without = maze_of(start="random"), maze_of(obstacles=0, start="random")
    assert torch.equal(with_obstacles.image, without.image)
    assert torch.equal(with_obstacles.cell, without.cell)


def test_without_obstacles_nothing_is_solid_and_no_chance_is_spent_on_it():
    world, generator, other = world_of(), seeded(3), seeded(3)
    world.reset(20, generator)
    torch.randint(6, (20,), generator=other)
    assert torch.equal(generator.get_state(), other.get_state())
    assert world.solid.shape == (20, 9, 9)
    assert not world.solid.any()
    world.walk(torch.randint(5, (20, 30), generator=seeded(1)))
    assert world.blocked.shape == (20, 30)
    assert not world.blocked.any()


def test_without_a_generator_nothing_is_in_the_way():
    world = maze_of()
    world.reset(3)
    assert not world.solid.any()


def test_agents_may_be_placed_among_given_obstacles():
    world = world_of()
    solid = torch.zeros(1, 9, 9, dtype=torch.bool)
    solid[0, 0, 1] = True
    world.place(torch.tensor([0]), torch.tensor([[0, 0]]), solid)
    up, down, left, right, _ = range(5)
    walk = world.walk(torch.tensor([[right, down, right, up]]))
    assert walk.poses.tolist() == [[[0, 0], [1, 0], [1, 1], [1, 1]]]
    assert world.blocked.tolist() == [[True, False, False, True]]
    world.place(torch.tensor([0]), torch.tensor([[0, 0]]))
    assert not world.solid.any()


def test_an_agent_is_not_put_into_an_obstacle():
    with pytest.raises(InputError, match=r"cell \(2, 3\) is solid; put the agent into a free one"):
        world_of().place(torch.tensor([0]), torch.tensor([[2, 3]]), torch.ones(1, 9, 9, dtype=torch.bool))


def test_obstacles_of_another_grid_are_refused():
    with pytest.raises(InputError, match=r"solid is \(1, 5, 5\); expected \(1, 9, 9\), a grid per agent"):
        world_of().place(torch.tensor([0]), torch.tensor([[2, 3]]), torch.zeros(1, 5, 5, dtype=torch.bool))


@pytest.mark.parametrize("grid", GRIDS)
def test_the_middle_of_every_solid_cell_is_drawn_over_the_picture(grid):
    size, crop, stride = grid
    config = ImageWalkConfig(size=size, crop=crop, stride=stride)
    solid = torch.rand(config.cells, config.cells, generator=seeded()) < 0.3
    picture, zoom = torch.ones(3, size, size), 4
    plain, drawn = (draw_windows(picture, torch.zeros(1, 2).long(), config, zoom, mask)[0] for mask in (None, solid))
    expected = torch.zeros(size * zoom, size * zoom, dtype=torch.bool)
    for row, column in solid.nonzero().tolist():
        top, left = (zoom * (config.margin + (crop - stride) // 2 + stride * i) for i in (row, column))
        expected[top : top + zoom * stride, left : left + zoom * stride] = True
    yellow = (plain != 1).any(0)
    assert torch.equal((drawn != plain).any(0), expected & ~yellow)
