"""Kill a training or a recording, resume it, and compare what it leaves with an undisturbed one, bit for bit.

    .venv/bin/python benchmarks/kill_trials.py --kills 300 --verbs 20
    .venv/bin/python benchmarks/kill_trials.py --kills 0 --recordings 40

Half of the kills come at a random moment, the others at a write boundary: before the n-th time that a file of the run
is opened, renamed, removed or locked. A terminal is really closed. Every third run is killed again while it is resumed.
A training is a fork of a process that has imported everything already, so it takes a fraction of a second. `--verbs`
starts real processes of other verbs, which are interrupted while they import, or work.

`--recordings` first kills a recording at each of its write boundaries, one after the other: at the n-th file that is
opened, renamed, removed or locked, flushed, or half written. Then it kills that many real processes with two workers at
random moments: the parent by any signal, or one of the workers.
"""

import argparse
import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}

import lightning_fabric  # noqa: E402, F401
import numpy as np  # noqa: E402
import tensorboard.compat.proto.event_pb2  # noqa: E402
import tensorboard.summary.writer.record_writer  # noqa: E402, F401
import torch  # noqa: E402

import gtmsm.run  # noqa: E402, F401
import gtmsm_command  # noqa: E402
from gtmsm import cli  # noqa: E402
from gtmsm.episodes import clips  # noqa: E402
from gtmsm.episodes.store import Store  # noqa: E402
from gtmsm.files import OURS, read_tensors  # noqa: E402

TRAIN = ("train", "image-walk-small")
TOY = """
--world.size 20 --model.vae.width 16 --model.vae.code-size 4 --batch 2 --tau 8 --horizon 2 --warm-up 3 --grow 3 3
--updates 12 --prospect.candidates 32 --prospect.rounds 1 --prospect.restarts 1 --prospect.clips 2 --prospect.tau 6
--prospect.horizon 2 --log-every 2 --watch-every 6 --save-every 4 --evaluation.tau 8 --evaluation.horizon 4
--evaluation.clips 2 --device cpu --no-evaluate
"""
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
CAUGHT = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
WRITES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "fcntl.flock"}
UNLISTED = "that manifest.jsonl does not list"
"""What is said of a part that was whole when its writer was killed; whoever goes on writing lists it."""
LEFT = ("checkpoint.safetensors", "weights.safetensors", "metrics.jsonl")


def left_in(run: Path) -> dict[str, bytes]:
    """Everything that a run leaves, to the bit."""
    return {name: (run / name).read_bytes() for name in LEFT}


def start(
    words: list[str], log: Path, *, terminal: bool = False, at_write: tuple[int, int] = (0, 0), flag: str = "--run"
) -> tuple[int, int]:
    """Fork a process that runs the command, maybe in a terminal; `at_write`: at its n-th write it is sent a signal.

    Writes are those to the folder that the command is given by `flag`.
    """
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)
    child, master = pty.fork() if terminal else (os.fork(), -1)
    if child:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, CAUGHT)
        return child, master
    code = 70
    torch.set_num_threads(1)  # those of the parent are not there any more
    try:
        if not terminal:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.dup2(handle, 1), os.dup2(handle, 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w") for number in (1, 2))
        for number in CAUGHT:  # whatever our parent ignores
            signal.signal(number, signal.SIG_DFL)
        run, sys.argv = cli.main, ["gtmsm", *words]

        def begin() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, CAUGHT)
            hook = _at_write(words[words.index(flag) + 1], log, *at_write)
            sys.addaudithook(hook)
            if flag == "--out":
                _count_in_parts(hook, words[words.index(flag) + 1])
            run()

        cli.main = begin
        gtmsm_command.main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        import traceback

        with log.open("a") as file:
            traceback.print_exc(file=file)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _at_write(run: str, log: Path, n: int, number: int) -> Callable[[str, tuple[object, ...]], None]:
    """Counts writes of a process to its run; the n-th sends it a signal. The count is left beside the log."""
    count = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event not in WRITES or (event != "fcntl.flock" and run not in str(arguments[0])):
            return
        count += 1
        if n == 0 and event == "os.remove":
            os.lseek(counted, 0, os.SEEK_SET)
            os.write(counted, str(count).encode())
        if count == n:
            os.kill(os.getpid(), number)

    counted = os.open(log.with_suffix(".writes"), os.O_WRONLY | os.O_CREAT, 0o666) if n == 0 else -1
    return hook


