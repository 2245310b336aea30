"""The first cases of `make fuzz`: each target at least once."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_wrong_files_and_odd_calls_are_answered_or_refused(tmp_path: Path):
    # A process of its own: here the shapes in signatures are checked, which users do not have.
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    from fuzz.harness import TABLES  # what all of it imports, only this test needs

    cases = [word for kind, targets in TABLES.items() for word in (f"--{kind}s", str(len(targets)))]
    words = ["-m", "fuzz", *cases, "--workers", "1", "--kept", str(tmp_path)]
    told = subprocess.run(
        [sys.executable, *words], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stdout + told.stderr
