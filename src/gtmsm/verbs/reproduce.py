"""`gtmsm reproduce`: rows of the table trained and scored, and the pages made of them."""

import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from gtmsm.config import Device
from gtmsm.flags import parse, plain_console

if TYPE_CHECKING:
    from gtmsm.reproduce.results import Result

SWEPT = (0.33, 1.0, 3.0)
"""Factors of the learning rate that are tried on validation places, where the full table is made."""


@dataclass(frozen=True)
class ReproduceFlags:
    """Train rows of the table, score them on fixed sets, and write the table: every row from a real training."""

    rows: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Names of rows, in which * stands for anything: "image-walk", "image-walk/gru", "rotate*". Default: all."""
    quick: bool = False
    """Toy size, for two CPU cores and a quarter of an hour: shorter clips, few updates, one seed."""
    list: bool = False
    """Only say which rows there are."""
    out: Path = Path("reproduced")
    """Folder of the results, one JSON file for each row and seed. What is there already is not made again."""
    seeds: tuple[int, ...] | None = None
    """Seeds to train; default: 5 of GTM-SM, 3 of each rival, 5 of an ablation; with --quick one each."""
    images: str | None = None
    """A .npz of pictures for the image walks: with CelebA's the rows are the paper's."""
    sweep: tuple[float, ...] | None = None
    """Factors of the learning rate to try with seed 0, chosen on validation places; default: 0.33 1 3, with --quick
    none. Ablations keep the preset's."""
    share: float = 1.0
    """Of the updates of every row, its curriculum included: to see a table earlier. Results say how many there were."""
    workers: int | None = None
    """Processes that train at the same time; default: one on a GPU, on a CPU one for each core. For several on a GPU
    start `nvidia-cuda-mps-control -d` first, or they take turns."""
    pages: bool = True
    """Write the table and its plots in the end."""
    videos: bool = True
    """Write the paper's videos in the end, a walk in each world by seed 0: where it is, truth, imagined (App. B)."""
    device: Device = "auto"
    """Where to train."""


def reproduce(words: list[str]) -> int:
    """Make rows of the table, then its pages; 1 where a row failed, 128 and the signal's number where one ended it."""
    flags = parse(ReproduceFlags, words, "gtmsm reproduce", ReproduceFlags())
    from gtmsm.reproduce import Order, choose_rows
    from gtmsm.reproduce import reproduce as make
    from gtmsm.reproduce.results import read_results
    from gtmsm.reproduce.trial import Interrupted

    console = plain_console()
    rows = choose_rows(flags.rows, flags.quick)
    if flags.list:
        for row in rows:
            console.print(f"  {row.name:<32} {row.about}", soft_wrap=True)
        return 0
    sweep = ((1.0,) if flags.quick else SWEPT) if flags.sweep is None else flags.sweep
    order = Order(
        flags.out, flags.quick, flags.device, flags.images, _workers(flags),
        () if sweep == (1.0,) else sweep, flags.share,
    )  # fmt: skip
    began = time.monotonic()
    try:
        failed = make(rows, flags.seeds, order, lambda line: console.print(line, soft_wrap=True))
    except Interrupted as stopped:
        console.print(str(stopped), soft_wrap=True)
        return 128 + stopped.signal
    took = (time.monotonic() - began) / 60
    console.print(f"trained and scored in {took:.1f} minutes, {order.workers} at once", soft_wrap=True)
    for one in failed:
        console.print(f"failed: {one.row}, seed {one.seed}: {one.why}", soft_wrap=True)
    results = read_results(flags.out)
    if flags.pages and results:
        from gtmsm.reproduce.pages import write_pages

        made = write_pages(flags.out, results, f"gtmsm reproduce {shlex.join(words)}".strip())
        console.print(f"table: {made[0]}", soft_wrap=True)
    if flags.videos:
        for result in results:
            if result.row in {row.name for row in rows}:
                _film(result, flags, console)
    return 1 if failed else 0


def _workers(flags: ReproduceFlags) -> int:
    """As many as asked for; on a CPU one for each core, since a training of these sizes gains little by a second."""
    from gtmsm.training.engine import choose_device

    if flags.workers is not None:
        return flags.workers
    return os.cpu_count() or 1 if choose_device(flags.device).type == "cpu" else 1


def _film(result: "Result", flags: ReproduceFlags, console: Console) -> None:
    """The video of a world, by its own tau and horizon; none where there is one, or where its training is gone."""
    from gtmsm.film import film_imagination
    from gtmsm.reproduce.rows import WORLDS
    from gtmsm.run import Run
    from gtmsm.training.engine import choose_device

    out = flags.out / f"{result.row}.mp4"
    if result.row not in WORLDS or result.seed or out.exists():
        return
    folders = sorted(flags.out.glob(f"runs/{result.row}-seed0*/"))  # of each learning rate that was tried
    runs = [Run.open(folder) for folder in folders if (folder / "config.yaml").is_file()]
    rate, scores = result.facts["learning_rate"], next(iter(result.facts["scores"].values()))
    for run in runs:
        if run.experiment.training.optimiser.learning_rate == rate:
            console.print(film_imagination(
                run, actions="", picture=None, images=flags.images, places=None, steps=scores["horizon"],
                tau=scores["tau"], seed=0, sample=False, out=out, device=choose_device(flags.device),
            ), soft_wrap=True)  # fmt: skip
            return
