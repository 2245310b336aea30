"""Our own store as one of the formats."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from gtmsm.episodes.episode import Episode, Kind
from gtmsm.episodes.formats.rows import about, appearing, frame_shape, gather

NAME = "store"
ROOT = "zarr.json"
BATCH = 2**24
"""Bytes of frames that are appended at once."""


def fits(path: Path) -> bool:
    """Whether a path is a store."""
    return (path / ROOT).is_file()


def read(path: Path, size: int | None = None) -> tuple[Kind, Iterator[Episode]]:
    """Return the kind of the episodes, and an iterator over them."""
    from gtmsm.episodes.store import Store  # here, since it needs the extra `own`

    store = Store.open(path)
    with about(path):
        kind = replace(store.kind, frame_shape=frame_shape(store.kind.frame_shape, size))
    return kind, (_scaled(store.episode(i), kind) for i in range(len(store)))


def _scaled(episode: Episode, kind: Kind) -> Episode:
    return replace(episode, frames=gather([episode.frames], episode.steps, kind))


def write(path: Path, kind: Kind, episodes: Iterable[Episode]) -> None:
    """Write a new store."""
    from gtmsm.episodes.store import Store

    with appearing(path) as made, Store.create(made, kind) as store:
        batch: list[Episode] = []
        for episode in episodes:
            batch.append(episode)
            if sum(one.frames.nbytes for one in batch) > BATCH:
                store.append(*batch)
                batch = []
        store.append(*batch)
