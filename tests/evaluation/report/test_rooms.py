"""The page people read, of agents with a heading."""

import base64
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from imageio_ffmpeg import count_frames_and_secs

from gtmsm.evaluation.columns import CONTROLS, COPY
from gtmsm.evaluation.gallery import RoomsGallery
from gtmsm.evaluation.report import rooms, rooms_plots, write, write_report
from gtmsm.evaluation.report.map_film import film_map, tensor_of
from gtmsm.worlds.floorplan import draw_floorplans
from gtmsm.worlds.rooms import Rooms, RoomsConfig
from gtmsm.worlds.textures import load_textures

CLIPS, TAU, FUTURE = 2, 33, 10
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def world() -> Rooms:
    return Rooms(draw_floorplans("room", CLIPS, 4, load_textures("procedural"), seed=0), RoomsConfig(antialias=1))


@pytest.fixture(scope="module")
def turning(world: Rooms) -> RoomsGallery:
    """Two agents that turn on the spot, inferred a little off."""
    return gallery(world, torch.full((CLIPS, TAU + FUTURE), world.action_keys["l"]))


@pytest.fixture(scope="module")
def walking(world: Rooms) -> RoomsGallery:
    """Two agents that walk a curve."""
    return gallery(world, torch.full((CLIPS, TAU + FUTURE), world.action_keys["q"]))


def gallery(world: Rooms, actions: torch.Tensor) -> RoomsGallery:
    world.reset(CLIPS)
    walk = world.walk(actions)
    pose, truth = walk.poses.numpy(), walk.frames[:, TAU:].numpy()
    moves = np.tile([0.06, 0.0, 0.15], (len(world.action_names), 1))
    return RoomsGallery(
        truth=truth, imagined=0.9 * truth, true_pose=pose, inferred_pose=pose + np.float32(0.02),
        seen=np.arange(FUTURE) % 2 == np.zeros((CLIPS, 1)), tau=TAU,
        maps=tuple(world.map(i, 128) for i in range(CLIPS)), strips=((34, 41),),
        displacement=moves + 0.001, true_displacement=moves, action_names=(HOSTILE, *world.action_names[1:]),
    )  # fmt: skip


def summary(db: float) -> dict[str, Any]:
    parts = {"psnr_pooled": db, "psnr_frames": db, "psnr_revisited": db + 1, "psnr_unseen": db - 1, "ssim": 0.5}
    return parts | {"psnr_by_step": [db] * FUTURE, "retrieval_by_step": None, "retrieval_revisited": None}


def scores(**more: Any) -> dict[str, Any]:
    controls = {name: summary(15.0) for name in CONTROLS}
    controls["true_pose_memory"], controls[COPY] = summary(23.5), summary(21.5)
    steps = TAU + FUTURE
    poses = {
        "heading_error": 1.26, "heading_error_by_step": [1.0] * steps, "position_error": 0.2,
        "position_error_relative": 0.0312, "position_error_relative_by_step": [0.03] * steps,
        "position_error_by_step": [0.2] * steps, "revisited_fraction": 0.25,
    }  # fmt: skip
    return summary(23.4) | poses | {"controls": controls, "protocol": {"tau": TAU}} | more


def page_of(path: Path, values: dict[str, Any], shown: RoomsGallery) -> str:
    write_report(path, values, shown, "rooms", {"run": "mine"})
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def turning_page(tmp_path_factory: pytest.TempPathFactory, turning: RoomsGallery) -> str:
    return page_of(tmp_path_factory.mktemp("report") / "report.html", scores(), turning)


@pytest.fixture(scope="module")
def walking_page(tmp_path_factory: pytest.TempPathFactory, walking: RoomsGallery) -> str:
    return page_of(tmp_path_factory.mktemp("report") / "report.html", scores(), walking)


def card(page: str, name: str) -> str:
    """The number on a card, without its unit."""
    (number,) = re.findall(rf'{re.escape(name)}</span><span class="number">([^<]*)<', page)
    return number


def figures(page: str) -> list[str]:
    return re.findall(r'role="img" aria-label="([^"]+)"', page)


def test_a_turning_agent_has_a_dial_and_no_position(turning_page: str):
    assert figures(turning_page) == [
        "orientation", "poses over time", "strips 1", "strips 2", "pose errors", "horizon", "maps",
    ]  # fmt: skip
    assert card(turning_page, "Position off") == "–"
    assert "stands still" in turning_page
    assert "position off (% of width)" not in turning_page


def test_a_walking_agent_has_a_map_of_its_way_and_a_position(walking_page: str):
    assert figures(walking_page)[0] == "walk"
    assert card(walking_page, "Position off") == "3.1%"
    assert "position off (% of width)" in walking_page


def test_the_paper_s_step_is_shown_where_it_is_predicted(turning: RoomsGallery, walking: RoomsGallery):
    assert rooms_plots.shown_step(turning) == 38
    assert rooms_plots.shown_step(walking) == TAU + FUTURE
    titles = [axes.get_title("left") for axes in rooms_plots.walking(walking, 0, step=36).axes]
    assert titles == ["steps 1–33 memorised, 34–36 imagined", "true view, step 36", "imagined view, step 36"]


def test_the_dial_says_true_and_inferred_orientation(turning_page: str, turning: RoomsGallery):
    true, inferred = (np.degrees(pose[0, 37, 2]) % 360 for pose in (turning.true_pose, turning.inferred_pose))
    assert f"true α {true:.1f}°" in turning_page
    assert f"inferred {inferred:.1f}°" in turning_page


