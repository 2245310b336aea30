"""One page that shows what a model can and cannot do: report.html, whole in itself, nothing fetched."""

import base64
import io
import tempfile
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import imageio.v2 as imageio

from gtmsm.evaluation import plots
from gtmsm.evaluation.figure_style import svg
from gtmsm.evaluation.gallery import Gallery
from gtmsm.evaluation.page_style import CSS
from gtmsm.evaluation.table import COLUMNS, Column, rows, shown
from gtmsm.evaluation.video import comparison, write_video
from gtmsm.files import write_atomically

CLIPS_IN_VIDEO = 4
CLIPS_IN_STRIPS = 3
FPS = 8

HEADLINES = (
    (Column("psnr_revisited", "PSNR at revisited places", "dB", 2), "where memory can know the answer"),
    (Column("psnr_unseen", "PSNR at unseen places", "dB", 2), "where it cannot"),
    (Column("retrieval_revisited", "Right place retrieved", "%", 1), "at revisited places, over the whole horizon"),
    (Column("pose_r2", "R² of position", "", 4), "inferred positions against true ones, after an affine fit"),
    (Column("psnr_pooled", "PSNR, all frames", "dB", 2), "of the mean error"),
    (Column("ssim", "SSIM", "", 3), "mean over frames, 7×7 windows"),
)


def write_report(path: Path, scores: Mapping[str, Any], gallery: Gallery, title: str, about: Mapping[str, str]) -> None:
    """Write the report; a reader of an older one at `path` keeps it until this one is whole."""
    path = Path(path)
    page = _page(scores, gallery, title, about)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page)


