"""Convert recordings from one format to another, and check that actions and frames are aligned."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gtmsm.config import require, require_whole
from gtmsm.episodes.alignment import Alignment, AlignmentCheck, shifted
from gtmsm.episodes.episode import Episode, Kind
from gtmsm.episodes.formats import FORMATS, format_named, open_any
from gtmsm.episodes.formats.rows import require_absent
from gtmsm.errors import did_you_mean
from gtmsm.files import as_path

SUFFIXES = {".h5": "stable-worldmodel", ".hdf5": "stable-worldmodel", ".npz": "npz"}
MOST_SHIFT = 10


@dataclass(frozen=True)
class Converted:
    """What a conversion has written."""

    kind: Kind
    format: str
    episodes: int
    steps: int
    alignment: Alignment
    shift: int
    """By how many steps the actions were shifted, as requested."""

    @property
    def lines(self) -> list[str]:
        """Report as text: what was written, how it is aligned, and a warning if that is wrong."""
        height, width, colours = self.kind.frame_shape
        actions = "actions" if self.kind.discrete else "numbers an action"
        told = f"{self.episodes:,} episodes, {self.steps:,} steps, frames {width}x{height}x{colours}"
        lines = [f"{self.format}: {told}, {self.kind.action_size} {actions}", self.alignment.line]
        if self.alignment.best not in (None, 0):
            assert self.alignment.best is not None
            fix = f"convert again with --shift {self.shift + self.alignment.best}"
            lines.append(f"warning: actions and frames do not belong together as they are paired; {fix}")
        return lines


def convert(
    source: str | Path,
    out: str | Path,
    size: int | None = None,
    shift: int = 0,
    format: str | None = None,
    camera: str | None = None,
    progress: Callable[[int], None] = lambda episodes: None,
) -> Converted:
    """Convert `source`, in any known format, to `out`: a store, unless its suffix or `format` says otherwise.

    With a `shift`, frame t is paired with action t + shift of the source. `out` appears complete or not at all.
    """
    out = as_path(out)
    require_whole("shift", shift, -MOST_SHIFT, MOST_SHIFT)
    name = format or SUFFIXES.get(out.suffix.lower(), "store")
    writers = [known for known, module in FORMATS.items() if hasattr(module, "write")]
    require(name in writers, f'cannot write the format "{name}"; {did_you_mean(name, writers)}')
    require_absent(out)
    kind, episodes = open_any(source, size, camera=camera)
    check, count, steps = AlignmentCheck(kind), 0, 0

    def passing() -> Iterator[Episode]:
        nonlocal count, steps
        for episode in episodes:
            moved = shifted(episode, shift)
            if moved is not None:
                check.add(moved)
                count, steps = count + 1, steps + moved.steps
                progress(count)
                yield moved
        require(count > 0, f"{source}: no episode has a step; nothing was written")

    format_named(name).write(out, kind, passing())
    return Converted(kind, name, count, steps, check.result(), shift)
