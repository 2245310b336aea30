"""The command line: finds the verb, and reports mistakes in one line."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from gtmsm.errors import InputError, did_you_mean, shortened
from gtmsm.interruption import is_first_process

VERBS = {
    "demo": "train a small model, score it, and write a report: gtmsm demo [rotate|obstacles] (minutes on two cores)",
    "train": "train an experiment of the paper, or on your recordings: gtmsm train PRESET [flags]",
    "evaluate": "score a run in held-out places: scores.json and report.html",
    "weights": "the weights that come with gtmsm, to be named wherever a RUN is asked for, and their licences",
    "imagine": "walk on in a run's memory of a place, truth beside imagination, as a video",
    "record": "clips of any Gymnasium environment: gtmsm record ENV_ID --out PATH; or a run's walk: record RUN OUT.npz",
    "plan": "walk to a goal in a run's memory of a place, plan after plan, as a video: gtmsm plan RUN [--goal PICTURE]",
    "export": "a walk for the viewer of rerun: gtmsm export rrd RUN [--explorer FILE]",
    "localise": "where was this picture seen? gtmsm localise RUN CLIP PICTURE memorises the clip and looks it up",
    "play": "a page to walk in a world and in its memory: gtmsm play [RUN], then open the address that it says",
    "compare": "one table of the scores of several runs, and the fraction that converged",
    "reproduce": "the table of all rivals and controls, from real trainings: gtmsm reproduce [ROW ...] [--quick]",
    "data": "look at recordings and check them: gtmsm data info|verify|sample|convert PATH",
    "atlas": "memories of many agents, kept and shared: gtmsm atlas add|where|imagine|merge|prune|info|export ATLAS",
    "bench": "how fast it is on this device, and how fast it could be: gtmsm bench [NAMES] [--json FILE]",
}
MODULES = {
    "training": ("demo", "train", "evaluate", "compare", "bench"),
    "walks": ("weights", "imagine", "plan", "export", "localise", "play"),
    "recordings": ("record", "data"),
    "atlas": ("atlas",),
    "reproduce": ("reproduce",),
}
"""Modules of `gtmsm.verbs`, and the verbs that are functions in them."""


def main(arguments: Sequence[str] | None = None) -> None:
    """`gtmsm VERB ...`; mistaken input is one line on stderr and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run_verb(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _complain("interrupted", 130)
    except InputError as problem:
        # One line, unless a name that was given has several.
        in_more = any("\n" in word for word in words)
        code = _complain(str(problem) if in_more else re.sub(r"\s*\n\s*", " ", str(problem).strip()), 2)
    except OSError as problem:
        named = problem.filename is not None and problem.strerror
        name = shortened(os.fsdecode(problem.filename), 300) if named else ""
        code = _complain(f"{name}: {problem.strerror}" if named else str(problem), 2)
    sys.exit(code)


def _complain(what: str, code: int) -> int:
    """Print to stderr from one process only: if several train together, the others exit silently."""
    if not is_first_process():
        return 0
    print(f"gtmsm: {what}", file=sys.stderr)
    return code


def _run_verb(words: list[str]) -> int:
    """Find the verb and call it with the other words."""
    if not words or words[0] in ("-h", "--help", "help"):
        listed = "\n".join(f"  {verb:<10} {about}" for verb, about in VERBS.items())
        print(f"gtmsm: world models that remember places\n\n{listed}\n\n`gtmsm VERB --help` explains a verb's flags")
        return 0
    if words[0] == "--version":
        from gtmsm import __version__

        print(__version__)
        return 0
    if words[0] not in VERBS:
        raise InputError(f'unknown verb "{words[0]}"; {did_you_mean(words[0], VERBS)}')
    module = next(module for module, verbs in MODULES.items() if words[0] in verbs)
    verb: Callable[[list[str]], int] = getattr(import_module(f"gtmsm.verbs.{module}"), words[0])
    return verb(words[1:])


if __name__ == "__main__":
    from gtmsm_command import main as command

    command()
