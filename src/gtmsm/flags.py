"""Command lines parsed into dataclasses by tyro, with errors of one line."""

import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from itertools import takewhile
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import tyro
from rich.console import Console

from gtmsm.config import require_count
from gtmsm.errors import InputError, did_you_mean

T = TypeVar("T")


def plain_console(stderr: bool = False) -> Console:
    """A console that prints text unchanged: a path with brackets or colons is no markup and no emoji."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def parse(kind: type[T], words: list[str], prog: str, default: T | None = None) -> T:
    """Parse words into flags; any mistake becomes an error of one line."""
    known = _known_flags(kind)
    for word in words:
        flag = word.split("=")[0].replace("_", "-")
        if flag.startswith("--") and flag not in known:
            hint = _closest_flags(flag, known) or f"{prog} --help lists them"
            raise InputError(f'unknown flag "{flag}"; {hint}')
    with _one_line_errors():
        given: Any = {} if default is None else {"default": default}
        flags: T = tyro.cli(kind, args=words, prog=prog, **given)
    for name, value in vars(flags).items():
        require_count(name, value)
    return flags


def parse_what(verb: str, path: str, words: list[str], known: Mapping[str, tuple[Any, ...]]) -> tuple[str, Any]:
    """Parse the words of a verb that has sub-verbs; returns a sub-verb and its flags, or nothing after printing help.

    `known` has the class of each sub-verb's flags, and a line of help.
    """
    if not words or words[0] in ("-h", "--help"):
        listed = "\n".join(f"  {name:<10} {about}" for name, (_, about, *_) in known.items())
        print(f"gtmsm {verb} WHAT {path} [flags]\n\n{listed}\n\n`gtmsm {verb} WHAT --help` explains its flags")
        return "", None
    what, *rest = words
    if what not in known:
        raise InputError(f'unknown: gtmsm {verb} "{what}"; {did_you_mean(what, known)}')
    return what, parse(known[what][0], rest, f"gtmsm {verb} {what}")


def _closest_flags(flag: str, known: set[str]) -> str:
    """The flags whose last part is closest to that of `flag`: all that share it, unless one consists of it alone."""
    leaves: dict[str, list[str]] = {}
    for name in sorted(known, key=lambda name: (len(name), name)):
        leaves.setdefault(name.removeprefix("--").rsplit(".", 1)[-1], []).append(name)
    close = get_close_matches(flag.removeprefix("--").rsplit(".", 1)[-1], leaves, n=1)
    if not close:
        return ""
    first, *others = leaves[close[0]]
    same = [first, *others] if "." in first else [first]
    return f"did you mean {' or '.join(same)}?"


def _known_flags(kind: Any, prefix: str = "--") -> set[str]:
    """Every --flag of a dataclass; those of a nested one follow its name and a dot, unless that name is dropped."""
    known = {"--help"}
    for field, hint in ((field, get_type_hints(kind, include_extras=True)[field.name]) for field in fields(kind)):
        inner, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        name = field.name.replace("_", "-")
        if is_dataclass(inner):
            known |= _known_flags(inner, prefix if marks else f"{prefix}{name}.")
        elif tyro.conf.Positional not in marks:
            known |= {f"{prefix}{name}", f"{prefix}no-{name}"} if inner is bool else {f"{prefix}{name}"}
    return known


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turn tyro's error messages, boxes of several lines, into errors of one line."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            yield
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        lines = [line.strip(" │╭╮╰╯─") for line in told.getvalue().splitlines()[1:]]
        words = list(takewhile(lambda line: not line.startswith(("Argument helptext", "For full helptext")), lines))
        said = (line for line in words if line.strip("-"))  # some terminals draw the box with dashes
        what = " ".join(said).split(" Got errors:")[0].replace("{None}|", "")
        what = re.sub(r"^Error parsing experiment\.[\w.]*: ", "", what)  # errors of our own need no preface
        raise InputError(what or "these flags cannot be read") from None


def value_of(flag: str, words: list[str]) -> str | None:
    """The word after `flag`, or behind its equals sign."""
    for word, following in zip(words, [*words, None][1:], strict=True):
        if word == flag:
            return following
        if word.startswith(f"{flag}="):
            return word.split("=", 1)[1]
    return None
