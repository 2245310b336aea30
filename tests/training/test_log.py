"""What a run logs: lines of metrics and curves."""

import re
import resource
import threading
from functools import partial
from pathlib import Path

import pytest

from gtmsm.errors import InputError
from gtmsm.training.log import MetricsLog, read_verdict


@pytest.mark.parametrize("bytes_left", [20, 40], ids=["metrics", "curves"])
def test_a_full_disk_is_one_line_and_no_thread_complains(tmp_path: Path, bytes_left: int):
    threads, limits = threading.active_count(), resource.getrlimit(resource.RLIMIT_FSIZE)
    log = MetricsLog(tmp_path)
    assert threading.active_count() == threads
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, limits[1]))
    try:
        with pytest.raises(InputError, match=re.escape(f"could not write metrics into {tmp_path}: File too large")):
            log.write(1, {"elbo": 0.5})
    finally:
        log.close()
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_tensorboard_shows_one_curve_of_a_run_resumed_within_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for first, updates, now in ((0, (1, 2, 3), 1e9 + 0.05), (1, (2, 3), 1e9 + 0.1)):
        monkeypatch.setattr("time.time", partial(float, now))
        log = MetricsLog(tmp_path, first)
        for update in updates:
            log.write(update, {"elbo": update + 0.5 * first, "stage": "here"})
        log.close()
    curves = loader.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in curves.Scalars("elbo")] == [(1, 1.0), (2, 2.5), (3, 3.5)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"update": 4, "prospect": -7.0, "verdict": "motion found"}\n{"update": 5, "elbo": 1.0}\n', "motion found"),
        ('{"update": 4, "prospect": -7.0}\n', ""),
        ('{"update": 4, "verdict": 3}\n', ""),
        ('{"update\n{"update": 5}\n', ""),
        (None, ""),
    ],
    ids=["kept", "from before", "no words", "harmed", "no metrics"],
)
def test_the_verdict_of_a_search_is_read_again_where_there_is_one(tmp_path: Path, lines: str | None, said: str):
    if lines is not None:
        (tmp_path / "metrics.jsonl").write_text(lines)
    assert read_verdict(tmp_path) == said
