"""Speed as a ratio: ours against the plain way, in the same run."""

import time
from collections.abc import Callable

import pytest

Compare = Callable[..., None]


@pytest.fixture
def compare(benchmark, capsys) -> Compare:
    """Time both, say what came out, and hold it to what was asked for."""

    def times_faster(
        what: str,
        plainly: str,
        plain: Callable[[], object],
        ours: Callable[[], object],
        asked: float = 0,
        tries: int = 3,
    ) -> None:
        benchmark.pedantic(ours, rounds=30, warmup_rounds=3)
        if benchmark.disabled:
            return
        # The plain way's best against our median: what a busy machine adds counts against us.
        slow, fast = min(_seconds(plain) for _ in range(tries)), benchmark.stats.stats.median
        benchmark.extra_info.update(plain_seconds=slow, ratio=slow / fast)
        took = f"{plainly} {1e3 * slow:.1f} ms, gtmsm {1e3 * fast:.2f} ms, {slow / fast:.1f} times faster"
        with capsys.disabled():
            print(f"\n{what}: {took}" + f" (at least {asked} asked for)" * bool(asked))
        assert slow >= asked * fast

    return times_faster


def _seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
