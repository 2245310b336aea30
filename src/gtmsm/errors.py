"""The one kind of error a user is meant to read."""

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 1_000
"""Characters of a message; what is longer quotes something that nobody wants to read whole."""


class InputError(ValueError):
    """Something the caller gave cannot be used: says what was given, what was expected, and how to fix it.

    The command line prints it as one line and exits with 2; any other exception is a bug of ours.
    """

    def __init__(self, message: str) -> None:
        super().__init__(shortened(message, LONGEST))


class NoMemoryError(InputError):
    """A device has too little memory left: the same may work when others have ended."""


def shortened(text: str, most: int = 60) -> str:
    """Text that is quoted in a message: at most so many characters of it, from both of its ends.

    >>> shortened("a" * 10 + "b" * 10, 9)
    'aaaa…bbbb'
    """
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def shown(value: object) -> str:
    """A value as Python writes it, for a message: in one line, and never more than a glance of it."""
    try:
        return shortened(_BRIEF.repr(value))
    except ValueError:  # Python writes no integers of more than 4,300 digits
        return "a number of thousands of digits"


class _Brief(reprlib.Repr):
    def repr_instance(self, x: object, level: int) -> str:
        """A tensor or array by its kind: to print its numbers may take long, or wait for a GPU."""
        if shape := getattr(x, "shape", None):
            return f"{getattr(x, 'dtype', '')} of shape {tuple(shape)} on {getattr(x, 'device', 'cpu')}"
        return super().repr_instance(x, level)


_BRIEF = _Brief()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 60


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The end of an error message: the closest known name, or else all of them.

    >>> did_you_mean("nieghbours", ["neighbours", "delta"])
    'did you mean "neighbours"?'
    """
    names = list(known)
    close = get_close_matches(given[:100], names, n=1)  # its time is quadratic
    return f'did you mean "{close[0]}"?' if close else f"choose from {', '.join(names)}"
