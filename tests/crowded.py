"""Work that needs a device for itself; in a module of its own, which other processes can import."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from gtmsm.errors import NoMemoryError
from gtmsm.interruption import interruptible
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
    """The second job is killed at its first try, as the system does without memory left; the first one outlives it."""

    def make(self, order: Order) -> None:
        mine, second = (order.out / f"{seed}.tries" for seed in (self.seed, 1))
        tries = mine.read_text().count("\n") + 1 if mine.exists() else 1
        with mine.open("a") as file:
            file.write(f"{os.getpid()}\n")
        if self.seed == 1 and tries == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.seed == 0:
            wait_for(lambda: second.exists() and has_ended(second.read_text()))
        self.makes(order).write_text(f"made at try {tries}")


def has_ended(process: str) -> bool:
    """Whether there is no such process any more, not even one whose end nobody has noticed."""
    try:
        os.kill(int(process or os.getpid()), 0)
    except ProcessLookupError:
        return True
    return False


@dataclass(frozen=True)
class Silent(_Job):
    """Ends its process without a result and without an error, once a file is there."""

    after: str = "logs"

    def make(self, order: Order) -> None:
        wait_for((order.out / self.after).exists)
        os._exit(7)


@dataclass(frozen=True)
class Endless(_Job):
    """Works until a signal ends it, and then leaves a file, as a training leaves a checkpoint."""

    def make(self, order: Order) -> None:
        with interruptible() as asked:
            (order.out / "begun").touch()
            wait_for(lambda: asked.signal != 0)
        (order.out / "end").write_text(f"ended by signal {asked.signal}")
