"""What can be asked for by name."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch

from gtmsm.bench import drawing, imagining, scans, search
from gtmsm.bench.sizes import Sizes
from gtmsm.bench.task import Task
from gtmsm.bench.updates import AS_FAST_AS, updates_of

Entry: TypeAlias = Callable[[Sizes, torch.device], Iterator[Task]]
"""Sets up, and yields what to time: one thing after the other, so that each has the memory to itself."""

ENTRIES: dict[str, Entry] = {
    **{preset: updates_of(preset) for preset in AS_FAST_AS},
    "rollouts": scans.rollouts,
    "imagine": imagining.imagine,
    "decoder": imagining.decoder,
    "nearest": search.nearest_of_many,
    "long-memory": search.long_memories,
    "walled-scan": scans.walled,
    "landmark-scan": scans.landmarks,
    "raycast": drawing.drawn_frames,
}
UPDATES = tuple(AS_FAST_AS)
"""Those of them that `--profile` looks into."""