def test_pixels_seen_before_and_never_have_cards_where_they_were_told_apart(
    tmp_path: Path, walking: RoomsGallery, walking_page: str
):
    told = {"seen_pixels": 0.987, "psnr_seen_pixels": 24.2, "psnr_unseen_pixels": 17.1}
    page = page_of(tmp_path / "report.html", scores(**told), walking)
    assert card(page, "PSNR, pixels seen before") == "24.20"
    assert card(page, "PSNR, pixels never seen") == "17.10"
    assert "98.7%" in page
    assert "pixels never seen" not in walking_page, "older scores do not tell"


def test_headlines_are_the_scores_and_the_distances_to_the_controls(walking_page: str):
    assert card(walking_page, "PSNR, all frames") == "23.40"
    assert card(walking_page, "PSNR at new poses") == "22.40"
    assert card(walking_page, "Heading off") == "1.3°"
    assert card(walking_page, "Against true poses") == "−0.10"
    assert card(walking_page, "Against copying") == "+1.90"
    assert "25% of the predicted steps are near a memorised pose" in walking_page


def test_no_distance_has_no_sign(walking: RoomsGallery):
    cards = rooms._cards(scores() | {"psnr_pooled": 23.4999}, walking)
    assert [card.number for card in cards if card.name == "Against true poses"] == ["0.00"]


def test_the_page_reaches_for_nothing_outside_itself_and_runs_nothing(walking_page: str):
    assert not re.search(r"https?:|@import|<script", walking_page)
    assert "&lt;script&gt;" in walking_page


def test_ids_are_unique_so_that_figures_do_not_borrow_from_each_other(walking_page: str):
    ids = re.findall(r' id="([^"]+)"', walking_page)
    assert len(ids) == len(set(ids))


def test_the_film_shows_every_predicted_step(turning_page: str, tmp_path: Path):
    (film,) = re.findall(r'src="data:video/mp4;base64,([^"]+)"', turning_page)
    (tmp_path / "film.mp4").write_bytes(base64.b64decode(film))
    assert count_frames_and_secs(tmp_path / "film.mp4")[0] == FUTURE


def test_every_control_has_a_row_and_nothing_speaks_of_retrieval(walking_page: str):
    assert all(row.label in walking_page for row in CONTROLS.values())
    assert ">retrieval" not in walking_page
    assert "right place retrieved" not in walking_page


def test_steps_far_from_every_memorised_pose_are_red(walking_page: str):
    numbers = re.findall(r'style="([^"]*)"[^>]*>(\d\d)</text>', walking_page)
    red = {
        int(number)
        for style, number in numbers
        if "font-weight: 700" in style and "#d55e3a" in style and 34 <= int(number) <= 41
    }
    assert red == {35, 37, 39, 41}


def test_every_action_has_its_true_and_its_learned_displacement(walking_page: str, walking: RoomsGallery):
    for name in walking.action_names[1:]:
        (cells,) = re.findall(rf'<th scope="row">{name}</th>((?:<td>[^<]*</td>)+)', walking_page)
        assert re.findall(r"<td>([^<]*)</td>", cells) == ["0.060", "0.061", "0.000", "0.001", "8.6°", "8.7°"]


def test_colours_of_rooms_are_shown_only_where_there_are_several(walking: RoomsGallery, walking_page: str):
    assert "colour" not in re.sub(r"over colours|colour-scheme|<style>.*?</style>", "", walking_page, flags=re.DOTALL)
    more = {"floor_colour_error": 12.34, "wall_colour_error": 20.0, "psnr_seen_rooms": 24.0}
    cards = {card.name: card.number for card in rooms._cards(scores(**more), walking)}
    assert cards["Floor colour off"] == "12.3"
    assert "floor colour<small>1/255</small>" in write._table(scores(**more))
    assert "Rooms seen</b>" in "".join(rooms.reading(scores(**more)))


def test_scores_may_be_few(walking: RoomsGallery, tmp_path: Path):
    page = page_of(tmp_path / "report.html", {"psnr_pooled": 20.0}, replace(walking, strips=()))
    assert "strips 1" not in page
    assert "pose errors" not in page
    assert card(page, "Against copying") == "–"


def test_inferred_headings_are_compared_within_the_same_full_turn():
    true = np.linspace(0, 9, 50)
    wrapped = (true + 0.1 + np.pi) % (2 * np.pi) - np.pi - 4 * np.pi
    unwrapped_true, inferred = rooms_plots.unwrapped(true, wrapped)
    np.testing.assert_allclose(unwrapped_true, true)
    np.testing.assert_allclose(inferred, true + 0.1)


def test_a_map_film_has_a_frame_per_predicted_step_and_the_arrows_in_their_colours(walking: RoomsGallery):
    true = tensor_of(walking.true_pose[0])
    elsewhere = true + torch.tensor([0.0, 1.0, 0.0])
    alone = film_map(walking.maps[0], true, TAU, 96)
    both = film_map(walking.maps[0], true, TAU, 96, elsewhere)
    assert alone.shape == both.shape == (FUTURE, 96, 96, 3)
    for film, blue in ((alone, False), (both, True)):
        assert all(near(frame, (213, 94, 58)) for frame in film)
        assert all(near(frame, (47, 134, 209)) == blue for frame in film)


def test_a_trail_grows_behind_the_agent(walking: RoomsGallery):
    true = tensor_of(walking.true_pose[0])
    violet = [near_count(frame, (68, 1, 84)) for frame in film_map(walking.maps[0], true, TAU, 192, trail=True)]
    assert violet[0] == 0
    assert violet[-1] > 0


def near_count(frame: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((np.abs(frame.astype(int) - colour).max(-1) < 12).sum())


def near(frame: np.ndarray, colour: tuple[int, int, int]) -> bool:
    return near_count(frame, colour) > 5
