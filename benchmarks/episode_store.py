"""A store of 100,000 clips: how fast it opens, how many windows a second it gives, how much memory it takes.

    .venv/bin/python benchmarks/episode_store.py --seconds 600 --plot docs/store-memory.png
    .venv/bin/python benchmarks/episode_store.py --kills 500

Clips are walks through our rooms, 300 frames of 32x32. A part of 32 is recorded, and appears many times by hard links,
so a store of 100,000 takes 20 MB of disk: what is measured is everything but the disk itself. `--kills` kills a process
that appends, before each of its writes in turn and then at random moments, and looks at what is left.
"""

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}

import numpy as np  # noqa: E402
import torch  # noqa: E402
from dying import fork, killed_at  # noqa: E402

from gtmsm.data.windows import record_windows  # noqa: E402
from gtmsm.episodes.episode import Episode, Kind  # noqa: E402
from gtmsm.episodes.store import Store  # noqa: E402
from gtmsm.episodes.store_manifest import MANIFEST, Manifest  # noqa: E402
from gtmsm.episodes.store_part import as_json, descriptions  # noqa: E402
from gtmsm.episodes.store_verify import verify  # noqa: E402
from gtmsm.episodes.windows import StoreWindows  # noqa: E402
from gtmsm.experiments import RoomsSetting  # noqa: E402
from gtmsm.files import OURS  # noqa: E402
from gtmsm.presets import PRESETS  # noqa: E402

PART, STEPS, BATCH, WINDOW = 32, 300, 32, 180


def rooms() -> tuple[Kind, list[Episode]]:
    """Walks through rooms, as an engine would give them."""
    experiment = PRESETS["walk"][1]
    setting = RoomsSetting(experiment, torch.device("cpu"))
    world = setting._draw(8, 1, experiment.slip)
    clips = record_windows(world, setting.walker, PART, STEPS, torch.Generator().manual_seed(0))
    frames = clips.frames.permute(0, 1, 3, 4, 2).contiguous().numpy()
    poses, actions = clips.true_pose.numpy().astype(np.float32), clips.a.argmax(-1).numpy()
    kind = Kind(frames.shape[2:], tuple(world.action_names), len(world.action_names), poses.shape[-1], "rooms")
    return kind, [Episode(frames[i], actions[i], poses[i], poses[i, 0], f"{i}", i) for i in range(PART)]


