"""The page people read."""

import base64
import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from imageio_ffmpeg import count_frames_and_secs
from jaxtyping import TypeCheckError

from gtmsm.errors import InputError
from gtmsm.evaluation.columns import CONTROLS
from gtmsm.evaluation.examine.image_walk import strips
from gtmsm.evaluation.gallery import ImageGallery, WayFound
from gtmsm.evaluation.report import image_walk, image_walk_plots, write, write_report
from gtmsm.evaluation.report.plots import strip_lines

HOSTILE = '<script>alert("x")</script> & $\\alpha$'
MOVES = np.array([[-1.0, 0], [1, 0], [0, -1], [0, 1], [0, 0]])
FIGURES = ("positions", "strips 1", "strips 2", "horizon", "displacements", "walls")


def gallery(clips: int = 2, tau: int = 40, future: int = 12) -> ImageGallery:
    """A walk over small pictures, inferred up to a turn and a stretch."""
    chance = np.random.default_rng(0)
    images = chance.random((clips, 3, 32, 32))
    pose = np.full((clips, tau + future, 2), 4.0)
    for t in range(1, tau + future):
        pose[:, t] = np.clip(pose[:, t - 1] + MOVES[chance.integers(5, size=clips)], 0, 8)
    corner = (3 * pose[:, tau:]).astype(int)
    truth = np.stack(
        [[image[:, r : r + 8, c : c + 8] for r, c in walk] for image, walk in zip(images, corner, strict=True)]
    )
    turn = np.array([[0.11, 0.05], [-0.06, 0.13]])
    grid = np.linspace(-1, 1, 20)
    return ImageGallery(
        images=images, truth=truth, imagined=(truth + 0.05).clip(0, 1), true_pose=pose, inferred_pose=(pose - 4) @ turn,
        tau=tau, view_corner=3 * pose[:, tau - 1], displacement=MOVES @ turn,
        action_names=("up", "down", "left", "right", "stay"),
        seen=np.ones((clips, future), bool), strips=strips(tau, future),
        wall_xs=grid, wall_ys=grid, wall_values=np.full((20, 20), 0.5),
        walls=np.array([[-4.5, -4.5], [4.5, 4.5], [-4.5, 4.5], [4.5, -4.5]]) @ turn, true_displacement=MOVES @ turn,
    )  # fmt: skip


def summary(db: float, steps: int = 12) -> dict[str, Any]:
    return {
        "psnr_pooled": db, "psnr_frames": db, "psnr_revisited": db, "psnr_unseen": None, "ssim": 0.5,
        "psnr_by_step": [db] * steps, "retrieval_revisited": 1.0, "retrieval_revisited_last16": 1.0,
        "retrieval_by_step": [None, *[1.0] * (steps - 1)],
    }  # fmt: skip


def scores() -> dict[str, Any]:
    controls = {name: summary(10.0 + i) for i, name in enumerate(CONTROLS)}
    controls["copy_nearest_true_pose"] = summary(100.0)
    controls["last_frame"] |= {"retrieval_revisited": None, "retrieval_by_step": None}
    protocol = {"tau": 40, "privileges": HOSTILE, HOSTILE: True}
    more = {"pose_r2": 0.9876, "revisited_fraction": 0.75, "controls": controls, "protocol": protocol}
    return summary(21.5) | more


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return hostile_page(tmp_path_factory.mktemp("report") / "report.html")


def hostile_page(path: Path) -> str:
    """A page whose every text from outside would like to be run."""
    names = (HOSTILE, "down", "left", "right", "stay")
    write_report(path, scores(), replace(gallery(), action_names=names), HOSTILE, {"run": HOSTILE})
    return path.read_text(encoding="utf-8")


