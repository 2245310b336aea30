"""Sets of walks that are the same for everybody."""

import json
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from gtmsm.data.record import record
from gtmsm.episodes.recorded import RecordedWorld
from gtmsm.errors import InputError
from gtmsm.evaluation import sets
from gtmsm.evaluation.sets import SETS, SPLITS, Digest, FixedSet, named_set
from gtmsm.experiments import RoomsExperiment, set_up
from gtmsm.presets import PRESETS
from gtmsm.worlds.image_walk import ImageWalk
from gtmsm.worlds.rooms import Rooms


@pytest.fixture(scope="module")
def walks() -> FixedSet:
    return named_set("image-walk/builtin", quick=True)


def images_of(name: str, split: sets.Split) -> set[bytes]:
    world = named_set(name, split).world
    assert isinstance(world, ImageWalk)
    return {image.tobytes() for image in world.images.numpy()}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", ["image-walk/builtin", "image-walk/obstacles"])
def test_this_machine_draws_the_walks_that_everybody_is_compared_on(name: str, split: sets.Split):
    assert named_set(name, split, quick=True).check() == ""


@pytest.mark.parametrize("name", ["rooms/rotate", "rooms/return-0"])
def test_this_machine_draws_the_rooms_that_everybody_is_compared_on(name: str):
    pytest.importorskip("labmaze")
    assert named_set(name, quick=True).check() == ""


def test_this_machine_draws_the_walks_in_doom_and_fits_poses_on_others():
    pytest.importorskip("vizdoom")
    pytest.importorskip("labmaze")
    doom = named_set("doom/walk", quick=True)
    assert doom.check() == ""
    other = doom.elsewhere
    assert isinstance(other, RecordedWorld) and isinstance(doom.world, RecordedWorld)
    scored, fitted = (world.replay(3, 64, torch.Generator().manual_seed(0)).x for world in (doom.world, other))
    mine, theirs = ({frame.numpy().tobytes() for frame in x.flatten(0, 1)} for x in (scored, fitted))
    assert not mine & theirs


def test_every_set_has_a_checksum_of_its_own_in_every_size():
    asked = product(SETS, SPLITS, (False, True))
    listed = [named_set(*which, "mine.npz" if "celeba" in which[0] else None).listed for which in asked]
    assert None not in listed
    assert len({known.sha256 for known in listed if known}) == len(listed)


def test_the_parts_of_a_set_share_no_image():
    train, validation, test = (images_of("image-walk/builtin", split) for split in SPLITS)
    assert not (train & validation or train & test or validation & test)


def test_a_set_is_the_same_twice(walks: FixedSet):
    assert walks.checksum() == walks.checksum() == replace(walks).checksum()


