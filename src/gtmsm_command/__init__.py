"""The command `gtmsm`: a signal ends it with one line from the start, also while the library is being imported.

So this module imports only a little of the standard library.
"""

import codecs
import errno
import os
import shutil
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn


def main() -> None:
    """`gtmsm VERB ...`: exit code 129, 130 or 143 after SIGHUP, Ctrl-C or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # what the parent process ignores stays ignored
            signal.signal(number, _leave)
    codecs.register_error("as they are", _as_they_are)
    sys.stdout, sys.stderr = _Steady(sys.stdout), _Steady(sys.stderr)  # type: ignore[assignment]
    from gtmsm.cli import main as run

    run()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Remove half-written files, print one line, and exit at once.

    No exception is raised: during an import or in a destructor it could be replaced by another one, or be lost.
    """
    for path in tuple(getattr(sys.modules.get("gtmsm.files"), "TEMPORARY", ())):
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with suppress(Exception):
        sys.stdout.flush()
    with suppress(OSError, AttributeError):
        if os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0":  # of several processes one prints
            # A progress bar has hidden the cursor.
            os.write(2, b"\x1b[?25h\ngtmsm: interrupted\n" if os.isatty(2) else b"gtmsm: interrupted\n")
    os._exit(128 + number)


def _as_they_are(problem: UnicodeError) -> tuple[str | bytes, int]:
    """Error handler for printing: bytes in file names that are no text are printed unchanged."""
    try:
        return codecs.lookup_error("surrogateescape")(problem)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(problem)  # a letter that this terminal does not have


class _Steady:
    """An output stream; once its terminal or its reader is gone, it discards text instead of failing."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115 - None: closed from the beginning
        self._stream.reconfigure(errors="as they are")

    def write(self, text: str) -> int:
        """Write as the stream does."""
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Flush as the stream does."""
        self._try(self._stream.flush)

    def _try(self, call: Any, *arguments: str) -> None:
        try:
            call(*arguments)
        except OSError as problem:
            # What is waiting in the buffer would fail again when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if problem.errno not in (errno.EIO, errno.EPIPE):
                raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