def _count_in_parts(hook: Callable[[str, tuple[object, ...]], None], out: str) -> None:
    """Flushes are write boundaries, too, and so is the middle of a manifest's line; each clip is stored by itself."""
    clips.SOONEST = clips.LATEST = 0.0
    write, flush = os.pwrite, os.fsync

    def torn(handle: int, content: bytes, offset: int) -> int:
        write(handle, content[: len(content) // 2], offset)
        hook("open", (out,))
        return write(handle, content, offset)

    def flushed(handle: int) -> None:
        hook("open", (out,))
        flush(handle)
        hook("open", (out,))

    os.pwrite, os.fsync = torn, flushed


def wait(child: int, master: int = -1) -> int:
    """How a process ended, as a shell says it; its terminal is read meanwhile."""
    while master >= 0:
        try:
            if not os.read(master, 4096):
                break
        except OSError:
            break
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def problems(run: Path, code: int, number: int, said: str) -> list[str]:
    """What is wrong right after a kill."""
    wrong = []
    if code not in (0, -9 if number == signal.SIGKILL else 128 + number):
        wrong.append(f"exit code {code} after signal {number}")
    if "Traceback" in said or "Exception ignored" in said:
        wrong.append(f"a traceback: {said[-2000:]}")
    for name in LEFT[:2]:
        if (run / name).exists():
            try:
                read_tensors(run / name)
            except ValueError as problem:
                wrong.append(str(problem))
    return wrong


def trial(folder: Path, images: Path, whole: Path, duration: float, writes: int, draw: random.Random) -> list[dict]:
    """Kill a run once or twice, then let it end; a row for each kill."""
    run, log, rows = folder / "run", folder / "log", []
    begin = [*TRAIN, *TOY.split(), "--images", str(images), "--run", str(run)]
    resume = [*TRAIN, "--run", str(run), "--resume", "--device", "cpu", "--no-evaluate"]
    for _ in range(2 if draw.random() < 1 / 3 else 1):
        words = resume if (run / "config.yaml").exists() else begin
        number = draw.choice(SIGNALS)
        kind = draw.choice(("moment", "write"))
        log.unlink(missing_ok=True)
        if kind == "write":
            code = wait(*start(words, log, at_write=(draw.randint(1, writes), number)))
        else:
            terminal = number == signal.SIGHUP and draw.random() < 0.5
            kind = "terminal closed" if terminal else kind
            child, master = start(words, log, terminal=terminal)
            late = draw.random() < 0.7  # setting up takes longer than training
            while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) and (
                os.getsid(child) != child if terminal else late and not (run / "config.yaml").exists()
            ):
                time.sleep(0.002)
            time.sleep(draw.uniform(0, duration / 2 if late else duration))
            if terminal:
                os.set_blocking(master, False)
                os.close(master)
            else:
                os.kill(child, number)
            code = wait(child)
        said = log.read_text(errors="replace") if log.exists() else ""
        rows.append({
            "kind": kind, "signal": signal.Signals(number).name, "ended": code == 0,
            "unsaved": not (run / LEFT[0]).exists(), "unmade": not (run / "config.yaml").exists(),
            "wrong": problems(run, code, number, said),
        })  # fmt: skip
    log.unlink(missing_ok=True)
    code = wait(*start(resume if (run / "config.yaml").exists() else begin, log))
    if code:
        rows[-1]["wrong"].append(f"not resumed: {log.read_text(errors='replace')}")
    else:
        different = [name for name, bits in left_in(run).items() if bits != (whole / name).read_bytes()]
        litter = [name for name in os.listdir(run) if OURS.fullmatch(name)]
        rows[-1]["wrong"] += [f"{name} differs" for name in different] + [f"{name} is left over" for name in litter]
    return rows


def contents(store: Path) -> dict[int, tuple]:
    """The clips of a store by their seeds, and that nothing is wrong with it."""
    if not store.exists() or not any(not OURS.fullmatch(name) for name in os.listdir(store)):
        return {}
    there = Store.open(store)
    problems = [problem for problem in there.verify() if UNLISTED not in problem]
    if problems or len(set(there.seeds)) < len(there):
        raise ValueError(f"{problems}, seeds {there.seeds}")
    found = map(there.episode, range(len(there)))
    return {one.seed: (one.frames.tobytes(), one.actions.tobytes(), one.poses.tobytes(), one.place) for one in found}


def check_recording(words: list[str], store: Path, whole: dict[int, tuple], row: dict, log: Path) -> dict:
    """What was stored is there and right; resumed, all is there once and as if nothing had happened."""
    row |= {"unmade": False, "unsaved": False, "ended": False}
    try:
        before = contents(store)
        row |= {"unmade": not before, "unsaved": not before, "ended": before.keys() == whole.keys()}
        row["wrong"] += [f"clip {seed} differs" for seed in before if before[seed] != whole[seed]]
        log.unlink(missing_ok=True)
        if code := wait(*start(words, log, flag="--out")):
            row["wrong"].append(f"not resumed ({code}): {log.read_text(errors='replace')}")
        after = contents(store)
        row["wrong"] += ["what is there after resuming differs"] * (after != whole)
        litter = [str(path) for path in store.rglob("*") if OURS.fullmatch(path.name)]
        row["wrong"] += [f"{path} is left over" for path in litter]
    except ValueError as problem:
        row["wrong"].append(str(problem))
    shutil.rmtree(store, ignore_errors=True)
    return row


def workers_of(parent: int) -> list[int]:
    """The workers of a recording: processes that a child of its own has forked."""
    ancestors: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            ancestors[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return [child for child, above in ancestors.items() if ancestors.get(above) == parent]


def record_trials(kills: int, seed: int, home: Path, images: Path) -> list[dict]:
    """A row for each kill of a recording."""
    draw, store, log, rows = random.Random(seed), home / "store", home / "log", []
    settings = ["--env-kwargs", json.dumps({"images": str(images), "size": 20}), "--walker", "random", "--size", "0"]
    words = ["record", "gtmsm/ImageWalk-v0", *settings, "--clips", "3", "--steps", "5", "--out", str(store)]
    here = [*words, "--workers", "0"]
    if wait(*start(here, log, flag="--out")):
        raise SystemExit(log.read_text())
    whole, writes = contents(store), int(log.with_suffix(".writes").read_text())
    shutil.rmtree(store)
    for n in range(1, writes + 1):
        for number in (signal.SIGKILL, signal.SIGTERM) if n % 8 == 0 else (signal.SIGKILL,):
            log.unlink(missing_ok=True)
            code = wait(*start(here, log, at_write=(n, number), flag="--out"))
            said = log.read_text(errors="replace") if log.exists() else ""
            row = {"kind": "record, write", "signal": signal.Signals(number).name}
            row["wrong"] = problems(store, code, number, said)
            rows.append(check_recording(here, store, whole, row, log))
    clip = ["--clips", "200", "--steps", "40"]
    long, longer = ([word for word in words] for _ in range(2))
    for words_, workers in ((long, "2"), (longer, "0")):
        words_[words_.index("--clips") : words_.index("--clips") + 4] = clip
        words_ += ["--workers", workers]
    if wait(*start(longer, log, flag="--out")):
        raise SystemExit(log.read_text())
    whole = contents(store)
    shutil.rmtree(store)
    for _ in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-c", "from gtmsm_command import main; main()", *long], stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL, text=True, preexec_fn=lambda: [signal.signal(n, signal.SIG_DFL) for n in CAUGHT],
        )  # fmt: skip
        while process.poll() is None and not (store.exists() and len(os.listdir(store)) > 1):
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 2))
        victims = workers_of(process.pid) if draw.random() < 0.3 else []
        number = signal.SIGKILL if victims else draw.choice(SIGNALS)
        os.kill(draw.choice(victims or [process.pid]), number) if process.poll() is None else None
        _, told = process.communicate(timeout=120)
        fits = process.returncode in ((0, 1) if victims else (0, -9 if number == signal.SIGKILL else 128 + number))
        row = {"kind": f"record, {'a worker' if victims else 'moment'}", "signal": signal.Signals(number).name}
        row["wrong"] = [] if fits and "Traceback" not in told else [f"{process.returncode}: {told}"]
        time.sleep(0.5)  # in which orphans end
        rows.append(check_recording(longer, store, whole, row, log))
    return rows


