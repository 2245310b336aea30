"""What `gtmsm bench` times: updates, rollouts, imagination, search in memory and ray-casting, at fixed sizes."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gtmsm.bench.clock import Call, Precision
from gtmsm.bench.sizes import Sizes
from gtmsm.config import changed
from gtmsm.experiments import RoomsExperiment, set_up
from gtmsm.kernels.operator import forced
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.memory import Memory, nearest
from gtmsm.presets import PRESETS
from gtmsm.tensors import Belief, Gaussian
from gtmsm.training.curriculum import plan_stages
from gtmsm.training.engine import build_fabric, tuned
from gtmsm.training.loss import Loss
from gtmsm.training.update import Updater
from gtmsm.worlds.image_walk import ACTIONS as IMAGE_ACTIONS
from gtmsm.worlds.physics import ACTIONS
from gtmsm.worlds.rooms import RoomsConfig, draw_rooms
from gtmsm.worlds.scene import draw_frames


@dataclass(frozen=True)
class Goal:
    """A speed to be reached on one H200."""

    kind: Literal["milliseconds", "rate", "times the reference"]
    bound: float


@dataclass(frozen=True)
class Task:
    """A call to time, after its set-up."""

    work: str
    """What the call does, in a few words."""
    size: str
    call: Call
    units: int
    """Number of units (frames, steps, ...) that one call makes."""
    unit: str
    """Name of the units, in the plural."""
    flops: int = 0
    """FLOPs of its matrix products and convolutions; 0 if they do not bound it."""
    precision: Precision = "float32"
    goal: Goal | None = None
    reference: tuple[str, Call] | None = None
    """Name and call of another way to compute the same result, timed in the same run."""


def count_flops(call: Call) -> int:
    """FLOPs of the matrix products and convolutions of a call, gradients included.

    The call runs with readable operators and plain attention, since PyTorch cannot look into fused ones.
    """
    with forced("readable"), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


UPDATE_GOALS = {"image-walk": 0.45, "walk": 3.0, "walk-strong": 14.0}
"""Milliseconds of an update. Other presets are timed only if they are named."""


def build_updater(preset: str, sizes: Sizes, device: torch.device) -> Updater:
    """An updater for the last stage of a preset's training, which has the most steps; with fewer places and clips."""
    experiment = PRESETS[preset][1]
    in_rooms = isinstance(experiment, RoomsExperiment)
    batch = min(experiment.training.optimiser.batch, sizes.most_clips[in_rooms])
    rooms = {"pool.clips": sizes.pool, "world": {"train_places": sizes.places, "test_places": 1}}
    experiment = changed(experiment, {"training.optimiser.batch": batch, **(rooms if in_rooms else {})})
    setting, training = set_up(experiment, device), experiment.training
    fabric = build_fabric("cuda" if device.type == "cuda" else "cpu", 1, batch)
    fabric.launch()
    generator = torch.Generator(device).manual_seed(0)
    loss = Loss(setting.build_model(), training.objective)
    updater = Updater(fabric, loss, setting.source, training.optimiser, generator)
    updater.enter(plan_stages(training.curriculum, experiment.model.recall, training.updates)[-1])
    return updater


def learn(updater: Updater, hundreds: int) -> None:
    """Train for some hundreds of updates."""
    with tuned():
        for _ in range(hundreds):
            for _ in range(100):
                updater.run()
            updater.take_sums()  # may change how many frames there is capacity for


def update(preset: str, sizes: Sizes, device: torch.device) -> Iterator[Task]:
    """One training update, as `gtmsm train` makes it."""
    updater = build_updater(preset, sizes, device)
    updater.source(1, 1, updater.generator)  # the first call draws and renders rooms, no part of an update
    learn(updater, sizes.learned)
    stage, settings, on_gpu = updater.stage, updater.settings, device.type == "cuda"

    def call() -> None:
        with tuned():
            updater.run()

    if on_gpu:  # the next update is not a replay, so that its operations can be counted
        updater.recapture()
    flops = count_flops(call)
    half = on_gpu and settings.precision == "bfloat16"
    precision: Precision = "bfloat16" if half else "tf32" if on_gpu else "float32"
    yield Task(
        f"update, {preset}", f"{settings.batch} × ({stage.tau} + {stage.horizon}) steps", call, 1, "updates",
        flops, precision, Goal("milliseconds", UPDATE_GOALS[preset]) if preset in UPDATE_GOALS else None,
    )  # fmt: skip


def rollouts(sizes: Sizes, device: torch.device) -> Iterator[Task]:
    """Poses of many sequences of actions between walls, as planning needs them."""
    batch, steps = sizes.rollouts
    motion = WorldModel(PRESETS["image-walk"][1].model, (3, 8, 8), len(IMAGE_ACTIONS)).motion.to(device)
    start, actions = motion.start(batch), _random_actions(batch, steps, len(IMAGE_ACTIONS), device)
    yield Task(
        "pose rollouts", f"{batch:,} × {steps} steps", torch.no_grad()(lambda: motion.unroll(start, actions)),
        batch * steps, "steps", goal=Goal("rate", 200e6),
    )  # fmt: skip


