"""Training: the same twice, exactly resumable, honest when it breaks, and able to learn."""

import json
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kill_trials import left_in
from lightning_fabric import Fabric

from gtmsm.config import changed
from gtmsm.data.clip import Clip, Source
from gtmsm.data.record import record
from gtmsm.errors import InputError
from gtmsm.evaluation.score import EvaluationConfig, evaluate, glance
from gtmsm.experiments import ImageWalkExperiment, ImageWalkSetting, set_up
from gtmsm.files import read_tensors, write_tensors
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.recognition import LandmarkConfig
from gtmsm.model.weights import WEIGHTS
from gtmsm.presets import PRESETS
from gtmsm.training.curriculum import CurriculumConfig, Stage
from gtmsm.training.loss import Loss, ObjectiveConfig
from gtmsm.training.prospect import ProspectConfig
from gtmsm.training.train import Outcome, TrainingConfig, train
from gtmsm.training.update import OptimiserConfig, Updater, build_optimiser
from gtmsm.worlds.image_walk import ImageWalkConfig
from gtmsm.worlds.images import ImageSet
from gtmsm.worlds.walkers import PoissonWalkerConfig

pytestmark = pytest.mark.usefixtures("ctrl_c")
CPU = torch.device("cpu")
CLIPS = 3
"""Clips per round of the toy's search: how a source can tell that it is asked by the search."""

TOY = ImageWalkExperiment(
    world=ImageWalkConfig(size=20),
    model=WorldModelConfig(vae=FrameVAEConfig(width=32, code_size=8)),
    training=TrainingConfig(
        updates=14,
        optimiser=OptimiserConfig(batch=4, anneal_updates=14),
        curriculum=CurriculumConfig(tau=16, horizon=4, warm_up=4, grow=(4, 3)),
        prospect=ProspectConfig(candidates=32, rounds=2, restarts=1, clips=CLIPS, tau=8, horizon=4),
        log_every=3,
        watch_every=6,
        save_every=5,
    ),
    evaluation=EvaluationConfig(tau=16, horizon=8, clips=2),
)


