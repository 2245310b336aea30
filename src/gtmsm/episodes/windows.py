"""Windows of a store that is too large for memory: read while training, as many at a time as an update needs."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from gtmsm.data.clip import Clip
from gtmsm.episodes.episode import Episode
from gtmsm.episodes.pool import Episodes, drawn, moves_of

THREADS = 2


class StoreWindows:
    """Draws what `Pool` would, on a CPU: a batch is a function of the generator's state alone."""

    def __init__(
        self, store: Episodes, which: Int64[np.ndarray, "_"], unit: float = 1.0, from_start: bool = False
    ) -> None:
        """See `Pool.of`."""
        self.store, self.unit, self.from_start = store, unit, from_start
        self.order = which[np.argsort(-store.lengths[which], kind="stable")]
        self.length = torch.from_numpy(store.lengths[self.order])
        self.lengths = tuple(self.length.tolist())
        self._readers = ThreadPoolExecutor(THREADS, thread_name_prefix="windows")

    def __call__(self, n: int, steps: int, generator: torch.Generator) -> Clip:
        """`n` windows of `steps` consecutive steps; of different episodes where there are enough of them."""
        which, begin = drawn(self.length, self.lengths, n, steps, self.from_start, generator)
        height, width, channels = self.store.kind.frame_shape
        # NumPy asks for huge pages: in memory of torch's own, four fifths of the time would go into 4 kB ones.
        x = np.empty((n, steps, channels, height, width), np.float32)

        def read(k: int, i: int, first: int) -> Episode:
            window = self.store.window(int(self.order[i]), first, steps)
            # In two steps, each of which is several times as fast as both at once.
            np.divide(np.ascontiguousarray(window.frames.transpose(0, 3, 1, 2)), np.float32(255), out=x[k])
            return window

        windows = list(self._readers.map(read, range(n), which.tolist(), begin.tolist()))
        every = {name: [getattr(window, name) for window in windows] for name in ("actions", "poses", "start")}
        batch: dict[str, Any] = {name: np.stack(parts) for name, parts in every.items() if parts[0] is not None}
        return Clip(torch.from_numpy(x), *moves_of(Episode(windows[0].frames, **batch), self.store.kind, self.unit))
