"""Weights by name, and the package that brings them."""

import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import torch
import yaml

import gtmsm
from gtmsm import InputError, WorldModel, WorldModelConfig
from gtmsm.experiments import set_up
from gtmsm.presets import PRESETS
from gtmsm.run import Run
from gtmsm.shipped import cards, find_run

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.parent.name for path in (ROOT / "weights").glob("*/weights.safetensors"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_all_shipped_weights_are_listed_with_those_for_research_only_at_the_end():
    listed = WorldModel.available()
    assert sorted(card.name for card in listed) == NAMES
    on_faces = ["celeba" in (card.path.parent / "config.yaml").read_text() for card in listed]
    assert on_faces == sorted(on_faces)
    assert ["MIT" if not research else "non-commercial" for research in on_faces] == [
        card.licence.split(" ")[0] for card in listed
    ]


def test_weights_are_loaded_by_name_from_any_folder():
    named, at = (WorldModel.load(run) for run in ("image-walk-celeba", ROOT / "weights" / "image-walk-celeba"))
    assert named.fingerprint == at.fingerprint
    assert Run.open("image-walk-celeba").preset == "image-walk"


def test_a_folder_of_the_same_name_comes_first(tmp_path: Path):
    (tmp_path / "walk-strong").mkdir()
    WorldModel(WorldModelConfig(), (3, 8, 8), 3).save(tmp_path / "walk-strong" / "weights.safetensors")
    assert WorldModel.load("walk-strong").action_size == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("walk-stong", 'no folder and no shipped weights are called "walk-stong"; did you mean "walk-strong"?'),
        ("qqq", f'called "qqq"; choose from {", ".join(card.name for card in cards())}'),
        ("weights/walk-strong", 'there is no weights/walk-strong here; .* are called "walk-strong"'),
    ],
)
def test_a_wrong_name_is_refused_with_the_right_ones(given: str, said: str):
    for load in (WorldModel.load, Run.open):
        with pytest.raises(InputError, match=said.replace("?", r"\?")):
            load(given)


def test_a_preset_that_begins_with_shipped_weights_finds_them():
    named = [preset.begin_with for _, preset in PRESETS.values() if preset.begin_with]
    assert named == ["walk-strong"]
    assert (find_run(named[0]) / "weights.safetensors").is_file()


def test_a_preset_begins_from_scratch_though_weights_have_its_name():
    assert Run.open("rotate").preset == "rotate"
    preset = PRESETS["rotate"][1]
    world = replace(preset.world, textures="procedural", train_places=1, validation_places=1, test_places=1)
    small = replace(preset, world=world, pool=replace(preset.pool, clips=1))
    fresh, begun = (
        set_up(replace(small, begin_with=name), torch.device("cpu")).build_model().motion.M for name in ("", "rotate")
    )
    learned = WorldModel.load("rotate").motion.M
    assert torch.equal(begun, learned)
    assert not torch.isclose(fresh, learned).all()


def test_commands_take_a_name_where_they_take_a_run(gtmsm: Callable, refused: Callable[..., str], tmp_path: Path):
    code, out, _ = gtmsm("weights")
    assert code == 0 and all(f"{card.name}: {card.what}\n  licence: {card.licence}" in out for card in cards())
    images = ["--images", "builtin"]
    assert gtmsm("record", "obstacles-celeba", "walk.npz", "--steps", 30, *images).code == 0
    assert gtmsm("imagine", "image-walk-celeba", "--steps", 2, "--tau", 8, "--out", "it.gif", *images).code == 0
    atlas = ("atlas", "add", "place.db", "obstacles-celeba", "walk.npz", "--world", "w", "--agent", "a")
    assert "30 entries of a added to w" in gtmsm(*atlas).out
    for verb in ("evaluate", "plan", "play"):
        assert 'did you mean "obstacles-celeba"?' in refused(verb, "obstacle-celeba")
    assert 'did you mean "walk-strong"?' in refused("export", "rrd", "walk-stron")
    assert 'did you mean "obstacles-celeba"?' in refused("localise", "obstacle-celeba", "walk.npz", "view.png")
    assert "OUT.npz" in refused("record", "walk-strong")


@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_what_weights_were_made_of_and_what_they_are_worth(name: str):
    text = (ROOT / "weights" / name / "CARD.md").read_text()
    for part in ("Data", "Privileges", "Training", "Scores", "Limits", "Licence"):
        assert f"\n**{part}.**" in text
    assert f"\n# {name}\n" in text
    assert "gtmsm evaluate" in text


def test_the_wheel_has_all_that_runs_and_nothing_else():
    builder = pytest.importorskip("hatchling.builders.wheel").WheelBuilder(str(ROOT))
    packed = {file.distribution_path for file in builder.recurse_included_files()}
    code = {path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*") if path.is_file()}
    wanted = {str(path) for path in code if "__pycache__" not in path.parts}
    wanted |= {
        f"gtmsm/weights/{name}/{file}" for name in NAMES for file in ("weights.safetensors", "config.yaml", "CARD.md")
    }
    assert packed == wanted
    assert {"gtmsm/page/static/index.html", "gtmsm/evaluation/report/page.css"} <= packed


def test_one_version_and_its_date_are_named_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    changes = (ROOT / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## \[(.+)\] - (\d{4}-\d\d-\d\d)$", changes, re.M)
    assert len(releases) == changes.count("\n## ")
    assert gtmsm.__version__ == cited["version"] == version
    assert releases[0] == (version, cited["date-released"].isoformat())
    days = [date.fromisoformat(day) for _, day in releases]
    assert days == sorted(days, reverse=True)