def smooth_images(n: int, seed: int, size: int) -> torch.Tensor:
    """Colours that change slowly and never repeat: no two places look alike."""
    coarse = torch.rand(n, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
    return (F.interpolate(coarse, (size, size), mode="bicubic").clamp(0, 1) * 255).byte()


def open_worlds(experiment: ImageWalkExperiment, images: int = 32) -> ImageWalkSetting:
    """The experiment on smooth random colours."""
    size = experiment.world.size
    pictures = ImageSet(
        smooth_images(images, 0, size), smooth_images(4, 2, size), smooth_images(8, 1, size), "smooth", ""
    )
    return ImageWalkSetting(experiment, pictures, CPU)


def one_process() -> Fabric:
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    return fabric


def trained(
    folder: Path,
    experiment: ImageWalkExperiment = TOY,
    *,
    resume: bool = False,
    disturb: Callable[[int, int, Clip], Clip] | None = None,
    **training: Any,
) -> Outcome:
    """Train in `folder`; `disturb` sees (calls so far, clips asked for, clip) of every clip first."""
    folder.mkdir(exist_ok=True, parents=True)
    settings = replace(experiment.training, **training)
    setting = open_worlds(replace(experiment, training=settings))
    calls = 0

    def source(n: int, steps: int, generator: torch.Generator) -> Clip:
        nonlocal calls
        calls += 1
        clip = setting.source(n, steps, generator)
        return disturb(calls, n, clip) if disturb else clip

    loss = Loss(setting.build_model(), settings.objective)
    return train(
        loss, source, settings, folder, fabric=one_process(), seed=0, watch=setting.watch(), resume=resume
    )  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert trained(folder).finished
    return folder


# ---- the same again


def test_the_same_seed_gives_the_same_run_to_the_bit(tmp_path: Path, uninterrupted: Path):
    trained(tmp_path)
    assert left_in(tmp_path) == left_in(uninterrupted)


def test_another_seed_gives_another_run(tmp_path: Path, uninterrupted: Path):
    trained(tmp_path, replace(TOY, seed=1))
    assert left_in(tmp_path)[WEIGHTS] != left_in(uninterrupted)[WEIGHTS]


def test_looking_and_saving_more_often_changes_nothing(tmp_path: Path, uninterrupted: Path):
    trained(tmp_path, watch_every=1, save_every=1)
    assert left_in(tmp_path)[WEIGHTS] == left_in(uninterrupted)[WEIGHTS]


def test_metrics_come_when_they_are_due(uninterrupted: Path):
    lines = [json.loads(line) for line in (uninterrupted / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines if "elbo" in line] == [3, 6, 9, 12]
    assert [line["update"] for line in lines if "pose_r2" in line] == [6, 12]
    (searched,) = (line for line in lines if "prospect" in line)
    assert searched["update"] == 4 and searched["verdict"].startswith("motion ")


def test_no_gradient_of_the_search_is_left_for_the_first_update_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    search = Loss.search

    def steep(self: Loss, *known: Any) -> Any:
        found = search(self, *known)
        for parameter in self.parameters():
            parameter.grad = torch.full_like(parameter, 1e3)
        return found

    trained(tmp_path / "as it is")
    monkeypatch.setattr(Loss, "search", steep)
    trained(tmp_path / "steep")
    assert left_in(tmp_path / "as it is")[WEIGHTS] == left_in(tmp_path / "steep")[WEIGHTS]


def test_a_look_is_due_even_where_no_line_of_metrics_is(tmp_path: Path):
    trained(tmp_path, updates=8, watch_every=4, log_every=3)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines if "pose_r2" in line] == [4, 8]


# ---- interrupted and resumed


def interrupt_at(call: int, *numbers: int) -> Callable[[int, int, Clip], Clip]:
    """Ctrl-C, or other signals, while the clips of that call are made."""

    def disturb(calls: int, n: int, clip: Clip) -> Clip:
        if calls == call:
            for number in numbers or (signal.SIGINT,):
                signal.raise_signal(number)
        return clip

    return disturb


@pytest.mark.parametrize(
    ("call", "updates"),
    [(1, 1), (3, 3), (4, 4), (5, 4), (7, 5), (8, 6), (9, 7), (10, 8), (12, 10), (14, 12)],
    ids=[
        "first update",
        "multiple of log_every",
        "end of the warm-up",
        "while prospecting",
        "just after prospecting",
        "multiple of watch_every",
        "no multiple of log_every",
        "end of a stage",
        "just saved",
        "in the last stage",
    ],
)
def test_resumed_training_equals_training_at_once(tmp_path: Path, uninterrupted: Path, call: int, updates: int):
    stopped = trained(tmp_path, disturb=interrupt_at(call))
    assert (stopped.finished, stopped.updates) == (False, updates)
    assert trained(tmp_path, resume=True).finished
    assert left_in(tmp_path) == left_in(uninterrupted)


def test_training_interrupted_again_and_again_equals_training_at_once(tmp_path: Path, uninterrupted: Path):
    trained(tmp_path, disturb=interrupt_at(2))
    while not trained(tmp_path, resume=True, disturb=interrupt_at(2)).finished:
        pass
    assert left_in(tmp_path) == left_in(uninterrupted)


def test_a_run_that_was_finished_can_be_prolonged(tmp_path: Path, uninterrupted: Path):
    assert trained(tmp_path, updates=9).finished
    assert trained(tmp_path, resume=True).finished
    assert left_in(tmp_path) == left_in(uninterrupted)


def test_a_convolutional_coder_is_resumed_exactly_too(tmp_path: Path):
    """Its weights lie in memory otherwise than they are saved."""
    conv = replace(TOY, model=WorldModelConfig(vae=FrameVAEConfig(coder="conv", width=16, code_size=8)))
    assert trained(tmp_path / "at once", conv).finished
    assert trained(tmp_path / "in two", conv, updates=5).finished
    assert trained(tmp_path / "in two", conv, resume=True).finished
    assert left_in(tmp_path / "in two") == left_in(tmp_path / "at once")


def test_a_crash_loses_only_what_came_after_the_checkpoint(tmp_path: Path, uninterrupted: Path):
    def crash(calls: int, n: int, clip: Clip) -> Clip:
        if calls == 10:  # update 8, three after the checkpoint
            raise RuntimeError("power cut")
        return clip

    with pytest.raises(RuntimeError, match="power cut"):
        trained(tmp_path, disturb=crash)
    with (tmp_path / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"update": 8, "el')
    trained(tmp_path, resume=True)
    assert left_in(tmp_path) == left_in(uninterrupted)


def test_a_crash_after_prospecting_does_not_report_the_search_twice(tmp_path: Path, uninterrupted: Path):
    def crash(calls: int, n: int, clip: Clip) -> Clip:
        if calls == 8:  # update 6; the checkpoint is of update 4, before the search
            raise RuntimeError("power cut")
        return clip

    with pytest.raises(RuntimeError, match="power cut"):
        trained(tmp_path, disturb=crash, save_every=4)
    trained(tmp_path, resume=True)
    assert left_in(tmp_path) == left_in(uninterrupted)


def test_a_second_interruption_is_not_swallowed(tmp_path: Path, ctrl_c: None):
    def impatient(calls: int, n: int, clip: Clip) -> Clip:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return clip

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, disturb=impatient)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_stop_training_too_even_if_they_come_twice(tmp_path: Path, number: int):
    before = signal.signal(number, signal.SIG_DFL)  # whoever runs the tests may ignore it, as nohup does
    try:
        stopped = trained(tmp_path, disturb=interrupt_at(2, number, number))
    finally:
        signal.signal(number, before)
    assert (stopped.finished, stopped.updates, stopped.signal) == (False, 2, number)
    assert int(read_tensors(tmp_path / "checkpoint.safetensors")[1]["count"]) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_the_parent_ignores_does_not_stop_training(tmp_path: Path, number: int):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        assert trained(tmp_path, updates=2, disturb=interrupt_at(1, number)).finished
    finally:
        signal.signal(number, before)


def test_signals_are_handled_as_before_when_training_is_over(tmp_path: Path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    trained(tmp_path, updates=1)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_there_is_nothing_to_resume_in_an_empty_folder(tmp_path: Path):
    with pytest.raises(InputError, match="nothing to resume: .*checkpoint.safetensors does not exist"):
        trained(tmp_path, resume=True)


def test_a_run_cannot_be_resumed_to_fewer_updates_than_it_has(tmp_path: Path):
    trained(tmp_path, updates=3)
    with pytest.raises(InputError, match="has 3 updates behind it; give 3 or more"):
        trained(tmp_path, resume=True, updates=2)


def test_weights_are_no_checkpoint(tmp_path: Path):
    trained(tmp_path, updates=1)
    (tmp_path / "weights.safetensors").replace(tmp_path / "checkpoint.safetensors")
    with pytest.raises(InputError, match="is not a checkpoint of gtmsm"):
        trained(tmp_path, resume=True)


def test_the_checkpoint_of_another_model_is_refused(tmp_path: Path):
    wider = replace(TOY, model=WorldModelConfig(vae=FrameVAEConfig(width=40, code_size=8)))
    trained(tmp_path, wider, updates=1)
    with pytest.raises(InputError, match=r"holds weights of another model: vae.decoder.* \(40"):
        trained(tmp_path, resume=True)


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        ({"count": torch.zeros(3)}, "is not a checkpoint of gtmsm"),
        ({"count": torch.tensor(10**12)}, "is not a checkpoint of gtmsm"),
        ({"count": None}, "is not a checkpoint of gtmsm"),
        ({"generator": torch.zeros(4)}, "is not a checkpoint of gtmsm"),
        ({"generator": torch.zeros(5056, dtype=torch.uint8)}, "is damaged at generator"),
        ({"optimiser.motion.M.exp_avg": None}, "see optimiser.motion.M.exp_avg"),
        ({"sums.elbo": torch.zeros(2)}, "see sums.elbo"),
        ({"sums.joy": torch.zeros(())}, "see sums.joy"),
        ({"optimiser.motion.M.exp_avg": torch.full((2, 5), torch.nan)}, "see optimiser.motion.M.exp_avg"),
    ],
)
def test_a_damaged_checkpoint_is_refused_with_its_place(
    tmp_path: Path, uninterrupted: Path, harm: dict[str, torch.Tensor | None], complaint: str
):
    about, tensors = read_tensors(uninterrupted / "checkpoint.safetensors")
    changed = {name: value for name, value in (tensors | harm).items() if value is not None}
    write_tensors(tmp_path / "checkpoint.safetensors", changed, about)
    with pytest.raises(InputError) as refusal:
        trained(tmp_path, resume=True)
    assert complaint in str(refusal.value)