def imagine(sizes: Sizes, device: torch.device) -> Iterator[Task]:
    """Actions to poses, poses to memories, memories to pixels; on a GPU also under autocast."""
    settings, frame = PRESETS["walk"][1], (3, 32, 32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = WorldModel(settings.model, frame, len(ACTIONS)).to(device).eval()
    (batch, steps), tau = sizes.imagined, settings.training.curriculum.tau
    generator = torch.Generator(device).manual_seed(0)
    frames = torch.rand(1, tau, *frame, device=device, generator=generator).expand(batch, -1, -1, -1, -1)
    actions = _random_actions(batch, steps, len(ACTIONS), device)
    with torch.no_grad():
        memory, here = model.memorise(frames, _random_actions(batch, tau, len(ACTIONS), device))
        first = Memory(memory.place[:1], memory.code[:1])
        flops = batch * count_flops(lambda: model.imagine(first, here[:1], actions[:1]).frames)

    @torch.no_grad()
    def imagined(half: bool) -> Tensor:
        dream = model.imagine(memory, here, actions)  # poses stay in float32
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            return dream.frames

    precisions: tuple[Precision, ...] = ("tf32", "bfloat16") if device.type == "cuda" else ("float32",)
    for precision in precisions:
        half = precision == "bfloat16"
        yield Task(
            "imagined frames" + ", bf16" * half, f"{batch} × {steps} steps, memory {tau}", partial(imagined, half),
            batch * steps, "frames", flops, precision, Goal("rate", 1e6),
        )  # fmt: skip


def nearest_of_many(sizes: Sizes, device: torch.device) -> Iterator[Task]:
    """The 4 nearest entries of memory, against the matrix of all distances and a selection from it."""
    batch, queries, entries = sizes.nearest
    generator = torch.Generator(device).manual_seed(0)
    keys, asked = (10 * torch.randn(batch, n, 4, device=device, generator=generator) for n in (entries, queries))
    yield Task(
        "nearest 4", f"{batch} × {queries} of {entries:,}, 4-D",
        torch.no_grad()(lambda: nearest(Belief(keys), Belief(asked), 4)), batch * queries, "queries",
        goal=Goal("times the reference", 8.0),
        reference=("torch.cdist + topk", lambda: torch.cdist(asked, keys).topk(4, largest=False).indices),
    )  # fmt: skip


def long_memories(sizes: Sizes, device: torch.device) -> Iterator[Task]:
    """The same search in a long memory, by an index, against a search through all entries."""
    from gtmsm.model.long_memory import LongMemory  # imports SciPy

    queries = sizes.nearest[1]
    generator = torch.Generator(device).manual_seed(0)
    for entries in sizes.remembered:
        # as many entries per area in a long memory as in a short one
        keys, asked = (_places(count, entries**0.5, device, generator) for count in (entries, queries))
        code = torch.zeros(1, entries, 1, device=device)
        memory = LongMemory.of(Memory(Belief(keys), Gaussian(code, code)))
        yield Task(
            "long memory", f"{queries} of {entries:,}, 4-D",
            torch.no_grad()(partial(memory.nearest, Belief(asked), 4)), queries, "queries",
            reference=("all distances", torch.no_grad()(partial(nearest, Belief(keys), Belief(asked), 4))),
        )  # fmt: skip


def raycasting(sizes: Sizes, device: torch.device) -> Iterator[Task]:
    """Single rooms with four objects, from random poses in them."""
    settings = RoomsConfig(antialias=sizes.rays, train_places=1, test_places=sizes.places)
    world = draw_rooms(settings, sizes.places, seed=0, device=device)
    generator = torch.Generator(device).manual_seed(0)
    place = torch.randint(sizes.places, (sizes.drawn,), device=device, generator=generator)
    heading = 6.28 * torch.rand(sizes.drawn, 1, device=device, generator=generator)
    pose = torch.cat([world.plans.spots[place, 0], heading], dim=1)
    yield Task(
        "ray-caster", f"{sizes.drawn:,} frames, {sizes.rays}×{sizes.rays} rays/pixel",
        lambda: draw_frames(world.plans.scene, world.camera, place, pose), sizes.drawn, "frames",
    )  # fmt: skip


def _random_actions(batch: int, steps: int, kinds: int, device: torch.device) -> Tensor:
    """One-hot actions, all equally likely."""
    generator = torch.Generator(device).manual_seed(0)
    drawn = torch.randint(kinds, (batch, steps), device=device, generator=generator)
    return torch.nn.functional.one_hot(drawn, kinds).float()


def _places(count: int, side: float, device: torch.device, generator: torch.Generator) -> Tensor:
    """Positions in a square, with headings as cosine and sine."""
    x, y, turn = torch.rand(3, 1, count, device=device, generator=generator).unbind(0)
    heading = 2 * math.pi * turn
    return torch.stack([side * x, side * y, heading.cos(), heading.sin()], dim=-1)


Entry: TypeAlias = Callable[[Sizes, torch.device], Iterator[Task]]
"""Sets up and yields tasks one after the other, so that each has all of the device's memory."""

OTHERS: dict[str, Entry] = {
    "rollouts": rollouts,
    "imagine": imagine,
    "nearest": nearest_of_many,
    "long-memory": long_memories,
    "raycast": raycasting,
}
ENTRIES: dict[str, Entry] = {preset: partial(update, preset) for preset in PRESETS if preset != "own"} | OTHERS
"""All entries by the names that `gtmsm bench` takes: presets, whose updates are timed, and others."""
BY_DEFAULT = (*UPDATE_GOALS, *OTHERS)
"""Names of what is timed by default."""