def interrupt_verb(verb: list[str], folder: Path, draw: random.Random) -> dict:
    """A real process that is interrupted while it imports or works."""
    number = draw.choice(sorted(CAUGHT))
    process = subprocess.Popen(
        [sys.executable, "-c", "from gtmsm_command import main; main()", *verb],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        cwd=folder, preexec_fn=lambda: [signal.signal(n, signal.SIG_DFL) for n in CAUGHT],
    )  # fmt: skip
    status = Path(f"/proc/{process.pid}/status")
    while not int(re.findall(r"SigCgt:\s*(\w+)", status.read_text())[0], 16) & 1:  # SIGHUP is caught
        time.sleep(0.001)
    time.sleep(draw.choice((draw.uniform(0, 0.5), draw.uniform(0, 6))))
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    told = "".join(line for line in told.splitlines(True) if not line.startswith("scoring "))
    fine = (process.returncode, told) in ((128 + number, "gtmsm: interrupted\n"), (0, ""))
    litter = [str(path) for path in folder.rglob("*") if OURS.fullmatch(path.name)]
    return {
        "kind": f"real {verb[0]}", "signal": signal.Signals(number).name, "ended": process.returncode == 0,
        "unsaved": False, "unmade": False, "wrong": litter + ([] if fine else [f"{process.returncode}: {told}"]),
    }  # fmt: skip


