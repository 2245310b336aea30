"""Ceilings first, then everything that was asked for, one after the other."""

import gc
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from gtmsm.bench.ceilings import Ceilings, measure_ceilings
from gtmsm.bench.clock import captured, peak_bytes, time_calls
from gtmsm.bench.entries import ENTRIES, UPDATES
from gtmsm.bench.profile import Share, where_time_goes
from gtmsm.bench.sizes import Sizes
from gtmsm.bench.task import Against, Row, Task
from gtmsm.bench.work import Work
from gtmsm.config import require
from gtmsm.errors import InputError, did_you_mean
from gtmsm.files import write_atomically


@dataclass(frozen=True)
class Report:
    """What was measured, and where: elsewhere it is another number."""

    device: str
    torch: str
    gtmsm: str
    ceilings: Ceilings
    rows: Sequence[Row] = ()
    profiles: dict[str, list[Share]] = field(default_factory=dict)
    """Where the time of an update goes, by the name of its entry."""

    def as_plain(self) -> dict[str, Any]:
        """Nested dicts, lists and numbers, ready for JSON; goals with what became of them."""
        plain = asdict(self)
        for row, made in zip(plain["rows"], self.rows, strict=True):
            row |= {"times_reference": made.times_reference, "goal_reached": made.reached, "goal_met": made.met}
        return plain

    def write(self, path: Path) -> None:
        """As JSON, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(self.as_plain(), indent=1))


def bench(
    names: Sequence[str],
    device: torch.device,
    sizes: Sizes,
    profile: bool = False,
    tell: Callable[[str], object] = lambda doing: None,
    keep: Callable[[Report], object] = lambda so_far: None,
) -> Report:
    """Time the entries of these names, or all; `tell` hears what is done, `keep` is given what is known by then."""
    for name in names:
        if name not in ENTRIES:
            raise InputError(f'there is no speed called "{name}"; {did_you_mean(name, ENTRIES)}')
    chosen = [name for name in ENTRIES if name in names or not names]
    require(
        not profile or any(name in UPDATES for name in chosen),
        f"--profile looks into updates, and {', '.join(names)} has none; name one of {', '.join(UPDATES)}",
    )
    from gtmsm import __version__

    tell("the ceilings of this device")
    ceilings = measure_ceilings(device, sizes)
    done, profiles = list[tuple[Row, Work]](), dict[str, list[Share]]()

    def known() -> Report:
        rows = [_beside_its_floor(row, least, ceilings) for row, least in done]
        return Report(name_of(device), torch.__version__, __version__, ceilings, rows, profiles)

    for name in chosen:
        tell(name)
        for task in ENTRIES[name](sizes, device):
            done.append((_time(name, task, device, sizes), task.least))
            if profile and name in UPDATES:
                profiles[name] = where_time_goes(task.call, device)
            keep(known())
        gc.collect()  # models and their optimisers refer to each other
        if device.type == "cuda":
            torch.cuda.empty_cache()
    tell("the ceilings once more")  # a machine that others use, too, is not always at its best
    ceilings = ceilings.or_better(measure_ceilings(device, sizes))
    return known()


def _time(name: str, task: Task, device: torch.device, sizes: Sizes) -> Row:
    """The median of a task, and of its reference where it has one."""
    call = captured(task.call, device) if task.graph else task.call
    timing = time_calls(call, device, sizes.seconds)
    against, peak = None, None
    if task.reference is not None:
        other = task.reference.call
        seconds = time_calls(other, device, sizes.seconds).median
        against = Against(task.reference.name, seconds, peak_bytes(other, device))
        peak = peak_bytes(task.call, device)
    return Row(
        name=name,
        work=task.work,
        size=task.size,
        seconds=timing.median,
        repeats=len(timing.seconds),
        units=task.units,
        unit=task.unit,
        rate=task.units / timing.median,
        flops=task.least.flops,
        bytes=task.least.bytes,
        precision=task.least.precision,
        peak_bytes=peak,
        against=against,
        goal=task.goal,
        note=task.note,
    )


def _beside_its_floor(row: Row, least: Work, ceilings: Ceilings) -> Row:
    """The same, with what the device could do."""
    floor = least.floor(ceilings)
    return replace(
        row,
        bound=least.bound(ceilings),
        compute_floor=least.compute_seconds(ceilings),
        floor=floor,
        times_floor=row.seconds / floor,
    )


def name_of(device: torch.device) -> str:
    """The device as its maker calls it; a CPU with the threads that are used of it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.is_file() else []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    model = next(models, platform.processor() or platform.machine())
    threads = torch.get_num_threads()
    return f"{model}, {threads} {'threads' if threads > 1 else 'thread'}"
