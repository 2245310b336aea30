"""Weights that come with gtmsm, by name: in the wheel beside this module, in a clone in the folder `weights`."""

from dataclasses import dataclass
from pathlib import Path

from gtmsm.errors import InputError, did_you_mean
from gtmsm.files import as_path

CARD = "CARD.md"


@dataclass(frozen=True)
class Card:
    """What the card of shipped weights says at its top."""

    name: str
    """What `WorldModel.load` and the commands that take a RUN call them."""
    what: str
    """What they imagine, and from what frames and actions."""
    licence: str
    """Whether they may be used for everything."""
    path: Path
    """The card itself: data, scores and limits."""


def cards() -> tuple[Card, ...]:
    """The weights that are here, those that may be used for everything first."""
    found = [_read_card(path) for path in _folder().glob(f"*/{CARD}")]
    return tuple(sorted(found, key=lambda card: (card.licence != "MIT", card.name)))


def is_shipped(name: str) -> bool:
    """Whether weights of that name come with gtmsm."""
    return any(card.name == name for card in cards())


def find_run(given: str | Path) -> Path:
    """The folder or file that is meant: one that is there, or else shipped weights of that name."""
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
    return path  # whoever opens it says what is missing


def _folder() -> Path:
    """Of all shipped weights."""
    installed = Path(__file__).parent / "weights"
    return installed if installed.is_dir() else Path(__file__).resolve().parents[2] / "weights"


def _read_card(path: Path) -> Card:
    """The lines `key: value` between the two lines of dashes that a card begins with."""
    head = path.read_text().split("---\n")[1]
    said = dict(line.split(": ", 1) for line in head.splitlines())
    return Card(path.parent.name, said["what"], said["licence"], path)