def work(worker: int, kills: int, verbs: int, seed: int, home: Path, images: Path) -> list[dict]:
    """One worker's share."""
    draw, rows, whole = random.Random(f"{seed} {worker}"), [], home / f"whole-{worker}"
    words = [*TRAIN, *TOY.split(), "--images", str(images), "--run", str(whole)]
    log, began = home / f"log-{worker}", time.monotonic()
    if wait(*start(words, log)):
        raise SystemExit(log.read_text())
    duration, writes = time.monotonic() - began, int(log.with_suffix(".writes").read_text())
    while len(rows) < kills:
        folder = home / f"{worker}-{len(rows)}"
        folder.mkdir()
        rows += trial(folder, images, whole, duration, writes, draw)
        shutil.rmtree(folder)
    shutil.copytree(whole, home / f"verbs-{worker}" / "run")
    run = str(home / f"verbs-{worker}" / "run")
    for _ in range(verbs):
        verb = draw.choice((["evaluate", run], ["imagine", run, "--tau", "8"], ["record", run, "walk.npz"], ["bench"]))
        rows.append(interrupt_verb(verb, home / f"verbs-{worker}", draw))
    return rows


def write_images(path: Path) -> None:
    """Noise to walk over."""
    colours = np.random.default_rng(0)
    np.savez(path, **{part: colours.integers(0, 256, (8, 20, 20, 3), np.uint8) for part in ("train", "test")})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--verbs", type=int, default=0, help="real processes of other verbs to interrupt")
    parser.add_argument("--recordings", type=int, default=-1, help="recordings to kill at random; 0: at writes only")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        home, images = Path(name), Path(name) / "images.npz"
        write_images(images)
        children = []
        for worker in range(flags.workers):
            children.append(os.fork())
            if not children[-1]:
                share = [amount // flags.workers + (worker < amount % flags.workers) for amount in
                         (flags.kills, flags.verbs)]  # fmt: skip
                rows = work(worker, *share, flags.seed, home, images) if any(share) else []
                (home / f"rows-{worker}").write_text(json.dumps(rows))
                os._exit(0)
        for child in children:
            os.waitpid(child, 0)
        rows = [row for worker in range(flags.workers) for row in json.loads((home / f"rows-{worker}").read_text())]
        if flags.recordings >= 0:
            rows += record_trials(flags.recordings, flags.seed, home, images)
    table: dict[str, Counter] = {}
    for row in rows:
        counts = table.setdefault(f"{row['kind']}, {row['signal']}", Counter())
        counts.update(kills=1, wrong=int(bool(row["wrong"])))
        counts.update({key: int(row[key]) for key in ("unmade", "unsaved", "ended")})
    print("| killed at | kills | before there was anything | before anything was saved | after the end | wrong |")
    print("|---|---|---|---|---|---|")
    table["all"] = sum((counts for _, counts in sorted(table.items())), Counter())
    for name, c in sorted(table.items(), key=lambda item: (item[0] == "all", item[0])):
        print(f"| {name} | {c['kills']} | {c['unmade']} | {c['unsaved']} | {c['ended']} | {c['wrong']} |")
    wrong = [problem for row in rows for problem in row["wrong"]]
    print(
        f"{len(rows)} kills in {time.monotonic() - began:.0f} s; all that was resumed is equal bit for bit"
        * (not wrong)
    )
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