def test_a_report_says_how_reliable_the_motion_is_where_that_is_known(tmp_path: Path):
    told, untold = tmp_path / "told.html", tmp_path / "untold.html"
    write_report(told, scores(), gallery(), "walk", {}, f"motion found: {HOSTILE}")
    write_report(untold, scores(), gallery(), "walk", {})
    assert f"<li>Motion found: {escape(HOSTILE)}.</li>" in told.read_text(encoding="utf-8")
    assert "search for the motion" not in untold.read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Which tags open, which close, and what each carries."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_reaches_for_nothing_outside_itself(page: str):
    assert not re.search(r"https?:|@import", page)
    sources = [v for _, a in Tags(page).seen for k, v in a.items() if k in ("src", "href", "poster", "xlink:href")]
    assert sources
    assert all(source.startswith(("data:", "#")) for source in sources)


def test_every_tag_that_opens_closes(page: str):
    assert Tags(page).open == []


@pytest.mark.parametrize("name", FIGURES)
def test_the_page_has_every_figure(page: str, name: str):
    assert page.count(f'aria-label="{name}"') == 1


def test_ids_are_unique_so_that_figures_do_not_borrow_from_each_other(page: str):
    ids = [attributes["id"] for _, attributes in Tags(page).seen if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_references_within_figures_lead_somewhere(page: str):
    ids = {attributes.get("id") for _, attributes in Tags(page).seen}
    assert set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', page)) <= {(i, "") for i in ids} | {("", i) for i in ids}


def test_the_film_plays_truth_imagination_and_error_at_every_step(page: str, tmp_path: Path):
    (film,) = re.findall(r'src="data:video/mp4;base64,([^"]+)"', page)
    (tmp_path / "film.mp4").write_bytes(base64.b64decode(film))
    assert count_frames_and_secs(tmp_path / "film.mp4")[0] == 12


def test_a_machine_without_ffmpeg_gets_the_page_with_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def nowhere() -> str:
        raise RuntimeError("No ffmpeg exe could be found.")

    monkeypatch.setattr("gtmsm.evaluation.video.get_ffmpeg_exe", nowhere)
    write_report(tmp_path / "report.html", scores(), gallery(), "walks", {})
    text = (tmp_path / "report.html").read_text()
    assert "<video" not in text and 'alt="first frame of a film"' in text
    assert "install ffmpeg, or set IMAGEIO_FFMPEG_EXE" in text


def test_every_control_has_a_row_with_an_explanation(page: str):
    assert all(row.label in page and row.about in page for row in CONTROLS.values())


def test_the_headlines_are_the_scores(page: str):
    assert re.search(r"R² of position</span><span class=\"number\">0\.9876<", page)
    assert "75% of the predicted steps" in page


def test_a_score_without_meaning_is_a_dash_on_the_page(page: str):
    assert re.search(r'PSNR at unseen places</span><span class="number">–', page)


def test_text_from_outside_is_shown_and_never_run(page: str):
    assert not any(tag == "script" for tag, _ in Tags(page).seen)
    assert page.count("&lt;script&gt;") >= 6  # title twice, run, protocol twice, an action


def test_figures_take_the_ink_of_the_page(page: str):
    assert "currentColor" in page
    assert "#010203" not in page


def test_figures_take_the_font_of_the_page(page: str):
    assert "font-family: var(--font)" in page
    assert "DejaVu" not in page


def test_the_same_scores_make_the_same_page(page: str, tmp_path: Path):
    assert hostile_page(tmp_path / "again.html") == page


def test_an_interrupted_report_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "report.html"
    path.write_text("old")
    half_written = Path.write_bytes

    def interrupted(self: Path, content: bytes) -> int:
        half_written(self, content[:1000])
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    empty = SimpleNamespace(page_sections=lambda *_: (), reading=lambda _: ())
    monkeypatch.setitem(write.PAGES, ImageGallery, empty)
    with pytest.raises(InputError, match="could not write .*report.html: disk full"):
        write_report(path, scores(), gallery(clips=1), "walk", {})
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_scores_may_be_few_and_motion_may_have_no_walls(tmp_path: Path):
    free = replace(gallery(clips=1), wall_xs=np.zeros(0), wall_ys=np.zeros(0), wall_values=np.zeros((0, 0)))
    write_report(tmp_path / "new" / "report.html", {"psnr_pooled": 20.0}, free, "walk", {})
    page = (tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    assert 'aria-label="walls"' not in page
    assert "About this run" not in page


def test_one_predicted_step_is_enough_for_a_page(tmp_path: Path):
    write_report(tmp_path / "report.html", summary(20.0, steps=1), gallery(clips=1, future=1), "walk", {})
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("imagined", np.zeros((2, 11, 3, 8, 8)), "imagined"),
        ("true_pose", np.zeros((2, 51, 2)), "pose"),
        ("displacement", np.zeros((4, 2)), "displacement"),
        ("wall_values", np.zeros((3, 20)), "wall_values"),
    ],
)
def test_a_gallery_of_parts_that_do_not_fit_refuses_to_exist(part: str, value: np.ndarray, words: str):
    with pytest.raises(TypeCheckError, match=words):
        replace(gallery(), **{part: value})


