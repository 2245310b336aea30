"""How long training takes to 100% retrieval: `python benchmarks/time_to_retrieve.py --images celeba32.npz`.

Trains a preset from scratch until every predicted step of 16 held-out walks at a memorised place retrieves what was
seen there, and says after how many updates and seconds. Only training is counted: a few updates of every stage and a
tiny search run before, so that everything is compiled, and the clock stops during the looks at held-out walks.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from lightning_fabric import Fabric
from rich.console import Console

from gtmsm.experiments import ImageWalkExperiment, Setting, set_up
from gtmsm.model.gtmsm import WorldModel
from gtmsm.presets import PRESETS
from gtmsm.training.curriculum import plan_stages
from gtmsm.training.engine import build_fabric, tuned
from gtmsm.training.loss import Loss
from gtmsm.training.prospect import prospect
from gtmsm.training.update import Updater

CAPTURED_AFTER = 8
"""Updates of a stage after which a GPU has captured and replayed its graph."""


class Clock:
    """Seconds of work on a device, by what it is for; it is waited for before the clock is read."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.spent: dict[str, float] = {}

    def time(self, what: str, work: Callable[[], object]) -> None:
        """Do it, and count it as `what`."""
        begin = self._now()
        work()
        self.spent[what] = self.spent.get(what, 0.0) + self._now() - begin

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


class Training:
    """A training from scratch, as `gtmsm train` does it, without its log and checkpoints."""

    def __init__(self, setting: Setting, fabric: Fabric) -> None:
        self.experiment, self.source = setting.experiment, setting.source
        self.settings = self.experiment.training
        self.model: WorldModel = setting.build_model()
        generator = torch.Generator(fabric.device).manual_seed(self.experiment.seed)
        loss = Loss(self.model, self.settings.objective)
        self.updater = Updater(fabric, loss, self.source, self.settings.optimiser, generator)
        self.stages = plan_stages(self.settings.curriculum, self.experiment.model.recall, self.settings.updates)

    def prospect(self, rounds: int | None = None) -> None:
        """Search for the motion; with `rounds`, for so few that it finds nothing."""
        settings = self.settings.prospect
        if rounds is not None:
            settings = replace(settings, rounds=rounds, restarts=min(2, settings.restarts))
        prospect(self.model, self.source, settings, self.updater.generator)
        self.updater.broadcast()

    def run(self, updates: int) -> None:
        """So many updates of the stage that was entered."""
        for _ in range(updates):
            self.updater.run()


def rehearse(setting: Setting, fabric: Fabric) -> None:
    """Run a little of everything with another model, so that all kernels are compiled."""
    training = Training(setting, fabric)
    watch = setting.watch()
    for stage in training.stages:
        training.updater.enter(stage)
        training.run(CAPTURED_AFTER)
        training.updater.take_sums()
    if training.settings.curriculum.prospect:
        training.prospect(rounds=1)
    watch(training.model)


def time_training(setting: Setting, fabric: Fabric, look_every: int, console: Console) -> tuple[Clock, int | None]:
    """Train until all is retrieved; seconds spent, and after how many updates that was: None if never."""
    training, watch, clock = Training(setting, fabric), setting.watch(), Clock(fabric.device)
    settings = training.settings
    warm_up, log_every = settings.curriculum.warm_up, settings.log_every
    update, prospected, seen = 0, False, dict[str, float]()
    for stage in training.stages:
        if settings.curriculum.prospect and not prospected and stage.begin >= warm_up:
            clock.time("prospecting", training.prospect)
            prospected = True
        what = "warm-up" if stage.end <= warm_up else "growth"
        clock.time(what, lambda stage=stage: training.updater.enter(stage))
        while update < stage.end:
            stop = min(stage.end, *(every * (update // every + 1) for every in (log_every, look_every)))
            clock.time(what, lambda some=stop - update: training.run(some))
            update = stop
            if update % log_every == 0:
                clock.time(what, training.updater.take_sums)
            if update % look_every == 0 and what == "growth":
                clock.time("looking", lambda: seen.update(watch(training.model)))
                console.print(
                    f"update {update}  {stage.name}  {_trained(clock):.2f} s  retrieval {seen['retrieval']:.4%}",
                    highlight=False,
                )
                if seen["retrieval"] == 1.0:
                    return clock, update
    return clock, None


def _trained(clock: Clock) -> float:
    """Seconds of training so far."""
    return sum(seconds for what, seconds in clock.spent.items() if what != "looking")


def main() -> int:
    """Read flags, rehearse, train, tell."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--images", required=True, help='a .npz, a folder of pictures, or "builtin"')
    flags.add_argument("--preset", default="image-walk", help="an image walk (default: %(default)s)")
    flags.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    flags.add_argument("--seed", type=int, default=0, help="of weights, walks and noise")
    flags.add_argument("--look-every", type=int, default=100, help="updates between two looks (default: %(default)s)")
    asked = flags.parse_args()
    experiment = PRESETS[asked.preset][1]
    if not isinstance(experiment, ImageWalkExperiment):
        flags.error(f"{asked.preset} is no image walk: there is no retrieval to wait for")
    experiment = replace(experiment, seed=asked.seed, images=asked.images)
    console = Console()
    fabric = build_fabric(asked.device, 1, experiment.training.optimiser.batch)
    setting = set_up(experiment, fabric.device)
    begin = time.perf_counter()
    with tuned():
        rehearse(setting, fabric)
    console.print(f"compiled and rehearsed in {time.perf_counter() - begin:.1f} s, not counted", highlight=False)
    with tuned():
        clock, update = time_training(setting, fabric, asked.look_every, console)
    where = torch.cuda.get_device_name(fabric.device) if fabric.device.type == "cuda" else "CPU"
    found = "never all retrieved" if update is None else f"all retrieved after {update} updates"
    parts = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in clock.spent.items() if what != "looking")
    console.print(f"{asked.preset} on {setting.places.name}, seed {asked.seed}, {where}: {found}", highlight=False)
    console.print(f"{_trained(clock):.2f} s of training: {parts}", highlight=False)
    console.print(f"looking took another {clock.spent.get('looking', 0.0):.2f} s, not counted", highlight=False)
    return 0 if update is not None else 1


if __name__ == "__main__":
    sys.exit(main())
