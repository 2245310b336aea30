"""Work that needs a device for itself; in a module of its own, which other processes can import."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from gtmsm.errors import NoMemoryError
from gtmsm.reproduce.work import Order, _Job


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds; a minute at most."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "the other processes did not begin"
        time.sleep(0.05)


@dataclass(frozen=True)
class Crowded(_Job):
    """Refused while others are at work: the first time it waits for them, so that all are refused."""

    others: int = 0
    """How many more there are."""

    def make(self, order: Order) -> None:
        mine = order.out / f"{self.seed}.tries"
        with mine.open("a") as file:
            file.write("x")
        wait_for(lambda: len(list(order.out.glob("*.tries"))) > self.others)
        if len(mine.read_text()) == 1:
            raise NoMemoryError("no memory left")
        self.makes(order).write_text("{}")


@dataclass(frozen=True)
class Killed(_Job):
    """The second job is killed at its first try, as the system does without memory left, while the first one works.

    The first job's first try has nothing to report until long after that, and then leaves a file.
    """

    def make(self, order: Order) -> None:
        mine, first = (order.out / f"{seed}.tries" for seed in (self.seed, 0))
        is_first_try = not mine.exists()
        mine.touch()
        if is_first_try and self.seed == 1:
            wait_for(first.exists)
            os.kill(os.getpid(), signal.SIGKILL)
        if is_first_try and self.seed == 0:
            time.sleep(60)
            (order.out / "unnoticed").touch()
        self.makes(order).write_text("{}")
