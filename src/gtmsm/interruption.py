"""Signals that ask for a stop, handled so that work ends where it can be continued; and which process prints."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Interruption:
    """Whether work was asked to stop."""

    signal: int = 0
    """Number of the first signal received; 0: none."""


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Record Ctrl-C, SIGTERM and SIGHUP, so that a piece of work is never cut in half; a second Ctrl-C is not caught.

    What the parent process ignores stays ignored: SIGHUP under nohup, Ctrl-C in a script's background job.
    """
    asked = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield asked  # signals can only be handled in the main thread
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

    def ask(number: int, frame: FrameType | None) -> None:
        asked.signal = asked.signal or number
        if number == signal.SIGINT:  # others may come twice by themselves, as when a terminal is closed
            signal.signal(number, before[signal.SIGINT])

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_first_process() -> bool:
    """Whether this is the process that prints and writes if several train together; known before they launch."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"
