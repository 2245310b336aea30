"""`python -m fuzz` (with tests/ on the path), or `make fuzz`: thousands of wrong files and odd calls."""

import argparse
import os
import sys
import tempfile
import time
from importlib import import_module
from itertools import chain
from pathlib import Path

import torch
from fuzz import material, recordings
from fuzz.harness import failures, make_material, play_all, table

LATE = ("gtmsm.film", "gtmsm.find", "gtmsm.bench", "gtmsm.evaluation.report", "matplotlib.pyplot", "scipy.spatial",
        "lightning_fabric", "torch._dynamo")  # fmt: skip
"""What commands import when they run: here once, before processes are forked."""


def main() -> int:
    """Play the cases, print the table and the failures; 1 if there are any."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--files", type=int, default=11_000, help="wrong files")
    parser.add_argument("--calls", type=int, default=1_500, help="odd calls")
    parser.add_argument("--recordings", type=int, default=6_400, help="wrong recordings of others")
    parser.add_argument("--seed", type=int, default=0, help="of all cases")
    parser.add_argument("--case", help="only this one: file-17, call-3")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--kept", type=Path, default=Path(".fuzz"), help="where folders of failures go")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    for name in (*LATE, *(recordings.LIBRARIES if recordings.READY else ())):
        import_module(name)
    counts = {"file": flags.files, "call": flags.calls, "recording": flags.recordings if recordings.READY else 0}
    cases = chain.from_iterable([(kind, number) for number in range(count)] for kind, count in counts.items())
    if flags.case:
        kind, _, number = flags.case.partition("-")
        cases = iter([(kind, int(number))])
    started, results, kept = time.monotonic(), [], flags.kept.absolute()
    with tempfile.TemporaryDirectory() as scratch:
        good = Path(scratch) / "good"
        needed = flags.case or flags.files or flags.calls
        make_material(good, (material.make, recordings.make) if needed else (recordings.make,))
        for result in play_all(cases, flags.seed, good, Path(scratch), kept, flags.workers):
            results.append(result)
            if len(results) % 1_000 == 0:
                print(f"{len(results)} cases, {time.monotonic() - started:.0f} s", file=sys.stderr)
    print(table(results), *failures(results, flags.seed, kept), sep="\n")
    if flags.case:
        print(results[0])
    print(f"seed {flags.seed}, {time.monotonic() - started:.0f} s")
    return int(any(result.outcome == "failed" for result in results))


sys.exit(main())
