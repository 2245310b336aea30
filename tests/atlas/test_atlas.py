"""Agents that share an atlas."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from gtmsm.atlas import Atlas
from gtmsm.data.record import as_clip
from gtmsm.errors import InputError
from gtmsm.evaluation.metrics import psnr
from gtmsm.explore import Explorer, travel
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.memory import Memory
from gtmsm.tensors import Belief
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import load_images
from gtmsm.worlds.walkers import PoissonWalker

SHIPPED = Path(__file__).parents[2] / "weights" / "obstacles-celeba"
STARTS = {"anna": (6, 2, 0), "bert": (2, 7, 0), "carl": (4, 4, 1)}
"""A cell and a picture: two agents in different parts of one picture, and one in another."""
COLUMNS = {"anna": (0, 6), "bert": (3, 9), "carl": (0, 9)}


class Walked(NamedTuple):
    memory: Memory
    frames: Tensor
    actions: Tensor
    true: Tensor
    """In cells, from where the agent set out."""
    cells: Tensor


@pytest.fixture(scope="module")
def model() -> WorldModel:
    return WorldModel.load(SHIPPED).without_walls()


@pytest.fixture(scope="module")
def walked(model: WorldModel) -> dict[str, Walked]:
    pictures = load_images("builtin", 32)
    world = ImageWalk(torch.stack([pictures.test[7], pictures.train[3]]), ImageWalkConfig())
    solid = torch.ones(3, 9, 9, dtype=torch.bool)
    for i, (first, end) in enumerate(COLUMNS.values()):
        solid[i, :, first:end] = False
    start = torch.tensor([where[:2] for where in STARTS.values()])
    world.place(torch.tensor([where[2] for where in STARTS.values()]), start, solid)
    clip = as_clip(world, PoissonWalker()(world, 250, torch.Generator().manual_seed(0)))
    with torch.no_grad():
        seen = model.observe(clip.x, clip.a)
    return {
        name: Walked(seen.entries[i : i + 1], clip.x[i], clip.a[i], clip.true_pose[i] - start[i], clip.true_pose[i])
        for i, name in enumerate(STARTS)
    }


@pytest.fixture
def atlas(tmp_path: Path, model: WorldModel, walked: dict[str, Walked]) -> Atlas:
    """Three agents in one world."""
    atlas = Atlas.open(tmp_path / "atlas.db", model)
    for name, walk in walked.items():
        atlas.add("gallery", name, walk.memory)
    return atlas


def test_maps_of_one_picture_meet_and_that_of_another_stays_apart(atlas: Atlas):
    (met,) = atlas.merge("gallery")
    assert (met.one, met.other) == ("anna", "bert")
    assert met.clear
    assert (met.found[0].origin - torch.tensor([-4.0, 5.0])).norm() < 0.5
    assert float(met.found[0].covariance.diagonal().max()) ** 0.5 < 0.5
    assert len(atlas.memory("gallery", "anna")) == 500
    assert len(atlas.memory("gallery", "carl")) == 250


def test_a_meeting_is_kept_and_changes_no_pose(atlas: Atlas, model: WorldModel, walked: dict[str, Walked]):
    before = [line.hash for line in atlas._store.pull("gallery", 0)]
    met = atlas.merge("gallery")
    assert [line.hash for line in atlas._store.pull("gallery", 0)][: len(before)] == before
    with Atlas.open(atlas.address, model) as again:
        assert again.local("gallery").met[met[0].one, met[0].other].said() == met[0].said()
        own = again.memory("gallery", "bert").at(torch.arange(250))
        assert torch.equal(own.place.mean, walked["bert"].memory.place.mean)
        lines = again.worlds()[0].seq
        again.merge("gallery")
        assert again.worlds()[0].seq == lines  # nothing new to say


def test_one_agent_imagines_what_only_another_has_seen(atlas: Atlas, model: WorldModel, walked: dict[str, Walked]):
    anna, bert = walked["anna"], walked["bert"]
    only_bert = bert.cells[:, 1] >= COLUMNS["anna"][1]
    assert int(only_bert.sum()) > 30
    frames = bert.frames[only_bert]
    seen_by_anna = (bert.cells - torch.tensor(STARTS["anna"][:2]))[only_bert]  # in anna's frame
    alone = shown(model, atlas.memory("gallery", "anna"), seen_by_anna, frames)
    atlas.merge("gallery")
    together = shown(model, atlas.memory("gallery", "anna"), seen_by_anna, frames)
    by_bert = shown(model, walked["bert"].memory, bert.true[only_bert], frames)
    assert together > by_bert - 0.5
    assert together > alone + 5
    assert len(anna.memory) == 250


def shown(model: WorldModel, memory: Memory, pose: Tensor, frames: Tensor) -> float:
    """Mean PSNR of what is imagined at poses."""
    stay = torch.zeros(len(pose), 1, model.action_size)
    imagined = model.imagine(memory, Belief(pose), stay).frames[:, 0]
    return float(psnr((imagined - frames).square().mean((1, 2, 3))).mean())


def test_a_view_of_one_agent_is_found_on_the_map_of_another(atlas: Atlas, walked: dict[str, Walked]):
    atlas.merge("gallery")
    bert = walked["bert"]
    at = int((bert.cells[:, 1] == 8).nonzero()[0])
    found = atlas.where("gallery", bert.frames[None, at : at + 1], agent="anna")
    assert (found.pose[0, 0] - (bert.cells[at] - torch.tensor(STARTS["anna"][:2]))).norm() < 0.6
    assert atlas.which(bert.frames[at], 3)[0].hit.world == "gallery"


def test_an_explorer_goes_on_in_what_others_have_seen(atlas: Atlas, model: WorldModel, walked: dict[str, Walked]):
    atlas.merge("gallery")
    lost, bert = Explorer(model, atlas.memory("gallery", "anna"), model.anywhere(1)), walked["bert"]
    for x, a in zip(bert.frames[-30:], bert.actions[-30:], strict=True):
        lost.step(x, a)
    assert not lost.lost
    assert (lost.here.mean[0] - (bert.cells[-1] - torch.tensor(STARTS["anna"][:2]))).norm() < 0.6


def test_one_agent_plans_its_way_to_what_only_another_has_seen(
    atlas: Atlas, model: WorldModel, walked: dict[str, Walked]
):
    """From her last cell to a view that he had in a column in which she has never been."""
    anna, bert = walked["anna"], walked["bert"]
    there = torch.tensor([4.0, 8.0])  # in the first row are views of little contrast, which could be anywhere
    goal = bert.frames[int((bert.cells == there).all(1).nonzero()[0])]
    here = Belief(anna.true[-1:])
    alone = Explorer(model, atlas.memory("gallery", "anna"), here).plan(goal)
    assert not alone.found and "know" in alone.reason
    atlas.merge("gallery")
    world = ImageWalk(load_images("builtin", 32).test[7:8], ImageWalkConfig())
    world.place(torch.zeros(1, dtype=torch.long), anna.cells[-1:].long())

    def act(action: int) -> Tensor:
        world.step(torch.tensor([action]))
        return world.look()[0]

    journey = travel(Explorer(model, atlas.memory("gallery", "anna"), here), goal, act)
    assert journey.arrived
    assert torch.equal(world.pose[0], there.to(world.pose))


def test_pruning_keeps_what_imagination_needs(atlas: Atlas, model: WorldModel):
    pruned = atlas.prune("gallery", 300)
    assert pruned.before == 750 and pruned.after <= 300
    assert pruned.loss is not None and pruned.loss.before >= pruned.loss.after > 25
    with Atlas.open(atlas.address, model) as again:
        local = again.local("gallery")
        assert len(local) == pruned.after
        assert {line.kind for line in again._store.pull("gallery", 0)} == {"chunk", "prune"}
    assert atlas.written("gallery", "anna") == 250
    assert atlas.merge("gallery")[0].clear


def test_one_that_pulls_learns_of_a_pruning(atlas: Atlas, model: WorldModel, walked: dict[str, Walked]):
    with Atlas.open(atlas.address, model) as other:
        assert len(other.local("gallery")) == 750
        left = atlas.prune("gallery", 300).after
        atlas.add("gallery", "anna", walked["anna"].memory)
        assert len(other.local("gallery")) == left + 250


def test_where_a_place_has_changed_both_views_stay_and_newer_wins_if_told_so(
    tmp_path: Path, model: WorldModel, walked: dict[str, Walked]
):
    anna, carl = walked["anna"].memory, walked["carl"].memory
    changed = replace(anna, code=carl.code)  # other views at the same places
    with Atlas.open(tmp_path / "atlas.db", model) as atlas:
        atlas.add("room", "anna", anna, time=1.0)
        atlas.add("room", "anna", changed, time=2.0)
        assert len(atlas.memory("room")) == 500
        left = atlas.memory("room", newer_wins=True).code.mean[0]
        stayed = torch.cdist(left, anna.code.mean[0]).amin(1) == 0
        assert int(stayed.sum()) < 50 and len(left) - int(stayed.sum()) == 250
        with Atlas.open(tmp_path / "same.db", model) as other:
            other.add("room", "anna", anna, time=1.0)
            other.add("room", "anna", anna, time=2.0)
            assert len(other.memory("room", newer_wins=True)) > 450


def test_another_atlas_is_a_copy(atlas: Atlas, model: WorldModel, database: str):
    atlas.merge("gallery")
    atlas.prune("gallery", 500)
    assert atlas.export(database) == len(atlas.local("gallery"))
    with Atlas.open(database, model) as other:
        for agent in STARTS:
            mine, theirs = (place.memory("gallery", agent) for place in (atlas, other))
            assert torch.equal(mine.place.mean, theirs.place.mean) and torch.equal(mine.code.mean, theirs.code.mean)
    with pytest.raises(InputError, match="has a world gallery already"):
        atlas.export(database)


def test_memories_of_other_weights_are_not_read(atlas: Atlas):
    with Atlas.open(atlas.address, WorldModel.load(SHIPPED)) as other:
        for ask in (other.memory, other.merge, lambda world: other.prune(world, 5)):
            with pytest.raises(InputError, match="gallery .* was made by the weights .*; open it with the model"):
                ask("gallery")


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (lambda atlas: atlas.memory("galery"), 'there is no world .galery. in .*; did you mean "gallery"'),
        (lambda atlas: atlas.memory("gallery"), "world gallery has 3 agents; say in whose frame"),
        (lambda atlas: atlas.memory("gallery", "ana"), 'no agent ana in world gallery .*; did you mean "anna"'),
        (lambda atlas: atlas.prune("gallery", 0), "keep is 0; give a whole number"),
        (lambda atlas: atlas.add("gallery", "anna", None), "got a NoneType to add; give a Memory"),
        (lambda atlas: Atlas.open("mysql://x"), "the address is mysql://...; give postgresql"),
        (lambda atlas: Atlas.open(3), "the address is 3; give a file"),
    ],
)
def test_wrong_questions_are_answered_in_one_line(atlas: Atlas, ask: Callable[[Atlas], object], complaint: str):
    with pytest.raises(InputError, match=complaint):
        ask(atlas)
