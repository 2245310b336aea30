"""Training updates, as `gtmsm train` makes them at the end of a curriculum."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from gtmsm.bench.ceilings import Precision
from gtmsm.bench.sizes import Sizes
from gtmsm.bench.task import UPDATE, Goal, Task
from gtmsm.bench.work import Work, count_flops, update_bytes
from gtmsm.experiments import ImageWalkExperiment, PoolConfig, RoomsExperiment, Setting, set_up
from gtmsm.model.gtmsm import WorldModel
from gtmsm.presets import PRESETS
from gtmsm.training.curriculum import Stage, plan_stages
from gtmsm.training.engine import build_fabric, tuned
from gtmsm.training.update import Updater

AS_FAST_AS = {
    "image-walk": Goal("milliseconds", 0.35),
    "walk": Goal("milliseconds", 3.0),
    "walk-strong": Goal("times the FLOP floor", 3.0),
}
"""Presets whose updates are timed, in the order of `Sizes.batch`."""
ROUNDS = {"cuda": 3, "cpu": 0}
"""Of learning, before anything is timed: learned poses retrieve other frames, and more of them, and after each round
there is room for those. A CPU makes room as it goes."""
UPDATES_A_ROUND = 100


def updates_of(preset: str) -> Callable[[Sizes, torch.device], Iterator[Task]]:
    """The entry of a preset."""

    def tasks(sizes: Sizes, device: torch.device) -> Iterator[Task]:
        yield _update(preset, _for_timing(preset, sizes), device)

    return tasks


def _for_timing(preset: str, sizes: Sizes) -> ImageWalkExperiment | RoomsExperiment:
    """The preset with fewer places to learn from, and as many clips at a time as the device can take."""
    experiment = PRESETS[preset][1]
    batch = sizes.batch[list(AS_FAST_AS).index(preset)]
    training = replace(experiment.training, optimiser=replace(experiment.training.optimiser, batch=batch))
    if isinstance(experiment, ImageWalkExperiment):
        return replace(experiment, training=training)
    return replace(
        experiment,
        training=training,
        pool=PoolConfig(clips=sizes.pool, steps=experiment.pool.steps),
        world=replace(experiment.world, train_places=sizes.places, test_places=1),
    )


def _update(preset: str, experiment: ImageWalkExperiment | RoomsExperiment, device: torch.device) -> Task:
    """One update of the last stage: of the most steps."""
    setting, training = set_up(experiment, device), experiment.training
    model = setting.build_model()
    stage = plan_stages(training.curriculum, experiment.model.recall, training.updates)[-1]
    batch = training.optimiser.batch
    fabric = build_fabric("cuda" if device.type == "cuda" else "cpu", 1, batch)
    fabric.launch()
    generator = torch.Generator(device).manual_seed(0)
    updater = Updater(fabric, model, setting.source, training.optimiser, training.objective, generator)
    updater.enter(stage)

    def update() -> None:
        with tuned():  # as `train` does
            updater.run()

    for _ in range(ROUNDS[device.type]):
        for _ in range(UPDATES_A_ROUND):
            update()
        updater.take_sums()  # and make room
    least = _least_work(setting, model, stage)
    size = f"{batch} × ({stage.tau} + {stage.horizon}) steps"
    return Task(f"{UPDATE}, {preset}", size, update, 1, "updates", least, AS_FAST_AS[preset])


def _least_work(setting: Setting, model: WorldModel, stage: Stage) -> Work:
    """Counted on one forward and backward pass of an update's clips."""
    training, device = setting.experiment.training, setting.device
    generator = torch.Generator(device).manual_seed(0)
    clip = setting.source(training.optimiser.batch, stage.steps, generator)
    half = training.optimiser.precision == "bfloat16" and device.type == "cuda"

    def there_and_back() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            loss, _ = model(clip.x, clip.a, clip.true_step, stage.tau, generator, stage.reading, training.objective)
        loss.backward()

    flops = count_flops(there_and_back)
    model.zero_grad(set_to_none=True)
    precision: Precision = "bfloat16" if half else "tf32" if device.type == "cuda" else "float32"
    return Work(flops, update_bytes(model, clip.x, clip.a, clip.true_step), precision)
