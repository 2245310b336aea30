"""Windows of a store that is too large for memory, read while training: as many at a time as an update needs."""

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8

from gtmsm.data.clip import Clip
from gtmsm.episodes.episode import Episode
from gtmsm.episodes.pool import Episodes, drawn, moves_of

THREADS = 2


class StoreWindows:
    """Draws the same windows as `Pool`, on a CPU: a batch depends on the generator's state alone."""

    def __init__(
        self, store: Episodes, which: Int64[np.ndarray, "_"], unit: float = 1.0, from_start: bool = False
    ) -> None:
        """See `Pool.of`."""
        self.store, self.unit, self.from_start = store, unit, from_start
        self.order = which[np.argsort(-store.lengths[which], kind="stable")]
        self.length = torch.from_numpy(store.lengths[self.order])
        self.lengths = tuple(self.length.tolist())
        self._readers = ThreadPoolExecutor(THREADS, thread_name_prefix="windows")
        self._free: list[np.ndarray] = []
        self._own = threading.local()

    def __call__(self, n: int, steps: int, generator: torch.Generator) -> Clip:
        """Draw `n` windows of `steps` consecutive steps, from different episodes if there are enough of them."""
        which, begin = drawn(self.length, self.lengths, n, steps, self.from_start, generator)
        height, width, channels = self.store.kind.frame_shape
        x = self._batch_memory((n, steps, channels, height, width))

        def read(k: int, i: int, first: int) -> Episode:
            stored, planes = self._scratch(steps)
            window = self.store.window(int(self.order[i]), first, steps, stored)
            # Two passes, each several times as fast as a single one that does both.
            np.copyto(planes, window.frames.transpose(0, 3, 1, 2))
            np.divide(planes, np.float32(255), out=x[k])
            return window

        windows = list(self._readers.map(read, range(n), which.tolist(), begin.tolist()))
        every = {name: [getattr(window, name) for window in windows] for name in ("actions", "poses", "start")}
        batch: dict[str, Any] = {name: np.stack(parts) for name, parts in every.items() if parts[0] is not None}
        return Clip(torch.from_numpy(x), *moves_of(Episode(windows[0].frames, **batch), self.store.kind, self.unit))

    def _scratch(self, steps: int) -> tuple[UInt8[np.ndarray, "..."], UInt8[np.ndarray, "..."]]:
        """Buffers of a thread for the bytes of a window, in the layout of the store and in that of training.

        Reused for every window, they stay in the cache of a core; new memory would have to be cleared first.
        """
        if getattr(self._own, "steps", 0) != steps:
            height, width, channels = self.store.kind.frame_shape
            self._own.memory = (
                np.empty((steps, height, width, channels), np.uint8),
                np.empty((steps, channels, height, width), np.uint8),
            )
            self._own.steps = steps
        return self._own.memory  # type: ignore[no-any-return]

    def _batch_memory(self, shape: tuple[int, ...]) -> Float32[np.ndarray, "n time channel height width"]:
        """Memory for a batch, reused from an earlier batch that is no longer referenced: new pages take a fifth longer.

        If there is none, NumPy allocates it, with huge pages: pages of 4 kB would take four fifths of the time.
        """
        whole = self._free.pop() if self._free else np.empty(shape, np.float32)
        if whole.shape != shape:
            whole = np.empty(shape, np.float32)
            self._free.clear()
        x = whole.view()
        # The tensor references x, not `whole`: x is freed with the tensor and the last of its views.
        weakref.finalize(x, self._free.append, whole).atexit = False
        return x
