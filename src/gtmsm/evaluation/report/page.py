"""Building blocks of pages: cards, sections, tables and films, as HTML that loads nothing else."""

import base64
import io
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from gtmsm.errors import InputError
from gtmsm.evaluation.columns import Column, shown
from gtmsm.evaluation.video import write_video
from gtmsm.files import TEMPORARY


@dataclass(frozen=True)
class Card:
    """A headline number as text, with its name, unit and a note."""

    name: str
    number: str
    unit: str
    note: str


def whole_page(title: str, lead: str, sections: Iterable[str]) -> str:
    """A whole HTML document; `title` and `lead` are text, `sections` HTML."""
    css = files(__package__).joinpath("page.css").read_text()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{css}</style></head>\n"
        f'<body><main><header><p class="kicker">gtmsm report</p><h1>{escape(title)}</h1>'
        f'<p class="lead">{escape(lead)}</p></header>{"".join(sections)}</main></body></html>\n'
    )


def score_card(scores: Mapping[str, Any], column: Column, note: str) -> Card:
    """A card for one score."""
    unit = column.unit if column.unit in ("dB", "1/255") else ""
    return Card(column.label, shown(scores.get(column.key), column), unit, note)


def headlines(cards: Sequence[Card], verdict: str, across: int) -> str:
    """Cards in rows of `across`, and a sentence below."""
    shown = "".join(
        f'<div class="card"><span class="name">{escape(card.name)}</span>'
        f'<span class="number">{escape(card.number)}{f"<small> {card.unit}</small>" if card.unit else ""}</span>'
        f'<span class="note">{escape(card.note)}</span></div>'
        for card in cards
    )
    below = f'<p class="verdict">{escape(verdict)}</p>' if verdict else ""
    cards_above = f'<div class="cards" style="--across: {across}">{shown}</div>'
    return f'<section aria-label="headline numbers">{cards_above}{below}</section>'


def section(heading: str, content: str, caption: str) -> str:
    """A titled figure with its caption; all three are HTML."""
    return f"<section><h2>{heading}</h2><figure>{content}<figcaption>{caption}</figcaption></figure></section>"


def halves(*parts: str) -> str:
    """Parts side by side, or below each other on a narrow page."""
    return f'<div class="halves">{"".join(f"<div>{part}</div>" for part in parts)}</div>'


def points(heading: str, items: Sequence[str]) -> str:
    """A titled list; heading and items are HTML."""
    return f"<section><h2>{heading}</h2><ul>{''.join(f'<li>{item}</li>' for item in items)}</ul></section>"


def film(frames: UInt8[np.ndarray, "time height width 3"], fps: int) -> str:
    """A film that plays automatically, embedded in the page; without ffmpeg its first frame, and what is missing."""
    first = io.BytesIO()
    Image.fromarray(frames[0]).save(first, "PNG")
    poster = f"data:image/png;base64,{_base64(first.getvalue())}"
    size = f'width="{frames.shape[2]}" height="{frames.shape[1]}"'
    try:
        moving = _encoded(frames, fps)
    except InputError as problem:  # no reason to lose the page
        return f'<img {size} alt="first frame of a film" src="{poster}"><p>{escape(str(problem))}</p>'
    return (
        f'<video autoplay loop muted playsinline controls {size} poster="{poster}" '
        f'src="data:video/mp4;base64,{moving}"></video>'
    )


def _encoded(frames: UInt8[np.ndarray, "time height width 3"], fps: int) -> str:
    """The film as MP4, in base64."""
    with tempfile.TemporaryDirectory() as folder:
        TEMPORARY.add(Path(folder))
        write_video(Path(folder) / "film.mp4", frames, fps)
        moving = _base64((Path(folder) / "film.mp4").read_bytes())
    TEMPORARY.discard(Path(folder))
    return moving


def table(head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], main: int | None = None) -> str:
    """A table; each row is a heading and cells, all HTML, and row `main` is highlighted."""
    columns = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "".join(
        f'<tr{" class=main" if i == main else ""}><th scope="row">{name}</th>'
        f"{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        for i, (name, cells) in enumerate(rows)
    )
    return f'<div class="wide"><table><thead><tr><th></th>{columns}</tr></thead><tbody>{body}</tbody></table></div>'


def facts(heading: str, named: Mapping[str, Any]) -> str:
    """A titled list of names and values, as text."""
    items = (
        f"<div><dt>{escape(str(k).replace('_', ' '))}</dt><dd>{escape(_said(v))}</dd></div>" for k, v in named.items()
    )
    return f"<section><h2>{heading}</h2><dl>{''.join(items)}</dl></section>"


def _said(value: Any) -> str:
    """A value in words: yes and no, lists with commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_said, value)) or "none"
    return "none" if value is None else str(value)


def _base64(data: bytes) -> str:
    """Bytes as base64 text, for a data URL."""
    return base64.b64encode(data).decode("ascii")