@pytest.mark.parametrize("name", ["rooms/walk", "image-walk/return-30"])
def test_a_kept_set_has_the_same_clips_and_agents_each_time(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gtmsm.data.record.AT_ONCE", 10)  # several batches
    drawn = named_set(name, quick=True)
    kept = replace(drawn, kept=True)
    fresh = [(clip, agents(drawn.world)) for clip in drawn.clips()]
    assert len(fresh) > 1
    for _ in range(2):
        kept.world.reset(3)  # somebody else walked there meanwhile
        again = [(clip, agents(kept.world)) for clip in kept.clips()]
        for (one, there), (other, where) in zip(fresh, again, strict=True):
            assert all(torch.equal(part, getattr(other, name)) for name, part in vars(one).items() if part is not None)
            assert there and all(torch.equal(part, where[name]) for name, part in there.items())
    monkeypatch.setattr(type(kept), "_draw", lambda self: pytest.fail("it was drawn already"))
    assert len(list(kept.clips())) == len(fresh)


def agents(world: Any) -> dict[str, torch.Tensor]:
    """Where they are, and all else that a world holds as tensors."""
    return {name: part.clone() for name, part in vars(world).items() if isinstance(part, torch.Tensor)}


def test_clips_are_as_many_and_as_long_as_the_set_says(walks: FixedSet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gtmsm.data.record.AT_ONCE", 10)
    size = walks.size
    clips = list(walks.clips())
    assert [len(clip.x) for clip in clips] == [10, 10, 4]
    assert all(clip.steps == size.tau + size.horizon and clip.x.device.type == "cpu" for clip in clips)


def test_the_walks_are_those_that_evaluation_draws():
    whole = named_set("image-walk/builtin")
    evaluation = PRESETS["image-walk"][1].evaluation
    assert (whole.size.tau, whole.size.horizon, whole.size.clips) == (256, 256, evaluation.clips)
    drawn = record(whole.world, whole.walker, 50, 512, torch.Generator().manual_seed(evaluation.seed))
    assert torch.equal(next(whole.clips()).x, drawn.x)


def test_rooms_to_be_tested_on_are_those_that_evaluation_walks_in():
    pytest.importorskip("labmaze")
    experiment, mine = PRESETS["walk"][1], named_set("rooms/walk").world
    assert isinstance(experiment, RoomsExperiment) and isinstance(mine, Rooms)
    theirs = set_up(experiment, torch.device("cpu")).test_world
    assert isinstance(theirs, Rooms)
    assert torch.equal(mine.plans.spots, theirs.plans.spots)
    size, evaluation = named_set("rooms/walk").size, experiment.evaluation
    assert (size.clips, size.tau, size.horizon) == (evaluation.clips, evaluation.tau, evaluation.horizon)


def test_a_machine_that_draws_other_frames_or_walks_is_told_so(walks: FixedSet):
    clip, other_frames, other_walks = next(walks.clips()), Digest(), Digest()
    other_frames.add(replace(clip, x=(clip.x + 1 / 255).clamp(0, 1)))
    other_walks.add(replace(clip, true_pose=clip.true_pose + 0.01))
    assert "some of the frames differ" in walks.check(other_frames.checksum)
    assert "draws other walks" in walks.check(other_walks.checksum)


def test_frames_that_are_listed_for_another_kind_of_processor_are_those_of_the_set(
    walks: FixedSet, monkeypatch: pytest.MonkeyPatch
):
    other, listed = Digest(), walks.listed
    clip = next(walks.clips())
    other.add(replace(clip, x=(clip.x + 1 / 255).clamp(0, 1)))
    found = other.checksum
    assert listed and replace(found, walks=listed.walks).sha256 not in listed.known
    also = {"sha256": listed.sha256, "walks": found.walks, "others": [found.sha256]}
    monkeypatch.setattr(sets, "_listed", lambda: {"image-walk/builtin:test:quick": also})
    assert walks.check(found) == ""
    assert "some of the frames differ" in walks.check(replace(found, sha256="0" * 64))


def test_rounding_errors_do_not_change_a_checksum(walks: FixedSet):
    clip, exact, rounded = next(walks.clips()), Digest(), Digest()
    exact.add(clip)
    rounded.add(replace(clip, x=clip.x + 1e-5, true_pose=clip.true_pose - 1e-6))
    assert exact.checksum == rounded.checksum


def test_a_file_of_other_images_is_told_from_the_right_one(toy_images: Path):
    faces = named_set("image-walk/celeba", quick=True, images=toy_images)
    assert "some of the frames differ (are these its images?)" in faces.check()


def test_names_and_files_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match='set is "image-walk/bulitin"; did you mean "image-walk/builtin"'):
        named_set("image-walk/bulitin")
    with pytest.raises(InputError, match="from a .npz of yours: give images=PATH"):
        named_set("image-walk/celeba")
    with pytest.raises(InputError, match="has images of its own"):
        named_set("image-walk/builtin", images="mine.npz")


def test_checksums_are_listed_for_sets_that_there_are():
    listed = json.loads((Path(sets.__file__).parent / "checksums.json").read_text())
    assert {key.split(":")[0] for key in listed} == set(SETS)


def test_only_recorded_sets_need_what_recordings_need():
    lacking = "import sys; sys.modules |= dict.fromkeys(('zarr', 'zstandard', 'vizdoom', 'flip_evaluator', 'mambapy'))"
    asked = "from gtmsm.cli import main; main(['reproduce', '--list'])"
    done = subprocess.run([sys.executable, "-c", f"{lacking}; {asked}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "image-walk/gru" in done.stdout
