"""Measure the ceilings of the device first, then one task after the other."""

import gc
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from gtmsm.bench.clock import Ceilings, Share, measure_ceilings, time_calls, where_time_goes
from gtmsm.bench.sizes import Sizes
from gtmsm.bench.tasks import BY_DEFAULT, ENTRIES, OTHERS, UPDATE_GOALS, Goal, Task
from gtmsm.config import require
from gtmsm.errors import InputError, did_you_mean
from gtmsm.files import write_json


@dataclass(frozen=True)
class Row:
    """A measured task; times are in seconds."""

    name: str
    work: str
    size: str
    seconds: float
    """The median."""
    repeats: int
    units: int
    unit: str
    rate: float
    """Units per second."""
    flops: int = 0
    precision: str = "float32"
    floor: float | None = None
    """Seconds of its FLOPs at the best rate of the device; None if they do not bound it."""
    reference: str = ""
    """Name of another way to compute the same result."""
    reference_seconds: float | None = None
    goal: Goal | None = None

    @property
    def times_reference(self) -> float | None:
        """How many times faster than the reference."""
        return None if self.reference_seconds is None else self.reference_seconds / self.seconds

    @property
    def reached(self) -> float | None:
        """The measured value of its goal's kind; None without a goal."""
        if self.goal is None:
            return None
        kinds = {"milliseconds": 1e3 * self.seconds, "rate": self.rate, "times the reference": self.times_reference}
        return kinds[self.goal.kind]

    @property
    def met(self) -> bool | None:
        """Whether its goal is met; None without a goal."""
        if self.goal is None or self.reached is None:
            return None
        return self.reached <= self.goal.bound if self.goal.kind == "milliseconds" else self.reached >= self.goal.bound


@dataclass(frozen=True)
class Report:
    """All measurements, and the device on which they were made."""

    device: str
    torch: str
    gtmsm: str
    ceilings: Ceilings
    rows: Sequence[Row] = ()
    profiles: dict[str, list[Share]] = field(default_factory=dict)
    """Kernels of updates, by the name of the preset."""

    def as_plain(self) -> dict[str, Any]:
        """Nested dicts, lists and numbers, ready for JSON."""
        plain = asdict(self)
        for row, made in zip(plain["rows"], self.rows, strict=True):
            row |= {"times_reference": made.times_reference, "goal_reached": made.reached, "goal_met": made.met}
        return plain

    def write(self, path: Path) -> None:
        """Write as JSON, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, self.as_plain())


def bench(
    names: Sequence[str],
    device: torch.device,
    sizes: Sizes,
    profile: bool = False,
    tell: Callable[[str], object] = lambda doing: None,
    keep: Callable[[Report], object] = lambda so_far: None,
) -> Report:
    """Time the entries of these names, or the default ones.

    `tell` is called with the name of each measurement before it, `keep` with the report so far after every row.
    """
    for name in names:
        if name not in ENTRIES:
            raise InputError(f'there is no speed called "{name}"; {did_you_mean(name, ENTRIES)}')
    chosen = [name for name in ENTRIES if name in (names or BY_DEFAULT)]
    require(
        not profile or any(name not in OTHERS for name in chosen),
        f"--profile looks into updates, and {', '.join(names)} has none; name one of {', '.join(UPDATE_GOALS)}",
    )
    from gtmsm import __version__

    tell("the ceilings of this device")
    ceilings = measure_ceilings(device, sizes.copied, sizes.matmul, min(0.5, sizes.seconds))
    rows, profiles = list[Row](), dict[str, list[Share]]()
    report = Report(name_of(device), torch.__version__, __version__, ceilings, rows, profiles)
    for name in chosen:
        tell(name)
        for task in ENTRIES[name](sizes, device):
            rows.append(_time(name, task, device, sizes.seconds, ceilings))
            if profile and name not in OTHERS:
                profiles[name] = where_time_goes(task.call, device)
            keep(report)
        gc.collect()  # models and their optimisers refer to each other
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return report


def _time(name: str, task: Task, device: torch.device, budget: float, ceilings: Ceilings) -> Row:
    """The median of a task, and of its reference if it has one."""
    seconds = time_calls(task.call, device, budget)
    name_of_reference, other = task.reference or ("", None)
    return Row(
        name, task.work, task.size, median(seconds), len(seconds), task.units, task.unit, task.units / median(seconds),
        task.flops, task.precision, task.flops / ceilings.flops[task.precision] if task.flops else None,
        name_of_reference, median(time_calls(other, device, budget)) if other else None, task.goal,
    )  # fmt: skip


def name_of(device: torch.device) -> str:
    """The device as its maker calls it; a CPU with the number of threads in use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.is_file() else []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    model = next(models, platform.processor() or platform.machine())
    threads = torch.get_num_threads()
    return f"{model}, {threads} {'threads' if threads > 1 else 'thread'}"
