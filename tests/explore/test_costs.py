"""stable-worldmodel's solvers plan in a memory."""

from pathlib import Path
from types import SimpleNamespace

import gymnasium
import pytest
import torch

from gtmsm import Explorer, InputError, WorldModel
from gtmsm.data.record import record
from gtmsm.explore.costs import PlanningModel
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import load_images
from gtmsm.worlds.walkers import PoissonWalker

WEIGHTS = Path(__file__).parents[2] / "weights" / "image-walk-celeba"


@pytest.fixture(scope="module")
def walked():
    """A walk over a picture, the explorer that memorised it, and the world."""
    world = ImageWalk(load_images("builtin", 32).test, ImageWalkConfig())
    clip = record(world, PoissonWalker(), 1, 96, torch.Generator().manual_seed(3))
    model = WorldModel.load(WEIGHTS)
    with torch.no_grad():
        return clip, Explorer(model, *model.memorise(clip.x, clip.a)), world


def test_costs_are_squared_distances_from_where_the_goal_was_seen(walked):
    clip, explorer, _ = walked
    model, generator = PlanningModel(explorer), torch.Generator().manual_seed(0)
    candidates = torch.eye(5)[torch.randint(5, (2, 6, 9), generator=generator)]
    goals = clip.x[0, [10, 70]][:, None, None].expand(-1, 6, 1, -1, -1, -1)
    cost = model.get_cost({"goal": goals}, candidates)
    ends = explorer.model.imagine(explorer.memory, explorer.here, candidates.flatten(0, 1)).poses[:, -1].view(2, 6, 2)
    places = explorer.memory.snapshot().place.mean[0, [10, 70]]
    # A cell that was visited twice has two places, a little apart.
    torch.testing.assert_close(cost, (ends - places[:, None]).square().sum(-1), atol=0.05, rtol=0.05)


def test_bytes_are_pictures_too_and_a_missing_goal_is_named(walked):
    clip, explorer, _ = walked
    model, frame = PlanningModel(explorer), clip.x[0, 10]
    bytes_ = (255 * frame).round().byte().permute(1, 2, 0)
    one, other = (model.encode({"pixels": x[None, None]})["emb"] for x in (frame, bytes_))
    torch.testing.assert_close(one, other)
    with pytest.raises(InputError, match="give a goal"):
        model.get_cost({"pixels": frame}, torch.zeros(1, 1, 1, 5))


def test_their_solver_finds_the_way(walked):
    solvers = pytest.importorskip("stable_worldmodel.solver", reason="stable-worldmodel is not installed")
    clip, explorer, world = walked
    solver = solvers.CategoricalCEMSolver(PlanningModel(explorer), num_samples=512, n_steps=20, topk=24, smoothing=0.02)
    config = SimpleNamespace(horizon=16, action_block=1)
    solver.configure(action_space=gymnasium.spaces.Discrete(5), n_envs=1, config=config)
    found = solver.solve({"goal": clip.x[:1, 20][:, None]})["actions"]
    world.walk(found.reshape(1, 16).long() if found.numel() == 16 else found.reshape(1, 16, 5).argmax(-1))
    assert world.cell[0].tolist() == clip.true_pose[0, 20].tolist()
