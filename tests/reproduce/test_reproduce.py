"""Rows of the table: which there are, in which order they are made, and what stops them."""

import errno
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone, tzinfo
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never

import pytest
import torch
from crowded import Crowded, Endless, Killed, Silent
from made_results import put
from rich.console import Console

from gtmsm.cli import main
from gtmsm.data.clip import Clip
from gtmsm.errors import InputError, NoMemoryError
from gtmsm.evaluation.controls import MeanFrame
from gtmsm.evaluation.forecasts import score_forecaster
from gtmsm.evaluation.sets import SPLITS, FixedSet, named_set
from gtmsm.reproduce import ROWS, Order, choose_rows, reproduce, results, rows, trial, work
from gtmsm.reproduce.results import read_results, result_path
from gtmsm.reproduce.trial import Trained, Trial, best, sweep_path, swept
from gtmsm.rivals.build import KINDS
from gtmsm.run import Run
from gtmsm.training.train import Diverged, Outcome
from gtmsm.verbs import reproduce as verb

# ---- rows


def test_every_world_with_rivals_has_all_of_them():
    for world in ("image-walk", "large", "rotate", "walk"):
        assert {row.rival for row in ROWS.values() if row.world == world and row.rival} == set(KINDS)


def test_every_row_is_an_experiment_that_fits_together_at_both_sizes():
    for row in ROWS.values():
        full = row.experiment(3, quick=False, images=None)
        assert full.seed == 3
        if rows.WORLDS[row.world].quick:
            toy = row.experiment(3, quick=True, images=None)
            assert toy.training.updates <= full.training.updates
            assert toy.training.optimiser.precision == "float32"


def test_an_ablation_changes_what_it_says_and_nothing_else():
    base, other = (ROWS[name].experiment(0, False, None) for name in ("image-walk", "image-walk/k-1"))
    assert other.model.recall.neighbours == 1
    assert replace(other, model=base.model) == base


def test_rows_are_chosen_by_patterns_and_a_wrong_name_is_said():
    assert [row.name for row in choose_rows(["rotate"], quick=True)] == ["rotate"]
    assert {row.world for row in choose_rows(["rotate*"], quick=True)} == {"rotate"}
    assert len(choose_rows([], quick=False)) == len(ROWS)
    assert "walk-strong" not in {row.name for row in choose_rows([], quick=True)}
    with pytest.raises(InputError, match='no row "image-walk/grou"; did you mean "image-walk/gru"'):
        choose_rows(["image-walk/grou"], quick=False)


