"""`gtmsm reproduce`: train and score rows of the table, and write the pages made of them."""

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
"""Factors of the learning rate that are tried on validation places for the full table."""


@dataclass(frozen=True)
class ReproduceFlags:
    """Train rows of the table, score them on fixed sets, and write the table from these trainings."""

    rows: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Names of rows, in which * stands for anything: "image-walk", "image-walk/gru", "rotate*". Default: all."""
    quick: bool = False
    """Toy size, for two CPU cores and a quarter of an hour: shorter clips, few updates, one seed."""
    list: bool = False
    """Only list the rows."""
    out: Path = Path("reproduced")
    """Folder of the results, one JSON file for each row and seed. Results that exist are not made again."""
    seeds: tuple[int, ...] | None = None
    """Seeds to train; default: 5 seeds of GTM-SM, 3 of each rival, 5 of an ablation; with --quick one of each."""
    images: str | None = None
    """A .npz of pictures for the image walks; with those of CelebA the rows are the paper's."""
    sweep: tuple[float, ...] | None = None
    """Factors of the learning rate to try with seed 0; the best is chosen on validation places. Default: 0.33 1 3, with
    --quick none. Ablations keep the rate of the preset."""
    share: float = 1.0
    """Fraction of the updates of every row, including its curriculum: for a quicker table. Results state the number."""
    workers: int | None = None
    """Number of processes that train at the same time; default: one on a GPU, one per core on a CPU. For several on a
    GPU start `nvidia-cuda-mps-control -d` first, or they take turns."""
    pages: bool = True
    """Write the table and its plots at the end."""
    videos: bool = True
    """Write the paper's videos at the end, one walk in each world by seed 0: position, truth, imagined (App. B)."""
    device: Device = "auto"
    """Device to train on; auto takes a GPU if there is one."""


def reproduce(words: list[str]) -> int:
    """Make rows of the table, then its pages; return 1 if a row failed, 128 plus its number if a signal ended it."""
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
    sweep = ((1.0,) if flags.quick else SWEPT) if flags.sweep is None else tuple(dict.fromkeys(flags.sweep))
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

        made = write_pages(flags.out, results, f"`{shlex.join(['gtmsm', 'reproduce', *words])}`")
        console.print(f"table: {made[0]}", soft_wrap=True)
    if flags.videos:
        for result in results:
            if result.row in {row.name for row in rows}:
                _film(result, flags, console)
    return 1 if failed else 0


def _workers(flags: ReproduceFlags) -> int:
    """Number of processes; by default one per core on a CPU: small trainings gain little from a second core."""
    from gtmsm.training.engine import choose_device, cores

    if flags.workers is not None:
        return flags.workers
    return cores() if choose_device(flags.device).type == "cpu" else 1


def _film(result: "Result", flags: ReproduceFlags, console: Console) -> None:
    """Write the video of a world with its own tau and horizon, unless it exists or the run folder is gone."""
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
                run, actions="", picture=None, images=None, places=None, steps=scores["horizon"],
                tau=scores["tau"], seed=0, sample=False, out=out, device=choose_device(flags.device),
            ), soft_wrap=True)  # fmt: skip
            return
