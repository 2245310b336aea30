"""Windows of a store to train on: drawn at random, read ahead in the background, two batches of them in memory."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.data.record import one_hot, steps_of
from gtmsm.episodes.episode import Episode
from gtmsm.episodes.store import Store
from gtmsm.errors import InputError

THREADS = 2
Drawn = tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]
"""Episodes, and the step of each at which a window begins."""


class StoreWindows:
    """Batches of windows, each a function of the generator's state alone: a resumed training sees the same.

    After each call the next one is read ahead, for the state that the generator then has. So give a generator that
    nothing else draws from: else what was read ahead is not what is asked for, and the call waits for its reading.
    Windows are uniform over all there are in `episodes`; `from_start`: over those at the first step of an episode.
    """

    def __init__(
        self,
        store: Store,
        episodes: Sequence[int] | np.ndarray | None = None,
        device: torch.device | str = "cpu",
        from_start: bool = False,
        threads: int = THREADS,
    ) -> None:
        self.store = store.snapshot()
        self.device = torch.device(device)
        self.episodes = np.arange(len(store)) if episodes is None else np.array(episodes, np.int64)
        self.lengths, self.from_start = self.store.lengths[self.episodes], from_start
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="windows")
        self._threads = threads
        self._ahead: tuple[tuple[int, int, bytes], list[Future[list[Episode]]]] | None = None

    def __call__(self, n: int, steps: int, generator: torch.Generator) -> Clip:
        """`n` windows of `steps` steps; the generator moves on."""
        asked = (n, steps, _state(generator))
        reading = self._ahead[1] if self._ahead and self._ahead[0] == asked else self._read(*asked)
        torch.rand(1, device=generator.device, generator=generator)
        following = (n, steps, _state(generator))
        self._ahead = following, self._read(*following)  # behind what is still being read for this call
        return self._clip([window for part in reading for window in part.result()])

    def draw(self, n: int, steps: int, state: bytes) -> Drawn:
        """Which windows a state of a generator stands for."""
        starts = np.clip(self.lengths - steps + 1, 0, 1 if self.from_start else None)
        total = int(starts.sum())
        if total == 0:
            longest = max(self.lengths, default=0)
            raise InputError(
                f"asked for windows of {steps} steps but the longest of {len(self.lengths)} episodes has {longest}; "
                "record longer ones, or memorise and predict fewer"
            )
        lots = np.random.default_rng(np.frombuffer(state, np.uint32)).integers(total, size=n)
        ends = np.cumsum(starts)
        which = np.searchsorted(ends, lots, side="right")
        return self.episodes[which], lots - (ends - starts)[which]

    def _read(self, n: int, steps: int, state: bytes) -> "list[Future[list[Episode]]]":
        """Begin to read windows in the background."""
        which, first = self.draw(n, steps, state)
        size = max(1, -(-n // (4 * self._threads)))

        def read(low: int) -> list[Episode]:
            chosen = zip(which[low : low + size].tolist(), first[low : low + size].tolist(), strict=True)
            return [_turning_on(self.store.window(i, begin, steps)) for i, begin in chosen]

        return [self._pool.submit(read, low) for low in range(0, n, size)]

    def _clip(self, windows: list[Episode]) -> Clip:
        """As a model wants it."""
        kind = self.store.kind

        def batch(name: str) -> Tensor:
            whole = torch.from_numpy(np.stack([getattr(window, name) for window in windows]))
            return (whole.pin_memory() if self.device.type == "cuda" else whole).to(self.device, non_blocking=True)

        x = batch("frames").permute(0, 1, 4, 2, 3).contiguous() / 255
        a = one_hot(batch("actions"), kind.action_size) if kind.discrete else batch("actions")
        if not kind.pose_size:
            return Clip(x, a, a[..., :0], a[..., :0])
        way = torch.cat([batch("start")[:, None], batch("poses")], 1)
        return Clip(x, a, way[:, 1:], steps_of(way[:, 0], way[:, 1:]))


def _turning_on(window: Episode) -> Episode:
    """A window whose heading does not jump where it passes pi: a difference of two headings is how far it turned."""
    if window.start is None or window.poses is None or len(window.start) < 3:
        return window
    way = np.concatenate([window.start[None], window.poses])
    way[:, 2] = np.unwrap(way[:, 2])
    return replace(window, start=way[0], poses=way[1:])


def _state(generator: torch.Generator) -> bytes:
    """What a generator would draw next, in a few bytes; read without waiting for a GPU."""
    return hashlib.sha256(generator.get_state().numpy().tobytes()).digest()