# ---- work


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was made, in order; trials only write a result."""
    order: list[str] = []

    def run(self: Trial) -> None:
        if self.row.rival == "gru":
            raise InputError("the gru broke")
        order.append(f"{self.row.name} {self.seed}")
        put(self.out, self.row.name, self.seed, 20.0)

    def try_rate(self: Trial, factor: float) -> None:
        order.append(f"{self.row.name} x{factor:g}")
        noted = {"factor": factor, "validation": 20.0 - abs(factor - 0.5)}
        sweep_path(self.out, self.row.name, factor).write_text(json.dumps(noted))

    monkeypatch.setattr(work.Trial, "run", run)
    monkeypatch.setattr(work.Trial, "try_rate", try_rate)
    return order


def test_what_a_row_is_built_on_is_made_first_for_the_same_seeds(tmp_path: Path, made: list[str]):
    assert reproduce([ROWS["image-walk/grid-map"]], (1, 2), Order(tmp_path, quick=True), lambda line: None) == []
    assert made == ["image-walk 1", "image-walk/grid-map 1", "image-walk 2", "image-walk/grid-map 2"]


def test_controls_are_scored_with_the_first_seed_of_a_row_whichever_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first: dict[int, bool] = {}
    monkeypatch.setattr(work.Trial, "run", lambda self: first.update({self.seed: self.first}))
    assert reproduce([ROWS["image-walk"]], (4, 2, 3), Order(tmp_path, quick=True), lambda line: None) == []
    assert first == {2: True, 3: False, 4: False}


def test_a_row_that_fails_is_told_and_stops_no_other(tmp_path: Path, made: list[str]):
    chosen, said = choose_rows(["image-walk/gru", "image-walk/rssm"], quick=True), list[str]()
    failed = reproduce(chosen, None, Order(tmp_path, quick=True), said.append)
    assert [(one.row, one.why) for one in failed] == [("image-walk/gru", "the gru broke")]
    assert ["failed after" in line for line in said] == [True, False]
    assert made == ["image-walk/rssm 0"]


def test_results_that_are_there_are_not_made_again(tmp_path: Path, made: list[str]):
    put(tmp_path, "image-walk", 0, 30.0)
    before = result_path(tmp_path, "image-walk", 0).read_bytes()
    said: list[str] = []
    assert reproduce([ROWS["image-walk"]], None, Order(tmp_path, quick=True), said.append) == []
    assert made == [] and result_path(tmp_path, "image-walk", 0).read_bytes() == before
    assert said == ["1 of 1 results are there already and stay as they are"]


@pytest.mark.parametrize(
    ("order", "told"),
    [
        ({"quick": False}, "toy size True, not False; updates 700, not 50000"),
        ({"share": 0.5}, "updates 700, not 350"),
        ({"images": "faces.npz"}, "set image-walk/builtin, not image-walk/celeba"),
    ],
)
def test_results_of_another_size_share_or_images_are_refused_before_anything_is_made(
    tmp_path: Path, made: list[str], order: dict[str, Any], told: str
):
    put(tmp_path, "image-walk", 0, 30.0)
    noted = {"set": "image-walk/builtin", "factor": 3.0, "validation": 1.0, "quick": True, "updates": 700}
    for sweep in ((), (3.0,)):
        with pytest.raises(InputError, match=f"is of another order \\({told}\\); give another --out"):
            reproduce([ROWS["image-walk"]], (0, 1), Order(tmp_path, **{"quick": True, "sweep": sweep} | order), print)
        result_path(tmp_path, "image-walk", 0).unlink(missing_ok=True)
        sweep_path(tmp_path, "image-walk", 3.0).write_text(json.dumps(noted))  # what was tried counts, too
    assert made == []


def test_a_map_is_built_on_the_weights_of_the_result_whichever_rates_were_tried_since(tmp_path: Path):
    put(tmp_path, "image-walk", 0, 30.0, learning_rate=3.0 * 3e-3)  # three times the rate of the toy size
    for factor, psnr in {1.0: 9.0, 3.0: 8.0}.items():
        sweep_path(tmp_path, "image-walk", factor).write_text(json.dumps({"factor": factor, "validation": psnr}))
    with pytest.raises(InputError, match="not in .*/runs/image-walk-seed0-rate3; remove"):
        Trial(ROWS["image-walk/grid-map"], 0, tmp_path, True, "cpu", None, sweep=(1.0, 3.0))._train(1.0)


def test_weights_that_a_row_is_built_on_and_that_are_gone_are_named_with_how_to_make_them_again(tmp_path: Path):
    put(tmp_path, "image-walk", 0, 30.0)
    (failed,) = reproduce([ROWS["image-walk/grid-map"]], None, Order(tmp_path, True, "cpu"), lambda line: None)
    assert f"not in {tmp_path}/runs/image-walk-seed0" in failed.why
    assert f"remove {result_path(tmp_path, 'image-walk', 0)}" in failed.why


def test_learning_rates_are_tried_before_a_row_is_trained_by_the_best(tmp_path: Path, made: list[str]):
    order = Order(tmp_path, sweep=(0.5, 1.0))
    chosen = [ROWS["image-walk/grid-map"], ROWS["image-walk/k-1"]]
    assert reproduce(chosen, (1,), order, lambda line: None) == []
    assert made == [
        "image-walk x0.5", "image-walk x1", "image-walk 0", "image-walk/grid-map x0.5", "image-walk/grid-map x1",
        "image-walk/k-1 1", "image-walk 1", "image-walk/grid-map 1",
    ]  # fmt: skip
    assert best(swept(tmp_path, "image-walk", (0.5, 1.0))) == 0.5
    assert best(swept(tmp_path, "image-walk", (1.0,))) == 1.0  # what else was tried there does not count


@pytest.mark.parametrize("row", ["image-walk", "image-walk/gru"])
def test_a_learning_rate_is_scored_on_validation_places_and_the_test_is_never_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str
):
    factors, drawn, draw = list[float](), list[str](), FixedSet.clips

    def train(self: Trial, factor: float) -> Trained:
        factors.append(factor)
        return Trained(MeanFrame(), None, 0, 0.0, 1e-3)

    def clips(self: FixedSet) -> Iterator[Clip]:
        drawn.append(self.split)
        return draw(self)

    sets = {split: named_set("image-walk/builtin", split, quick=True) for split in SPLITS}
    expected = {split: score_forecaster(MeanFrame(), each)["psnr_pooled"] for split, each in sets.items()}
    trial._kept_set.cache_clear()
    monkeypatch.setattr(Trial, "_train", train)
    monkeypatch.setattr(FixedSet, "clips", clips)
    Trial(ROWS[row], 0, tmp_path, True, "cpu", None).try_rate(3.0)
    assert (factors, drawn) == ([3.0], ["validation"])
    assert swept(tmp_path, row, (3.0,)) == {3.0: expected["validation"]}
    assert len({*expected.values()}) == len(SPLITS)


def test_a_learning_rate_by_which_training_diverges_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def train(self: Trial, factor: float) -> Trained:
        if factor == 3.0:
            raise Diverged("training broke down")
        return Trained(MeanFrame(), None, 0, 0.0, factor * 1e-3)

    monkeypatch.setattr(Trial, "_train", train)
    order = Order(tmp_path, quick=True, device="cpu", sweep=(1.0, 3.0))
    assert reproduce([ROWS["image-walk/gru"]], (0,), order, lambda line: None) == []
    assert swept(tmp_path, "image-walk/gru", (3.0,)) == {3.0: None}
    (result,) = read_results(tmp_path)
    assert result.facts["learning_rate"] == 1e-3 and result.facts["swept"]["3"] is None
    assert best({1.0: None, 3.0: None}) == 1.0


@pytest.mark.parametrize("how", [Trial.run, lambda trial: trial.try_rate(1.0)], ids=["a seed", "a rate"])
def test_what_cannot_be_scored_is_not_trained_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[Trial], None]
):
    def lacking(source: str) -> Never:
        raise InputError(f"textures {source} are not installed")

    trial._kept_set.cache_clear()
    monkeypatch.setattr("gtmsm.worlds.rooms.load_textures", lacking)
    with pytest.raises(InputError, match="are not installed"):
        how(Trial(ROWS["walk/gru"], 7, tmp_path, True, "cpu", None))
    assert list(tmp_path.iterdir()) == []


def test_a_share_of_the_updates_keeps_the_curriculum_while_half_of_them_are_enough():
    whole, fifth = (ROWS["image-walk"].experiment(0, False, None, share).training for share in (1.0, 0.2))
    assert fifth.updates == whole.updates / 5 == 10_000
    begun = fifth.curriculum.warm_up + sum(fifth.curriculum.grow)
    assert begun == 5_000 and whole.curriculum.warm_up + sum(whole.curriculum.grow) == 6_000


# ---- a real trial


@pytest.mark.slow
def test_a_row_and_a_rival_are_trained_scored_and_put_into_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    world = rows.WORLDS["image-walk"]
    tiny = dict(world.quick) | {
        "training": {"updates": 6, "watch_every": 6, "save_every": 6},
        "training.curriculum": {"tau": 16, "horizon": 4, "warm_up": 2, "grow": ()},
        "training.prospect": {"candidates": 32, "restarts": 1, "tau": 8, "horizon": 4, "clips": 4},
        "model.vae": {"width": 16, "code_size": 4},
    }
    monkeypatch.setitem(rows.WORLDS, "image-walk", replace(world, quick=tiny))
    with pytest.raises(SystemExit) as end:
        main(
            [
                "reproduce",
                "image-walk",
                "image-walk/gru",
                "--quick",
                "--workers",
                "1",
                "--out",
                str(tmp_path),
                "--device",
                "cpu",
            ]
        )
    told = capsys.readouterr().out
    assert end.value.code == 0, told
    assert "table:" in told and f"video: {tmp_path / 'image-walk.mp4'}" in told.replace("\n", " ")
    assert [path.name for path in tmp_path.glob("*.mp4")] == ["image-walk.mp4"]
    ours, gru = read_results(tmp_path)
    assert gru.facts["parameters"] > ours.facts["parameters"] > 0
    assert set(ours.facts["controls"]["image-walk/builtin"]) >= {"mean_frame", "vae_ceiling", "best_copy"}
    for result in (ours, gru):
        scores = result.facts["scores"]["image-walk/builtin"]
        assert scores["differs"] is None
        assert len(scores["psnr_by_step"]) == scores["horizon"]
    assert "| gru |" in (tmp_path / "table.md").read_text()


def test_a_training_that_was_interrupted_is_no_result_and_its_time_counts_when_it_goes_on(tmp_path: Path):
    with pytest.raises(trial.Interrupted, match="interrupted after 3 updates") as stopped:
        trial._took(tmp_path, Outcome(3, 2.0, finished=False, signal=2))
    assert stopped.value.signal == 2
    assert trial._took(tmp_path, Outcome(9, 5.0, finished=True)) == 7.0
    with pytest.raises(trial.Interrupted):  # a signal may come in the last update: no other row may begin
        trial._took(tmp_path, Outcome(9, 1.0, finished=True, signal=15))


@pytest.mark.parametrize(
    "error",
    [
        NoMemoryError("codes of the pool of clips needs 8.0 GB and there are 4.0 free; give fewer --pool.clips"),
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        getattr(torch, "AcceleratorError", RuntimeError)("CUDA error: out of memory"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8.0 GB)"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000 bytes."),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4000000000 bytes."),
        RuntimeError("unable to mmap 4096 bytes from file <codes>: Cannot allocate memory (12)"),
        RuntimeError("std::bad_alloc"),
    ],
    ids=lambda error: repr(error)[:50],
)
def test_an_error_of_lacking_memory_is_known_by_its_kind_or_its_words(error: Exception):
    problem = work._Problem.of(error)
    assert problem.no_memory and problem.why


def test_a_tensor_that_nothing_can_hold_lacks_memory():
    with pytest.raises(RuntimeError) as told:
        torch.empty(2**60, dtype=torch.uint8)
    assert work.lacks_memory(told.value)


@pytest.mark.parametrize(
    "error",
    [
        InputError("training broke down: loss or gradient was not finite at update 3"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        OSError(errno.ENOSPC, "No space left on device"),
        KeyError("out of memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_none_of_lacking_memory(error: Exception):
    assert not work._Problem.of(error).no_memory


def test_a_row_without_memory_stops_no_other_and_an_error_of_ours_stops_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    errors = iter([MemoryError(), RuntimeError("CUDA error: out of memory"), ZeroDivisionError()])

    def run(self: Trial) -> None:
        raise next(errors)

    monkeypatch.setattr(work.Trial, "run", run)
    order = Order(tmp_path, quick=True)
    failed = reproduce([ROWS["image-walk"]], (0, 1), order, lambda line: None)
    assert [one.why for one in failed] == ["MemoryError", "CUDA error: out of memory"]
    with pytest.raises(ZeroDivisionError):
        reproduce([ROWS["image-walk"]], (0, 1), order, lambda line: None)


@pytest.mark.slow
def test_where_memory_runs_out_rows_are_made_again_beside_fewer_others(tmp_path):
    said, order = list[str](), Order(tmp_path, quick=True, workers=3)
    (tmp_path / "logs").mkdir()
    jobs = [Crowded(ROWS["image-walk"], seed, others=2) for seed in range(3)]
    assert work._together(jobs, order, said.append) == []
    assert all(job.makes(order).exists() for job in jobs)
    again = [line for line in said if "made again" in line]
    assert [line.split("at most ")[1].split()[0] for line in again] == ["2", "1", "1"]


def test_a_row_for_which_there_is_no_memory_at_all_fails(tmp_path):
    order = Order(tmp_path, quick=True, workers=1)
    (tmp_path / "logs").mkdir()
    failed = work._together([Crowded(ROWS["image-walk"], 0)], order, lambda line: None)
    assert [(one.row, one.seed) for one in failed] == [("image-walk", 0)]


def test_a_row_that_never_fits_is_made_alone_in_the_end_and_leaves_the_others_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Without processes: whichever row began first ends first."""
    at_work, begun = list[Any](), list[tuple[int, int]]()

    def begin(job: work._Job, order: Order, threads: int, beside_others: bool) -> Any:
        def problem(order: Order) -> work._Problem | None:
            if job.seed == 0:
                return work._Problem(True, "no memory left")
            job.makes(order).touch()
            return None

        process = SimpleNamespace(is_alive=lambda: process in at_work)
        process.sentinel = process
        at_work.append(process)
        begun.append((job.seed, len(at_work)))
        return SimpleNamespace(job=job, process=process, problem=problem, began=0.0, beside_others=beside_others)

    monkeypatch.setattr(work._Running, "begin", begin)
    monkeypatch.setattr(work, "wait", lambda sentinels: at_work.remove(sentinels[0]))
    jobs = [work._Job(ROWS["image-walk"], seed) for seed in range(6)]
    (failed,) = work._together(jobs, Order(tmp_path, workers=3), lambda line: None)
    assert failed.seed == 0
    assert begun == [(0, 1), (1, 2), (2, 3), (0, 2), (3, 2), (4, 2), (5, 2), (0, 1)]  # seed, and how many are at work


