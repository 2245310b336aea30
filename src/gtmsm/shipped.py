"""Weights shipped with gtmsm, by name: in a wheel beside this module, in a clone in the folder `weights`."""

from dataclasses import dataclass
from pathlib import Path

from gtmsm.errors import InputError, did_you_mean
from gtmsm.files import as_path

CARD = "CARD.md"


@dataclass(frozen=True)
class Card:
    """The head of the card of shipped weights."""

    name: str
    """Name of the weights for `WorldModel.load` and for commands that take a RUN."""
    what: str
    """What the weights imagine, and from which frames and actions."""
    licence: str
    """Licence of the weights."""
    path: Path
    """Path of the card, which describes data, scores and limits."""


def cards() -> tuple[Card, ...]:
    """Cards of all shipped weights, those under the MIT licence first."""
    found = [_read_card(path) for path in _folder().glob(f"*/{CARD}")]
    return tuple(sorted(found, key=lambda card: (card.licence != "MIT", card.name)))


def is_shipped(name: str) -> bool:
    """Whether weights of that name are shipped with gtmsm."""
    return any(card.name == name for card in cards())


def find_run(given: str | Path) -> Path:
    """The path of a run: `given` itself if it exists, or else the folder of shipped weights of that name."""
    path = as_path(given)
    if path.exists():
        return path
    known = {card.name: card.path.parent for card in cards()}
    if str(path) in known:
        return known[str(path)]
    if path.name in known:
        raise InputError(f'there is no {path} here; the weights that come with gtmsm are called "{path.name}"')
    if len(path.parts) == 1 and not path.suffix:
        raise InputError(f'no folder and no shipped weights are called "{path}"; {did_you_mean(path.name, known)}')
    return path  # opening it raises an error


def _folder() -> Path:
    """The folder of all shipped weights."""
    installed = Path(__file__).parent / "weights"
    return installed if installed.is_dir() else Path(__file__).resolve().parents[2] / "weights"


def _read_card(path: Path) -> Card:
    """Parse a card's head: lines `key: value` between two lines of dashes."""
    head = path.read_text().split("---\n")[1]
    said = dict(line.split(": ", 1) for line in head.splitlines())
    return Card(path.parent.name, said["what"], said["licence"], path)
