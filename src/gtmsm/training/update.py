"""One training update; on a GPU the whole of it is one CUDA graph."""

import math
from typing import Literal

import torch
from jaxtyping import UInt8
from lightning_fabric import Fabric
from torch import Tensor, nn

from gtmsm.config import config, require
from gtmsm.kernels.gradients.adam import Schedule
from gtmsm.model.elbo import ObjectiveConfig
from gtmsm.model.gtmsm import WorldModel
from gtmsm.training.curriculum import Stage
from gtmsm.training.optimiser import Adam
from gtmsm.training.prospect import Source


@config
class OptimiserConfig:
    """Adam, as App. A uses it."""

    batch: int = 64
    """Clips per update, over all devices."""
    learning_rate: float = 1e-3
    """At the first update (App. A.1)."""
    final_learning_rate: float = 5e-5
    """After annealing (App. A.1)."""
    anneal_updates: int = 50_000
    """Updates over which the learning rate falls linearly (App. A.1)."""
    ramp_updates: int = 0
    """Updates over which the learning rate rises from 0 at the start, before it falls; attention wants some."""
    clip_norm: float = 10.0
    """Gradients longer than this are shortened to it."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of networks while they are trained on a GPU; poses and weights are always float32."""

    def __post_init__(self) -> None:
        """Refuse what cannot learn."""
        require(self.batch >= 1, f"batch is {self.batch}; give at least 1 clip")
        for name in ("learning_rate", "final_learning_rate"):
            require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; give a positive one")
        require(self.anneal_updates >= 1, f"anneal_updates is {self.anneal_updates}; give at least 1")
        require(self.ramp_updates >= 0, f"ramp_updates is {self.ramp_updates}; give 0 or more")
        require(self.clip_norm > 0, f"clip_norm is {self.clip_norm}; give a positive one")


def build_optimiser(model: WorldModel, settings: OptimiserConfig) -> Adam:
    """Adam with groups for the motion, its walls, landmarks and the rest."""
    moving = dict(model.motion.named_parameters())
    marks = [] if model.landmarks is None else list(model.landmarks.parameters())
    apart = {id(parameter) for parameter in (*moving.values(), *marks)}
    groups = {
        "rest": [parameter for parameter in model.parameters() if id(parameter) not in apart],
        "landmarks": marks,
        "motion": [p for name, p in moving.items() if name not in model.motion.walls],
        "walls": [moving[name] for name in model.motion.walls],
    }
    schedule = Schedule(
        settings.learning_rate, settings.final_learning_rate, settings.anneal_updates, settings.ramp_updates
    )
    return Adam(groups, schedule, settings.clip_norm)


MANY = 20
"""Updates of which the most that any needed is hardly exceeded by the next ones."""


