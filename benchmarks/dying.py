"""A process that kills itself before one of its writes: for tests and benchmarks of what is left then."""

import os
import signal
import sys
from collections.abc import Callable

WRITES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "fcntl.flock", "os.truncate", "os.link"}


def fork(work: Callable[[], object], n: int = 0) -> int:
    """A child process that works, and kills itself before its n-th write; 0: it does not."""
    child = os.fork()
    if child:
        return child
    count, code = 0, 1

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event in WRITES:
            count += 1
            if count == n:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(hook)
        work()
        code = 0
    finally:
        os._exit(code)


def killed_at(n: int, work: Callable[[], object]) -> int:
    """How such a child ended: -9, or 0 if it made fewer writes."""
    return os.waitstatus_to_exitcode(os.waitpid(fork(work, n), 0)[1])
