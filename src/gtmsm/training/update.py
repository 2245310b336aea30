"""One training update; on a GPU the whole update is one CUDA graph."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor, nn

from gtmsm.config import config, require
from gtmsm.data.clip import Source
from gtmsm.training.base_loss import MATRICES, BaseLoss
from gtmsm.training.capacity import Capacity
from gtmsm.training.curriculum import Stage
from gtmsm.training.optimiser import Optimiser, Schedule

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@config
class OptimiserConfig:
    """Adam, as in App. A; optionally Muon for some matrices."""

    batch: int = 64
    """Clips per update, over all devices."""
    learning_rate: float = 1e-3
    """Learning rate at the first update (App. A.1)."""
    final_learning_rate: float = 5e-5
    """Learning rate after annealing (App. A.1)."""
    anneal_updates: int = 50_000
    """Updates over which the learning rate falls linearly (App. A.1)."""
    ramp_updates: int = 0
    """Updates over which the learning rate first rises from 0, before it falls; attention needs such a warm-up."""
    clip_norm: float = 10.0
    """Maximum norm of the gradients; longer ones are scaled down to it."""
    muon: float = 0.0
    """Train the hidden matrices of attention and of recognition by Muon (not in the paper), at this multiple of the
    learning rate; 3 is worth several times as many updates of Adam there. 0: by Adam, like all other parameters."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the networks while they are trained on a GPU; poses and weights are always float32."""

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        require(self.batch >= 1, f"batch is {self.batch}; give at least 1 clip")
        for name in ("learning_rate", "final_learning_rate"):
            require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; give a positive one")
        require(self.anneal_updates >= 1, f"anneal_updates is {self.anneal_updates}; give at least 1")
        require(self.ramp_updates >= 0, f"ramp_updates is {self.ramp_updates}; give 0 or more")
        require(0 <= self.muon < math.inf, f"muon is {self.muon}; give 0 for Adam, or a factor of the learning rate")
        require(self.clip_norm > 0, f"clip_norm is {self.clip_norm}; give a positive one")

    def autocast(self, device: torch.device) -> torch.autocast:
        """A context in which networks compute in `precision`; on a CPU always in float32."""
        return torch.autocast(
            device.type, torch.bfloat16, enabled=self.precision == "bfloat16" and device.type == "cuda"
        )


def build_optimiser(groups: Mapping[str, Sequence[nn.Parameter]], settings: OptimiserConfig) -> Optimiser:
    """Adam for the groups of parameters of a loss, and Muon for their matrices if `settings.muon` is above 0."""
    schedule = Schedule(
        settings.learning_rate, settings.final_learning_rate, settings.anneal_updates, settings.ramp_updates
    )
    return Optimiser(groups, schedule, settings.clip_norm, MATRICES.values() if settings.muon else ())


class Updater:
    """One update: data, loss, gradients and a step of the optimiser; it also sums up the values to log.

    All of its state is tensors on the device: the host waits for the device only when numbers are read.
    """

    def __init__(
        self,
        fabric: "Fabric",
        loss: BaseLoss[Any],
        source: Source,
        settings: OptimiserConfig,
        generator: torch.Generator,
    ) -> None:
        self.fabric, self.source, self.settings, self.generator = fabric, source, settings, generator
        self._clipped_together = loss.clipped_together
        where = next(loss.parameters()).device
        require(
            where.type == fabric.device.type,
            f"the model is on {where} but training runs on {fabric.device}; move the model there first",
        )
        self.optimiser = build_optimiser(loss.groups, settings)
        self._loss: nn.Module = fabric.setup_module(loss)
        names = [*loss.names, "gradient", "updates"]
        self._sums = torch.zeros(len(names), device=generator.device)
        self.sums = dict(zip(names, self._sums, strict=True))
        self._one = torch.ones((), device=generator.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._until_capture = 0
        self._capacity = Capacity(generator.device)

    @property
    def count(self) -> Int64[Tensor, ""]:
        """Updates done."""
        return self.optimiser.count

    def enter(self, stage: Stage) -> None:
        """Prepare for the clips of a stage."""
        self.stage = stage
        rates = {"motion": stage.motion_rate, "walls": stage.wall_rate, "landmarks": stage.landmark_rate, "rest": 1.0}
        rates |= {matrices: (self.settings.muon or 1.0) * rates[name] for name, matrices in MATRICES.items()}
        self.optimiser.pace(rates, self._clipped_together)
        self._capacity.forget()
        self.recapture()

    def recapture(self) -> None:
        """Drop the captured graph: the next updates run without one until a new one is captured."""
        self._graph = None
        # A graph can be captured once everything has been allocated and compiled: after two updates of its shapes.
        # Two more come before them to find the capacity where it is not known.
        self._until_capture = 4 if self._capacity.frames is None else 2

    def run(self) -> None:
        """Run one update; on one GPU capture it as a CUDA graph once that is possible, and replay it from then on."""
        if self.generator.device.type != "cuda":
            self._update()
        elif self._graph is not None:
            self._graph.replay()
        elif self._until_capture > 0:
            if self._until_capture == 2 and self._capacity.frames is None:
                self._capacity.settle()
            self._until_capture -= 1
            self._rehearse()
        elif self.fabric.world_size == 1:
            self._capture()
            self.run()
        else:  # a graph cannot wait for other processes
            self._update()

    def broadcast(self) -> None:
        """Copy the weights of the first process to all others, after a change that was not made by gradients."""
        if self.fabric.world_size > 1:
            for parameter in self._loss.parameters():
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
        """Means of the logged values since the last call; also reviews the capacity."""
        updates = max(1.0, self.sums["updates"].item())
        means = {name: total.item() / updates for name, total in self.sums.items() if name != "updates"}
        self._sums.zero_()
        if self._capacity.review(int(updates)):
            self.recapture()
        return means

    def _update(self) -> None:
        """The update itself; all of it can be captured in a CUDA graph."""
        stage = self.stage
        clip = self.source(self.settings.batch // self.fabric.world_size, stage.steps, self.generator)
        with self.settings.autocast(self.generator.device):
            known = clip.x, clip.a, clip.true_step, stage.tau, stage.reading, self.generator
            loss, logs, needed = self._loss(*known, self._capacity.frames, clip.tried, clip.true_pose, clip.code)
        self.fabric.backward(loss, self._one)
        self._capacity.note(needed)
        logs |= {"gradient": self.optimiser.step(loss), "updates": self._one}
        self._sums += torch.stack([logs[name].float() for name in self.sums])

    def _rehearse(self) -> None:
        """Run an update on a separate stream, as CUDA requires before a capture."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._update()
        torch.cuda.current_stream().wait_stream(stream)

    def _capture(self) -> None:
        """Capture the update as a CUDA graph, without running it."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph):
            self._update()
        # PyTorch sets the generator's offset on the capturing stream, and on ours before each replay. On a busy GPU the
        # former could come last, and an update would draw the random numbers of the very first one.
        torch.cuda.synchronize()
        self._graph = graph