def _page(scores: Mapping[str, Any], gallery: Gallery, title: str, about: Mapping[str, str]) -> str:
    """The page, section by section."""
    steps = f"{gallery.tau} steps memorised, {gallery.future} imagined from the actions alone"
    sections = (
        f'<header><p class="kicker">gtmsm report</p><h1>{escape(title)}</h1><p class="lead">{steps}.</p></header>',
        _headlines(scores),
        _film(gallery),
        _places(gallery),
        _frames(gallery),
        _over_time(scores),
        _motion(gallery),
        _table(scores),
        _reading(),
        f"<section><h2>Protocol</h2>{_pairs(scores.get('protocol') or {})}</section>",
        f"<section><h2>About this run</h2>{_pairs(about)}</section>" if about else "",
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head>\n"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _headlines(scores: Mapping[str, Any]) -> str:
    """The numbers one would say aloud."""
    cards = "".join(
        f'<div class="card"><span class="name">{escape(column.label)}</span>'
        f'<span class="number">{shown(scores.get(column.key), column)}{_unit(column)}</span>'
        f'<span class="note">{escape(note)}</span></div>'
        for column, note in HEADLINES
    )
    return f'<section aria-label="headline numbers"><div class="cards">{cards}</div>{_verdict(scores)}</section>'


def _unit(column: Column) -> str:
    """The unit after a number, where it is not part of it."""
    return f"<small> {column.unit}</small>" if column.unit == "dB" else ""


def _verdict(scores: Mapping[str, Any]) -> str:
    """The model against its ceiling and the share of places it could know, in words."""
    parts = []
    ceiling = ((scores.get("controls") or {}).get("vae_ceiling") or {}).get("psnr_revisited")
    mine, share = scores.get("psnr_revisited"), scores.get("revisited_fraction")
    if ceiling is not None and mine is not None:
        gap = ceiling - mine
        side = "below" if gap >= 0 else "above"
        parts.append(f"At revisited places the model is {abs(gap):.2f} dB {side} the ceiling of its own decoder.")
    if share is not None:
        parts.append(f"{100 * share:.0f}% of the predicted steps are at a place that was memorised.")
    return f'<p class="verdict">{" ".join(parts)}</p>' if parts else ""


def _film(gallery: Gallery) -> str:
    """Truth, imagination and error, moving."""
    some = slice(CLIPS_IN_VIDEO)
    scale = max(1, round(128 / gallery.truth.shape[-1]))
    frames = comparison(gallery.truth[some], gallery.imagined[some], gallery.seen[some], gallery.tau, scale)
    with tempfile.TemporaryDirectory() as folder:
        write_video(Path(folder) / "film.mp4", frames, FPS)
        film = _base64((Path(folder) / "film.mp4").read_bytes())
    poster = io.BytesIO()
    imageio.imwrite(poster, frames[0], format="PNG")
    return _section(
        "Truth and imagination",
        f'<video autoplay loop muted playsinline controls width="{frames.shape[2]}" height="{frames.shape[1]}" '
        f'poster="data:image/png;base64,{_base64(poster.getvalue())}" '
        f'src="data:video/mp4;base64,{film}"></video>',
        "The model sees no frame here, only the actions. The error is the mean absolute difference over colours: "
        "black is none, white is a half or more. Below each clip, whether the place of this step was memorised.",
    )


def _places(gallery: Gallery) -> str:
    """True beside inferred positions."""
    return _section(
        "Where it was, and where it thinks it was",
        svg(plots.positions(gallery, 0), "positions"),
        "A dot is a position visited, coloured by the true place, so one colour is one place in every panel. "
        "The yellow square is the view and the blue squares the position at the end of the phase. The inferred space "
        "is learned from frames and actions: turned, stretched and mirrored is as good as upright, "
        "but a grid must stay a grid. Dashed: the true walls, mapped by the affine fit.",
    )


def _frames(gallery: Gallery) -> str:
    """True above imagined frames, early and late."""
    clips = range(min(CLIPS_IN_STRIPS, len(gallery.truth)))
    figures = "".join(svg(plots.strips(gallery, clip), f"strips {clip + 1}") for clip in clips)
    return _section(
        "Frame by frame",
        figures,
        'Steps of the clip are above the frames; <b class="unseen">red</b> steps are at places never memorised, '
        "where no memory can know what is there.",
    )


def _over_time(scores: Mapping[str, Any]) -> str:
    """Scores at each predicted step."""
    return _section(
        "Over the horizon",
        svg(plots.horizon(scores), "horizon"),
        "Above: PSNR of the error pooled over clips, all places together. Below: how often the memory entry read "
        "was recorded at the present true place, among steps at revisited places. A drifting pose shows as a line "
        "that falls; lines that stay level are memory at work.",
    )


def _motion(gallery: Gallery) -> str:
    """What the motion model has learned."""
    arrows = svg(plots.displacements(gallery), "displacements")
    halves = f"<div><h3>Displacement of each action</h3>{arrows}</div>"
    if gallery.wall_values.size:
        heat = svg(plots.walls(gallery), "walls")
        halves += f"<div><h3>Walls: σ<sub>d</sub> where a move would end</h3>{heat}</div>"
    return _section(
        "What it learned about moving",
        f'<div class="halves">{halves}</div>',
        "Left: rows of the learned M; dashed, the true moves mapped by the affine fit. Right: σ<sub>d</sub>, by which "
        "a move is multiplied; white, the true walls. It should be near 1 inside and near 0 just outside; "
        "further out the agent never tried, so anything may stand there.",
    )


def _table(scores: Mapping[str, Any]) -> str:
    """The scores against every control."""
    head = "".join(f'<th scope="col">{escape(c.label)}{_bracket(c)}</th>' for c in COLUMNS)
    body = "".join(
        f'<tr{" class=main" if name == "imagined" else ""}><th scope="row">{escape(row.label)}'
        f"<small>{escape(row.about)}</small></th>"
        f"{''.join(f'<td>{shown(values.get(c.key), c)}</td>' for c in COLUMNS)}</tr>"
        for name, row, values in rows(scores)
    )
    return (
        '<section><h2>Against the controls</h2><div class="wide"><table><thead><tr><th></th>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div></section>"
    )


def _bracket(column: Column) -> str:
    """The unit below a column's name, where the cells do not carry it."""
    return f"<small>{column.unit}</small>" if column.unit == "dB" else ""


def _reading() -> str:
    """How to read the numbers."""
    points = (
        "<b>Revisited and unseen</b> are scored apart. At a place never memorised nobody can know the answer; "
        "a mean over both says more about the walk than about the model.",
        "<b>PSNR pooled</b> is the PSNR of the mean squared error, so the worst frames weigh most. <b>PSNR per "
        "frame</b> is the mean of each frame's PSNR; an exact copy (<i>exact</i> in the table) counts as 100 dB, "
        "which favours the controls that copy.",
        "<b>VAE ceiling less imagined</b> at revisited places is what remembering costs. <b>Memory at true poses less "
        "imagined</b> is what finding the way costs: near zero, the poses are right.",
        "<b>Retrieval</b> counts a step as right only if the entry nearest in pose was recorded at exactly the present "
        "true place.",
        "<b>SSIM</b> uses a uniform 7×7 window, since frames may be as small as 8×8; do not compare it with "
        "values from the usual 11×11 Gaussian.",
    )
    return f"<section><h2>How to read this</h2><ul>{''.join(f'<li>{point}</li>' for point in points)}</ul></section>"


def _section(heading: str, content: str, caption: str) -> str:
    """A titled figure with its caption; all three are HTML."""
    return f"<section><h2>{heading}</h2><figure>{content}<figcaption>{caption}</figcaption></figure></section>"


def _pairs(facts: Mapping[str, Any]) -> str:
    """Names and values as given, as text."""
    items = (
        f"<div><dt>{escape(str(k).replace('_', ' '))}</dt><dd>{escape(_said(v))}</dd></div>" for k, v in facts.items()
    )
    return f"<dl>{''.join(items)}</dl>"


def _said(value: Any) -> str:
    """A value in words: yes and no, lists with commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_said, value)) or "none"
    return "none" if value is None else str(value)


def _base64(data: bytes) -> str:
    """Bytes as text for a data address."""
    return base64.b64encode(data).decode("ascii")