@pytest.mark.parametrize(("future", "late"), [(256, (248, 255)), (12, (45, 52)), (8, (41, 48)), (3, (41, 43))])
def test_strips_show_the_steps_of_the_paper_or_the_last_ones(future: int, late: tuple[int, int]):
    assert strips(40, future) == ((41, 40 + min(8, future)), late)


def test_strips_are_broken_into_lines_of_eight_frames():
    lines = strip_lines(((34, 41), (284, 299), (300, 302)))
    assert [(line[0], line[-1]) for line in lines] == [(34, 41), (284, 291), (292, 299), (300, 302)]


# ---- where steps fail


def way_of(shown: ImageGallery) -> WayFound:
    """Believed as it was, but reckoned farther astray in the second clip."""
    pose = shown.true_pose
    solid = np.zeros((len(pose), 9, 9), dtype=bool)
    solid[:, 2, 3:5] = True
    reckoned = pose + np.arange(len(pose))[:, None, None]
    return WayFound(solid, np.zeros((len(pose), 3, 64, 64)), pose, reckoned)


def test_the_walk_shown_is_the_one_that_actions_lead_farthest_astray():
    shown = gallery()
    assert image_walk_plots.worth_showing(shown, way_of(shown)) == 1


def test_where_steps_fail_the_page_shows_paths_and_right_cells(tmp_path: Path):
    shown = gallery()
    values = scores() | {"position_within_half_cell_memorised": 0.975, "psnr_unhindered": 17.25}
    write_report(tmp_path / "report.html", values, replace(shown, way=way_of(shown)), "walk", {})
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'aria-label="paths"' in page and "dead reckoning" in page
    assert "Right cell, memorised" in page and "97.5%" in page
    first = re.search(r'class="name">([^<]*)</span><span class="number">([^<]*)<', page)
    assert first is not None and first.groups() == ("PSNR until the first obstacle", "17.25")
    verdict = re.search(r'class="verdict">([^<]*)<', page)
    assert verdict is not None and verdict[1].startswith("17.25 dB at revisited places until the first obstacle")
    assert "4.50 dB" not in verdict[1], "the distance to the ceiling is of the same steps"
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_where_no_step_fails_nothing_is_said_of_it(page: str):
    assert "When steps fail" not in page and "Right cell" not in page and "Landmarks" not in page


def test_an_inferred_space_of_cells_is_drawn_upright_and_to_scale():
    for section in (image_walk._places, image_walk._motion):
        text = section(replace(gallery(), metric=True))
        assert "columns from the start" in text and "affine fit" not in text


# ---- on a phone

PHONE = 332
"""Pixels of a figure on a screen that is 360 wide."""


def letters(page: str) -> list[float]:
    """The height in pixels of every text in every figure, on a phone."""
    sizes = []
    for figure in re.findall(r"<svg .*?</svg>", page, flags=re.DOTALL):
        (width,) = re.findall(r'viewBox="0 0 ([\d.]+) ', figure)
        points = re.findall(r"font(?:-size)?: [^;\"]*?([\d.]+)px", figure)
        sizes += [float(size) * PHONE / float(width) for size in points]
    return sizes


def test_every_text_of_a_figure_is_legible_on_a_phone(page: str):
    assert len(letters(page)) > 50
    assert min(letters(page)) >= 9
    assert "main { padding: 28px 14px" in page, "a figure has what the margins leave of the screen"