@pytest.mark.slow
def test_where_a_process_is_killed_its_row_alone_is_made_again_beside_fewer_others(tmp_path):
    said, order = list[str](), Order(tmp_path, quick=True, workers=8)
    (tmp_path / "logs").mkdir()
    jobs = [Killed(ROWS["image-walk"], seed) for seed in range(2)]
    assert work._together(jobs, order, said.append) == []
    assert [job.makes(order).read_text() for job in jobs] == ["made at try 1", "made at try 2"]
    assert ["made again, and at most 1 at once" in line for line in said] == [True, False, False]


def test_a_process_that_ends_without_a_word_is_a_row_that_failed(tmp_path):
    order = Order(tmp_path, quick=True, workers=2)
    (tmp_path / "logs").mkdir()
    said = list[str]()
    (failed,) = work._together([Silent(ROWS["image-walk"], 3)], order, said.append)
    assert failed.seed == 3 and "exit code 7 (see " in failed.why
    assert re.fullmatch(r"image-walk, seed 3: failed after \d+ s \(1 of 1\)", said[0])


def test_a_long_message_of_a_row_that_failed_fits_into_a_pipe():
    problem = work._Problem.of(RuntimeError("begin" + 10**6 * "." + "end"))
    assert len(problem.why) <= 1000 and problem.why.startswith("begin") and problem.why.endswith("end")


