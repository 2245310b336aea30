"""The one kind of error a user is meant to read."""

import reprlib
import textwrap
from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Something the caller gave cannot be used: says what was given, what was expected, and how to fix it.

    The command line prints it as one line and exits with 2; any other exception is a bug of ours.
    """


def shown(value: object) -> str:
    """A value in a message: on one line, and never long."""
    return textwrap.shorten(reprlib.repr(value), 60, placeholder=" ...")


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The end of an error message: the closest known name, or else all of them.

    >>> did_you_mean("nieghbours", ["neighbours", "delta"])
    'did you mean "neighbours"?'
    """
    names = list(known)
    close = get_close_matches(given, names, n=1)
    return f'did you mean "{close[0]}"?' if close else f"choose from {', '.join(names)}"