class Updater:
    """Makes data, loss, gradients and a step of the optimiser; counts, and sums up what to log.

    All of its state is tensors on the device: nothing waits for the host until somebody asks.
    """

    def __init__(
        self,
        fabric: Fabric,
        model: WorldModel,
        source: Source,
        settings: OptimiserConfig,
        objective: ObjectiveConfig,
        generator: torch.Generator,
    ) -> None:
        self.fabric, self.source, self.settings, self.generator = fabric, source, settings, generator
        self.objective = objective
        if objective.recognition_only:
            learning = set() if model.landmarks is None else set(model.landmarks.parameters())
            for parameter in model.parameters():
                parameter.requires_grad_(parameter in learning)
        where = next(model.parameters()).device
        require(
            where.type == fabric.device.type,
            f"the model is on {where} but training runs on {fabric.device}; move the model there first",
        )
        self.optimiser = build_optimiser(model, settings)
        self._model: nn.Module = fabric.setup_module(model)
        self.count, self.first_bad = self.optimiser.tally
        names = ["recognition"] if objective.recognition_only else ["elbo", "log_likelihood", "kl"]
        if not objective.recognition_only:
            names += [name for name in ("foresight", "displacement") if getattr(objective, name)]
            if model.landmarks is not None:
                names += ["pose_kl", "regret", *(["recognition"] if objective.recognition else [])]
        names += ["gradient", "updates"]
        self._sums = torch.zeros(len(names), device=generator.device)
        self.sums = dict(zip(names, self._sums, strict=True))
        self._one = torch.ones((), device=generator.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._until_capture = 0
        self._room: int | None = None
        """Memorised frames that a captured update has room to encode."""
        self._most_needed = torch.zeros((), dtype=torch.int64, device=generator.device)
        """Most that any update has needed since somebody looked."""

    def enter(self, stage: Stage) -> None:
        """Prepare for the clips of a stage: its graph must be captured anew."""
        self.stage = stage
        self._pace()
        self._release()

    def _release(self, room: int | None = None) -> None:
        """Let go of the graph: the next updates run one by one, until it is captured anew."""
        self._graph, self._room = None, room
        self._most_needed.zero_()
        # A graph can be captured once everything has been allocated and compiled: after two real updates. Where nobody
        # knows how much room these need, two more come before them and tell.
        self._until_capture = 4 if room is None else 2

    def run(self) -> None:
        """One update."""
        alone = self.fabric.world_size == 1
        if self.generator.device.type != "cuda":
            self._update()
        elif self._graph is not None:
            self._graph.replay()
        elif self._until_capture > 0:
            if self._until_capture == 2 and self._room is None and (needed := int(self._most_needed)):
                self._room = _room_for(needed)
            self._until_capture -= 1
            self._rehearse() if alone else self._update()
        elif alone:
            self._capture()
            self.run()
        else:  # a graph waits for no other process, but shapes stay the same here, too
            self._update()

    def share(self, model: WorldModel) -> None:
        """Give every process the weights of the first, after a change that no gradient made."""
        if self.fabric.world_size > 1:
            for parameter in model.parameters():
                torch.distributed.broadcast(parameter.data, 0)

    def every_generator(self) -> UInt8[Tensor, "processes state"]:
        """The states of the generators of all processes."""
        mine = self.generator.get_state()
        if self.fabric.world_size == 1:
            return mine[None]
        every = [torch.empty_like(mine, device=self.fabric.device) for _ in range(self.fabric.world_size)]
        torch.distributed.all_gather(every, mine.to(self.fabric.device))
        return torch.stack(every)

    def take_sums(self) -> dict[str, float]:
        """Means of everything summed since the last call."""
        updates = max(1.0, self.sums["updates"].item())
        means = {name: total.item() / updates for name, total in self.sums.items() if name != "updates"}
        self._sums.zero_()
        self._make_room(int(updates))
        return means

    def _update(self) -> None:
        """The update itself; everything in it can be captured."""
        share = self.settings.batch // self.fabric.world_size
        device = self.generator.device
        half = self.settings.precision == "bfloat16" and device.type == "cuda"
        clip = self.source(share, self.stage.steps, self.generator)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            loss, logs = self._model(
                clip.x, clip.a, clip.true_step, self.stage.tau, self.generator, self.stage.reading, self.objective,
                self._room,
            )  # fmt: skip
        self.fabric.backward(loss, self._one)
        if (needed := logs.pop("needed", None)) is not None:
            torch.maximum(self._most_needed, needed, out=self._most_needed)
        logs |= {"gradient": self.optimiser.step(loss), "updates": self._one}
        self._sums += torch.stack([logs[name].float() for name in self.sums])

    def _pace(self) -> None:
        """Rates of this stage; gradients are shortened apart where losses are of another scale."""
        stage = self.stage
        faster = {"motion": stage.motion_rate, "walls": stage.wall_rate, "landmarks": stage.landmark_rate, "rest": 1.0}
        steps = "steps" if self.objective.displacement or self.objective.regret else "bound"
        held = stage.motion_rate == 0
        together = {"rest": "bound", "landmarks": "pairs", "motion": None if held else steps, "walls": steps}
        self.optimiser.pace(faster, together)

    def _rehearse(self) -> None:
        """An update on a stream of its own, as capturing wants it beforehand."""
        stage = torch.cuda.Stream()
        stage.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stage):
            self._update()
        torch.cuda.current_stream().wait_stream(stage)

    def _make_room(self, updates: int) -> None:
        """Capture anew where so many updates have come to need more room than there is, or far less."""
        if self._room is None:
            return
        needed = int(self._most_needed)
        self._most_needed.zero_()
        if needed > self._room or 0 < 2 * _room_for(needed) < self._room:
            self._release(_room_for(needed, updates))

    def _capture(self) -> None:
        """Record the update without running it."""
        self._most_needed.zero_()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph):
            self._update()
        # PyTorch sets where the generator stands on the stream that captures, and on ours before each replay. On a busy
        # GPU the former could come last, and an update would draw the numbers that the very first one drew.
        torch.cuda.synchronize()
        self._graph = graph


def _room_for(needed: int, updates: int = 2) -> int:
    """So much more than these updates needed that hardly one finds too little; a round number, as GPUs like them."""
    spare = 0.2 if updates < MANY else 0.05
    return 128 * math.ceil((1 + spare) * needed / 128)