def test_the_checkpoint_of_two_processes_is_refused_by_one(tmp_path: Path):
    trained(tmp_path, updates=1)
    about, tensors = read_tensors(tmp_path / "checkpoint.safetensors")
    tensors["generator"] = tensors["generator"].repeat(2, 1)
    write_tensors(tmp_path / "checkpoint.safetensors", tensors, about)
    with pytest.raises(InputError, match="was written by 2 processes; resume it with as many --devices, not 1"):
        trained(tmp_path, resume=True)


@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_the_checkpoint_of_a_gpu_is_refused_on_a_cpu(tmp_path: Path, version: str):
    trained(tmp_path, updates=1)
    about, tensors = read_tensors(tmp_path / "checkpoint.safetensors")
    about["device"] = "cuda"
    if version == "0.1":  # which did not say
        del about["device"]
        tensors["generator"] = tensors["generator"][:, :16]  # as long as on a GPU
    write_tensors(tmp_path / "checkpoint.safetensors", tensors, about)
    with pytest.raises(InputError, match="was written on cuda, and this is cpu; resume with --device cuda"):
        trained(tmp_path, resume=True)


def test_a_checkpoint_of_version_0_1_can_be_resumed(tmp_path: Path):
    """It has one count of updates for all parameters, and did not log what was left out."""
    trained(tmp_path, updates=6)
    about, tensors = read_tensors(tmp_path / "checkpoint.safetensors")
    older = {name: value for name, value in tensors.items() if not name.endswith(".step") and name != "sums.left_out"}
    assert len(older) < len(tensors) - 1
    write_tensors(tmp_path / "checkpoint.safetensors", older, {"prospected": about["prospected"]})
    assert trained(tmp_path, resume=True).finished


