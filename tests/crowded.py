"""Work that needs a device for itself; in a module of its own, which other processes can import."""

import os
import signal
import time
from dataclasses import dataclass

from gtmsm.errors import NoMemoryError
from gtmsm.reproduce.work import Order, _Job


@dataclass(frozen=True)
class Crowded(_Job):
    """Refused while others are at work: the first time it waits for them, so that all are refused."""

    others: int = 0
    """How many more there are."""

    def make(self, order: Order) -> None:
        mine = order.out / f"{self.seed}.tries"
        with mine.open("a") as file:
            file.write("x")
        while len(list(order.out.glob("*.tries"))) <= self.others:
            time.sleep(0.05)
        if len(mine.read_text()) == 1:
            raise NoMemoryError("no memory left")
        self.makes(order).write_text("{}")


@dataclass(frozen=True)
class Killed(_Job):
    """The second of them is killed the first time, as where a machine has no memory left, while the first is at work.

    (Python may notice that only once another process has something to say.)
    """

    def make(self, order: Order) -> None:
        mine, first = (order.out / f"{seed}.tries" for seed in (self.seed, 0))
        is_first_try = not mine.exists()
        mine.touch()
        while self.seed == 1 and not first.exists():
            time.sleep(0.05)
        if is_first_try and self.seed == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if is_first_try and self.seed == 0:
            time.sleep(2)
        self.makes(order).write_text("{}")