def test_a_process_that_is_killed_while_it_tells_why_is_one_that_was_killed(tmp_path):
    problems, tell = Pipe(duplex=False)
    os.write(tell.fileno(), (100).to_bytes(4) + b"a message of 100 bytes, up to here")
    tell.close()
    killed: Any = SimpleNamespace(join=lambda: None, exitcode=-9)
    one = work._Running(work._Job(ROWS["image-walk"], 0), killed, problems, 0.0, beside_others=True)
    assert one.problem(Order(tmp_path)) == work._Problem(True, "its process ended with exit code -9")


def test_an_error_ends_all_rows_that_are_at_work(tmp_path):
    order = Order(tmp_path, quick=True, workers=2)
    (tmp_path / "logs").mkdir()

    def fail(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work._together([Silent(ROWS["image-walk"], 0, after="begun"), Endless(ROWS["image-walk"], 1)], order, fail)
    assert (tmp_path / "end").read_text() == "ended by signal 15"


def test_a_signal_ends_the_command_instead_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    begun: list[str] = []

    def run(self: Trial) -> None:
        begun.append(self.row.name)
        raise trial.Interrupted(Outcome(3, 2.0, finished=False, signal=15))

    monkeypatch.setattr(work.Trial, "run", run)
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "image-walk", "image-walk/gru", "--quick", "--workers", "1", "--out", str(tmp_path)])
    assert end.value.code == 128 + 15 and begun == ["image-walk"]
    assert "interrupted after 3 updates; the same command goes on there" in capsys.readouterr().out