# ---- when it breaks


def nan_from(update: int) -> Callable[[int, int, Clip], Clip]:
    """Frames without numbers, from that update on."""

    def disturb(calls: int, n: int, clip: Clip) -> Clip:
        return clip if calls < update else replace(clip, x=clip.x * float("nan"))

    return disturb


@pytest.mark.parametrize("update", [1, 2, 5, 7])
def test_the_update_at_which_training_broke_is_named(tmp_path: Path, update: int):
    with pytest.raises(InputError, match=f"training broke down: loss or gradient was not finite at update {update};"):
        trained(tmp_path, disturb=nan_from(update), curriculum=CurriculumConfig(tau=16, horizon=4, prospect=False))


def test_the_last_good_weights_are_kept_when_training_breaks(tmp_path: Path):
    calm = CurriculumConfig(tau=16, horizon=4, prospect=False)
    with pytest.raises(InputError, match=re.escape(f"the last good weights are in {tmp_path}")):
        trained(tmp_path, disturb=nan_from(7), curriculum=calm)
    assert int(read_tensors(tmp_path / "checkpoint.safetensors")[1]["count"]) == 5
    assert all(weight.isfinite().all() for weight in WorldModel.load(tmp_path).parameters())


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path):
    fast = OptimiserConfig(batch=4, learning_rate=1e38)
    with pytest.raises(InputError, match="not finite .* update 1; no weights were saved yet"):
        trained(tmp_path, updates=1, optimiser=fast)
    assert not (tmp_path / "weights.safetensors").exists()


def test_a_mad_learning_rate_is_one_line_on_the_command_line(
    tmp_path: Path, toy_flags: list[str], refused: Callable[..., str]
):
    told = refused("train", "image-walk-small", *toy_flags, "--run", tmp_path / "run", "--learning-rate", "1e30")
    assert re.search(r"not finite at update \d+; .* Try a lower learning rate", told)