def many(path: Path, kind: Kind, walks: list[Episode], clips: int) -> None:
    """A store in which one part appears again and again."""
    with Store.create(path, kind) as store:
        store.append(*walks)
        pattern, manifest, parts = path / "0" / "000000", store.manifests["0"], []
        for number in range(clips // PART):
            parts.append(replace(manifest.parts[0], number=number, origin=number))
            folder = path / "0" / parts[-1].folder
            if number:
                shutil.copytree(pattern, folder, copy_function=os.link)
                (folder / "zarr.json").unlink()
                (folder / "zarr.json").write_bytes(as_json(descriptions(parts[-1], store.arrays)["zarr.json"]))
        Manifest.write(path / "0" / MANIFEST, kind, parts)


def resident() -> float:
    """Megabytes of memory of this process that are not pages of files."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) / 1024


def read(path: Path, seconds: float, tell: Callable[[str], None]) -> list[tuple[float, float, float]]:
    """Windows at random for a while; time, memory and windows a second, of each second."""
    began = time.perf_counter()
    store = Store.open(path)
    count = len(store)
    tell(f"{count:,} clips open in {time.perf_counter() - began:.3f} s; manifest {_size(path):.1f} MB")
    tell(f"{count:,} clips, bytes by two threads: {_speeds(_bytes_of(store), min(seconds, 10))}")
    windows, generator = StoreWindows(store, np.arange(count)), torch.Generator().manual_seed(0)

    def batch() -> int:
        windows(BATCH, WINDOW, generator)
        return BATCH

    rows: list[tuple[float, float, float]] = []
    tell(f"{count:,} clips, batches of floats: {_speeds(batch, seconds, rows)}")
    memory = [row[1] for row in rows]
    tell(f"{count:,} clips: memory {memory[0]:.0f} MB at first, {memory[-1]:.0f} at the end, {max(memory):.0f} at most")
    return rows


def _speeds(work: Callable[[], int], seconds: float, rows: list[tuple[float, float, float]] | None = None) -> str:
    """Windows a second, and time of a core for each: what others do on the machine changes the former."""
    work()
    rows, start, cpu, total = [] if rows is None else rows, time.perf_counter(), time.process_time(), 0
    while time.perf_counter() < start + seconds:
        began, done = time.perf_counter(), 0
        while time.perf_counter() < began + 1:
            done += work()
        total += done
        rows.append((time.perf_counter() - start, resident(), done / (time.perf_counter() - began)))
    speed, used = np.array([row[2] for row in rows]), time.process_time() - cpu
    each = 1_000 * used / total
    return f"{np.median(speed):,.0f} windows a second, best {speed.max():,.0f}; {each:.2f} ms of a core for each"


def _bytes_of(store: Store) -> Callable[[], int]:
    """Windows as bytes, without what training on a CPU makes of them."""
    draw, pool = np.random.default_rng(0), ThreadPoolExecutor(2)

    def work() -> int:
        which, first = draw.integers(len(store), size=128), draw.integers(STEPS - WINDOW + 1, size=128)
        list(pool.map(lambda i, begin: store.window(int(i), int(begin), WINDOW) and None, which, first))
        return len(which)

    return work


def _size(path: Path) -> float:
    return sum(file.stat().st_size for file in path.glob(f"*/{MANIFEST}")) / 1e6


def plot(rows: list[tuple[float, float, float]], clips: int, path: Path) -> None:
    """Memory and speed over time."""
    import matplotlib.pyplot as plt

    t, memory, speed = zip(*rows, strict=True)
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(7, 4.8), layout="constrained")
    figure.suptitle(f"Random windows of {WINDOW} steps from a store of {clips:,} clips of {STEPS} frames, 32x32x3")
    above.plot(t, memory, color="tab:blue")
    above.set(ylabel="memory of the process, MB", ylim=(0, 1.2 * max(memory)))
    above.set_title(f"{memory[0]:.0f} MB after a second, {memory[-1]:.0f} MB at the end", fontsize=9)
    below.plot(t, speed, lw=0.8, color="tab:orange")
    below.axhline(np.median(speed), lw=0.8, ls="--", color="grey")
    below.set(ylabel="windows a second", xlabel="seconds", ylim=(0, 1.1 * max(speed)))
    below.set_title(f"batches of floats on two cores, shared with others: median {np.median(speed):.0f}", fontsize=9)
    figure.savefig(path, dpi=110)


# ---- kills

TOY = Kind((4, 4, 3), ("a", "b"), 2, 2)


def toy(seed: int) -> Episode:
    draw = np.random.default_rng(seed)
    poses = draw.normal(size=(41, 2)).astype(np.float32)
    frames = draw.integers(0, 256, (40, 4, 4, 3), np.uint8)
    return Episode(frames, draw.integers(0, 2, 40), poses[1:], poses[0], f"{seed % 3}", seed)


def append(path: Path, batches: int = 3) -> None:
    """Batches of two, from where it stopped."""
    with Store.create(path, TOY) as store:
        for first in range(len(store), 2 * batches, 2):
            store.append(toy(first), toy(first + 1))


def wrong(path: Path) -> str:
    """What is not as it should be after a kill, and after going on."""
    if (path / "zarr.json").exists():
        store = Store.open(path)
        if len(store) % 2 or store.seeds.tolist() != list(range(len(store))):
            return f"episodes {store.seeds}"
    append(path)
    store = Store.open(path)
    for i in range(6):
        if len(store) != 6 or not np.array_equal(store.episode(i).frames, toy(i).frames):
            return f"episode {i} of {len(store)} is not what was appended"
    litter = [name for name in os.listdir(path / "0") if OURS.fullmatch(name)]
    return "; ".join([*verify(path), *litter])


def kill(kills: int, home: Path) -> None:
    draw, bad, boundaries = random.Random(0), [], 0
    began = time.perf_counter()
    os.waitpid(fork(partial(append, home / "whole")), 0)
    duration = time.perf_counter() - began
    for trial in range(1, kills + 1):
        path = home / f"{trial}"
        if boundaries == 0:  # each write in turn, until there are no more
            ended = killed_at(trial, partial(append, path))
            boundaries = 0 if ended else trial - 1
        else:
            child = fork(partial(append, path))
            time.sleep(draw.uniform(0, duration))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if problem := wrong(path):
            bad.append(f"kill {trial}: {problem}")
        shutil.rmtree(path)
    print(f"{kills} kills, {boundaries} of them one before each write; wrong: {len(bad)}", *bad, sep="\n")
    sys.exit(bool(bad))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--seconds", type=float, default=10, help="to read windows of each store")
    parser.add_argument("--plot", type=Path, help="memory over time, of the last store")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.read:
        rows = read(flags.read, flags.seconds, partial(print, flush=True))
        if flags.plot:
            plot(rows, len(Store.open(flags.read)), flags.plot)
        return
    with tempfile.TemporaryDirectory() as name:
        if flags.kills:
            kill(flags.kills, Path(name))
        kind, walks = rooms()
        for clips in flags.clips:
            path = Path(name) / str(clips)
            many(path, kind, walks, clips)
            more = ["--plot", str(flags.plot)] if flags.plot and clips == flags.clips[-1] else []
            words = ["--read", str(path), "--seconds", str(flags.seconds), *more]
            subprocess.run([sys.executable, __file__, *words], check=True)
    print(f"most memory of any process: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