def test_results_are_of_the_commit_of_the_package_and_say_where_its_files_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    package = tmp_path / "src" / "gtmsm"
    (package / "reproduce").mkdir(parents=True)
    for name in ("__init__.py", "model.py", "reproduce/results.py"):
        (package / name).touch()
    monkeypatch.setattr(results, "__file__", str(package / "reproduce" / "results.py"))

    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "-m", "somebody's project, in which the package is only installed")
    assert results._commit() is None
    git("add", ".")
    git("commit", "-m", "all of it")
    commit = results._commit()
    assert commit and not commit.endswith("+")
    (package / "model.py").write_text("changed")
    assert results._commit() == f"{commit}+"


def test_a_result_has_the_day_on_which_it_was_made_by_universal_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class LateInTheWest(datetime):
        @classmethod
        def now(cls, zone: tzinfo | None = None) -> datetime:
            here = datetime(2026, 3, 1, 23, 30, tzinfo=timezone(timedelta(hours=-5)))
            return here.astimezone(zone) if zone else here.replace(tzinfo=None)

    monkeypatch.setattr(results, "datetime", LateInTheWest)
    put(tmp_path, "image-walk", 3, 20.0)
    (made,) = read_results(tmp_path)
    assert made.facts["date"] == "2026-03-02"
    assert {"seed", "commit", "machine", "seconds"} <= made.facts.keys()


def test_pictures_of_ones_own_are_learned_from_where_they_are_scored_on():
    own = {name: ROWS[name].experiment(0, True, "faces.npz") for name in ("image-walk", "large")}
    assert own["image-walk"].images == "faces.npz" and own["large"].images == "builtin"


def test_videos_of_rooms_are_made_where_rows_of_pictures_have_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given = list[Any]()
    monkeypatch.setattr("gtmsm.film.film_imagination", lambda run, **words: given.append(words["images"]) or "")
    put(tmp_path, "rotate", 0, 20.0)
    (result,) = read_results(tmp_path)
    experiment = ROWS["rotate"].experiment(0, True, None)
    result.facts["learning_rate"] = experiment.training.optimiser.learning_rate
    (tmp_path / "runs" / "rotate-seed0").mkdir(parents=True)
    (tmp_path / "runs" / "rotate-seed0" / "config.yaml").touch()
    monkeypatch.setattr(Run, "open", lambda folder: SimpleNamespace(experiment=experiment))
    verb._film(result, verb.ReproduceFlags(out=tmp_path, images="faces.npz", device="cpu"), Console())
    assert given == [None]