# ---- one update


def one_updater(**optimiser: Any) -> tuple[WorldModel, Updater]:
    setting = open_worlds(TOY)
    model = setting.build_model()
    settings = OptimiserConfig(**{"batch": 4, **optimiser})
    generator = torch.Generator().manual_seed(0)
    updater = Updater(one_process(), Loss(model, ObjectiveConfig()), setting.source, settings, generator)
    updater.enter(Stage("here", 0, 100, 8, 4, TOY.model.recall, motion_rate=2.0, wall_rate=5.0))
    return model, updater


def test_the_learning_rate_falls_linearly_to_its_final_value_and_stays():
    _, updater = one_updater(learning_rate=1e-3, final_learning_rate=2e-4, anneal_updates=4)
    rates = []
    for _ in range(6):
        rates.append(updater.optimiser.rates)
        updater.run()
    expected = [1e-3, 8e-4, 6e-4, 4e-4, 2e-4, 2e-4]
    for group, faster in {"rest": 1, "motion": 2, "walls": 5}.items():
        assert [rate[group] for rate in rates] == pytest.approx([faster * rate for rate in expected])


def test_the_motion_its_walls_and_the_rest_learn_at_rates_of_their_own():
    model = open_worlds(TOY).build_model()
    groups = build_optimiser(Loss(model, ObjectiveConfig()).groups, OptimiserConfig()).groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {names[id(p)] for p in groups["walls"]} == {f"motion.{name}" for name in "Wbvc"}
    assert {names[id(p)] for p in groups["motion"]} == {"motion.M"}
    assert sum(map(len, groups.values())) == len(names)
    assert list(groups) == ["rest", "motion", "walls"]


def test_every_weight_moves():
    model, updater = one_updater()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(3):
        updater.run()
    assert all(not torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_what_is_logged_is_the_mean_since_it_was_last_asked_for():
    _, updater = one_updater()
    updater.run()
    first = updater.take_sums()
    assert first["elbo"] == pytest.approx(first["log_likelihood"] - first["kl"], rel=1e-5)
    assert all(value == 0 for value in updater.take_sums().values())


def test_a_learning_rate_may_rise_before_it_falls():
    _, updater = one_updater(learning_rate=1e-3, final_learning_rate=1e-3, anneal_updates=1, ramp_updates=4)
    rates = []
    for _ in range(6):
        rates.append(updater.optimiser.rates["rest"])
        updater.run()
    assert rates == pytest.approx([0.0, 2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3])


@pytest.mark.parametrize("held", ["motion", "walls"])
def test_what_learns_at_rate_zero_stays_as_it_is(held: str):
    model, updater = one_updater()
    updater.enter(replace(updater.stage, **{"motion_rate" if held == "motion" else "wall_rate": 0.0}))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(3):
        updater.run()
    walls = {f"motion.{name}" for name in "Wbvc"}
    same = {name for name, value in model.state_dict().items() if torch.equal(before[name], value)}
    assert same == (walls if held == "walls" else {"motion.M"})


def with_truth(setting: ImageWalkSetting) -> Source:
    """Clips that say how agents really moved, though the experiment does not learn from it."""
    return partial(record, setting.train_world, setting.walker)


def test_terms_beside_the_bound_are_logged_where_they_are_asked_for():
    setting = open_worlds(TOY)
    objective = ObjectiveConfig(displacement=1.0, foresight=1.0)
    generator = torch.Generator().manual_seed(0)
    settings = OptimiserConfig(batch=4)
    loss = Loss(setting.build_model(), objective)
    updater = Updater(one_process(), loss, with_truth(setting), settings, generator)
    updater.enter(Stage("here", 0, 100, 8, 4, TOY.model.recall, motion_rate=1.0, wall_rate=5.0))
    updater.run()
    assert updater.take_sums().keys() == {
        "elbo", "log_likelihood", "kl", "left_out", "gradient", "foresight", "displacement",
    }  # fmt: skip


def learning_landmarks(form: str = "bayes", muon: float = 0.0, **objective: Any) -> tuple[WorldModel, Updater]:
    """A stage in which the rest learns at its rate, landmarks three times as fast."""
    landmark = LandmarkConfig(form=form, width=16, matches=3)
    setting = open_worlds(replace(TOY, model=replace(TOY.model, landmark=landmark)))
    model, generator = setting.build_model(), torch.Generator().manual_seed(0)
    settings = OptimiserConfig(batch=4, learning_rate=1e-3, final_learning_rate=1e-3, muon=muon)
    loss = Loss(model, ObjectiveConfig(**objective))
    updater = Updater(one_process(), loss, with_truth(setting), settings, generator)
    updater.enter(Stage("here", 0, 100, 8, 4, TOY.model.recall, motion_rate=2.0, wall_rate=5.0, landmark_rate=3.0))
    return model, updater


@pytest.mark.parametrize("form", ["paper", "bayes"])
def test_landmarks_learn_at_a_rate_of_their_own(form: str):
    model, updater = learning_landmarks(form)
    groups, rates = updater.optimiser.groups, updater.optimiser.rates
    updater.run()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    marks = {name for name in names.values() if name.startswith("landmarks.")}
    assert {names[id(p)] for p in (*groups["landmarks"], *groups["comparison"])} == marks
    assert sum(map(len, groups.values())) == len(names)
    alike = {"landmarks": 3e-3, "comparison": 3e-3}
    assert rates == pytest.approx({"rest": 1e-3, "motion": 2e-3, "walls": 5e-3} | alike)
    assert {"pose_kl", "recognition", "regret"} <= updater.take_sums().keys()


@pytest.mark.parametrize("muon", [0.0, 3.0])
def test_learning_to_recognise_and_nothing_else_moves_only_landmarks(muon: float):
    model, updater = learning_landmarks(muon=muon, recognition_only=True, displacement=1.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(3):
        updater.run()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(before[name], value)}
    assert moved == {name for name in before if name.startswith("landmarks.")}
    assert updater.take_sums().keys() == {"recognition", "gradient"}


def test_landmarks_may_learn_nothing_from_pairs():
    _, updater = learning_landmarks(recognition=0.0)
    updater.run()
    assert "recognition" not in updater.take_sums()


def test_a_model_with_landmarks_whose_matrices_muon_moves_is_resumed_exactly_too(tmp_path: Path):
    seeing = changed(
        TOY, {"model.landmark": {"form": "bayes", "width": 16, "matches": 3}, "training.optimiser.muon": 3.0}
    )
    assert trained(tmp_path / "at once", seeing, updates=8).finished
    assert trained(tmp_path / "in two", seeing, updates=5).finished
    assert trained(tmp_path / "in two", seeing, updates=8, resume=True).finished
    assert left_in(tmp_path / "in two") == left_in(tmp_path / "at once")


@pytest.mark.parametrize(
    "wrong",
    [{"batch": 0}, {"learning_rate": 0.0}, {"final_learning_rate": -1.0},
     {"anneal_updates": 0}, {"clip_norm": float("nan")}, {"ramp_updates": -1}, {"muon": -1.0}],
)  # fmt: skip
def test_an_optimiser_that_cannot_learn_is_refused(wrong: dict[str, Any]):
    ((name, value),) = wrong.items()
    with pytest.raises(InputError, match=f"{name} is {value}"):
        OptimiserConfig(**wrong)


# ---- does it learn


@pytest.mark.slow
def test_a_small_world_is_really_learned(tmp_path: Path):
    updates = 100 + 140 + 20
    experiment = ImageWalkExperiment(
        world=ImageWalkConfig(size=20),
        walker=PoissonWalkerConfig(mean_repeats=0.0),
        model=WorldModelConfig(vae=FrameVAEConfig(width=64, code_size=8)),
        training=TrainingConfig(
            updates=updates,
            optimiser=OptimiserConfig(batch=16, learning_rate=5e-3, anneal_updates=updates),
            curriculum=CurriculumConfig(tau=64, horizon=16, warm_up=100, grow=(70, 70, 20)),
            prospect=ProspectConfig(candidates=256, rounds=16, restarts=2, clips=32, tau=10, horizon=4, neighbours=3),
            watch_every=10_000,
            save_every=10_000,
        ),
    )
    setting = open_worlds(experiment, images=256)
    model = setting.build_model()
    loss = Loss(model, experiment.training.objective)
    train(loss, setting.source, experiment.training, tmp_path, fabric=one_process(), seed=0, watch=setting.watch())
    settings = EvaluationConfig(tau=64, horizon=64, clips=64, seed=3)
    seen = glance(model, setting.test_world, setting.walker, settings)
    assert seen["pose_r2"] > 0.95
    assert seen["retrieval"] > 0.95


@pytest.mark.slow
def test_an_agent_that_turns_in_rooms_learns_how_far_and_what_it_will_see(tmp_path: Path):
    small = PRESETS["rotate-small"][1]
    updates = 100
    experiment = replace(
        small,
        world=replace(small.world, train_places=64, test_places=16, textures="procedural"),
        pool=replace(small.pool, clips=128),
        model=replace(
            small.model,
            vae=FrameVAEConfig(width=128, code_size=32),
            recall=replace(small.model.recall, width=64),
        ),
        training=replace(
            small.training,
            updates=updates,
            optimiser=OptimiserConfig(batch=8, learning_rate=4e-3, anneal_updates=updates),
            curriculum=replace(small.training.curriculum, warm_up=50),
            prospect=replace(small.training.prospect, clips=12, angles=512),
            watch_every=10_000,
            save_every=10_000,
        ),
    )
    setting = set_up(experiment, torch.device("cpu"))
    model = setting.build_model()
    loss = Loss(model, experiment.training.objective)
    train(loss, setting.source, experiment.training, tmp_path, fabric=one_process(), seed=0, watch=setting.watch())
    settings = replace(experiment.evaluation, clips=16, seed=3)
    scores = evaluate(model, setting.test_world, setting.walker, settings, torch.device("cpu")).scores
    controls = {name: row["psnr_pooled"] for name, row in scores["controls"].items()}
    assert scores["heading_error"] < 1.0
    assert scores["psnr_pooled"] > max(controls["last_frame"], controls["random_retrieval"]) + 1
    assert scores["psnr_pooled"] > controls["true_pose_memory"] - 0.2


@pytest.mark.slow
def test_who_recognises_places_is_less_lost_among_obstacles(tmp_path: Path):
    small = PRESETS["obstacles"][1]
    assert isinstance(small, ImageWalkExperiment)
    updates = 60
    experiment = replace(
        small,
        world=replace(small.world, size=24),
        walker=replace(small.walker, mean_repeats=0.0),
        model=replace(
            small.model,
            vae=FrameVAEConfig(width=64, code_size=8),
            landmark=replace(small.model.landmark, width=64, matches=6),
        ),
        training=replace(
            small.training,
            updates=updates,
            optimiser=OptimiserConfig(batch=16, learning_rate=9e-3, anneal_updates=updates),
            curriculum=replace(small.training.curriculum, tau=32, horizon=8, warm_up=25),
            watch_every=10_000,
            save_every=10_000,
        ),
    )
    setting = open_worlds(experiment, images=128)
    model = setting.build_model()
    loss = Loss(model, experiment.training.objective)
    train(loss, setting.source, experiment.training, tmp_path, fabric=one_process(), seed=0, watch=setting.watch())
    clip = record(setting.test_world, setting.walker, 32, 96, torch.Generator().manual_seed(3))
    with torch.no_grad():
        walks = {
            "landmarks": model.follow(clip.x, clip.a).mean,
            "loops closed": model.follow(clip.x, clip.a, closure=32).mean,
            "dead reckoning": model.motion.unroll(model.motion.start(32), clip.a),
        }
    error = {way: (poses - clip.true_step.cumsum(1)).norm(dim=-1).mean().item() for way, poses in walks.items()}
    assert error["landmarks"] < 0.6 * error["dead reckoning"]
    assert error["loops closed"] < 0.6 * error["dead reckoning"]
