"""One training update; on a GPU the whole of it is one CUDA graph."""

from typing import Literal

import torch
from jaxtyping import UInt8
from lightning_fabric import Fabric
from torch import Tensor, nn

from gtmsm.config import config, require
from gtmsm.model.elbo import ObjectiveConfig
from gtmsm.model.gtmsm import WorldModel
from gtmsm.training.curriculum import Stage
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


def build_optimiser(model: WorldModel, settings: OptimiserConfig) -> torch.optim.Adam:
    """Adam with groups for the motion, its walls and the rest; rates are tensors, so that a graph can change them."""
    moving = dict(model.motion.named_parameters())
    marks = [] if model.landmarks is None else list(model.landmarks.parameters())
    apart = {id(parameter) for parameter in (*moving.values(), *marks)}
    groups = {
        "rest": [parameter for parameter in model.parameters() if id(parameter) not in apart],
        "landmarks": marks,
        "motion": [p for name, p in moving.items() if name not in model.motion.walls],
        "walls": [moving[name] for name in model.motion.walls],
    }
    device = groups["motion"][0].device
    return torch.optim.Adam(
        [
            {"params": params, "lr": torch.tensor(settings.learning_rate, device=device), "name": name}
            for name, params in groups.items()
            if params
        ],
        fused=True,
        capturable=device.type == "cuda",
    )


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
        self.optimiser = build_optimiser(model, settings)
        wrapped, self._wrapped_optimiser = fabric.setup(model, self.optimiser)
        self._model: nn.Module = wrapped
        device = generator.device
        self.count = torch.zeros((), dtype=torch.int64, device=device)
        self.first_bad = torch.zeros((), dtype=torch.int64, device=device)
        """Number of the first update whose loss or gradient was not finite; 0 while there is none."""
        names = ["recognition"] if objective.recognition_only else ["elbo", "log_likelihood", "kl"]
        if not objective.recognition_only:
            names += [name for name in ("foresight", "displacement") if getattr(objective, name)]
            names += ["pose_kl", "recognition", "regret"] if model.landmarks is not None else []
        names += ["gradient", "updates"]
        self.sums = {name: torch.zeros((), device=device) for name in names}
        self._graph: torch.cuda.CUDAGraph | None = None
        self._until_capture = 0

    def enter(self, stage: Stage) -> None:
        """Prepare for the clips of a stage: its graph must be captured anew."""
        self.stage = stage
        self._graph = None
        # A graph can be captured once everything has been allocated and compiled: after a few real updates.
        self._until_capture = 3

    def run(self) -> None:
        """One update."""
        if self.generator.device.type != "cuda" or self.fabric.world_size > 1:
            self._update()
        elif self._graph is not None:
            self._graph.replay()
        elif self._until_capture > 0:
            self._until_capture -= 1
            self._update_aside()
        else:
            self._capture()
            self.run()

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
        for total in self.sums.values():
            total.zero_()
        return means

    def _update(self) -> None:
        """The update itself; everything in it can be captured."""
        share = self.settings.batch // self.fabric.world_size
        clip = self.source(share, self.stage.steps, self.generator)
        half = self.settings.precision == "bfloat16" and clip.x.is_cuda
        with torch.autocast(clip.x.device.type, torch.bfloat16, enabled=half):
            loss, logs = self._model(
                clip.x, clip.a, clip.true_step, self.stage.tau, self.generator, self.stage.reading, self.objective
            )
        self._wrapped_optimiser.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        length = self._clip()
        self._anneal()
        self._wrapped_optimiser.step()
        self.count += 1
        fine = torch.isfinite(loss.detach()) & torch.isfinite(length)
        self.first_bad.copy_(torch.where(fine | (self.first_bad > 0), self.first_bad, self.count))
        for name, value in (*logs.items(), ("gradient", length), ("updates", torch.ones_like(length))):
            self.sums[name] += value

    def _clip(self) -> Tensor:
        """Shorten long gradients; apart where losses are of another scale: of landmarks, of displacements."""
        together: dict[str, list[Tensor]] = {}
        for group in self.optimiser.param_groups:
            if group["name"] == "motion" and self.stage.motion_rate == 0:
                continue  # what is held must not shorten the steps of what learns
            learns_from = {"rest": "bound", "landmarks": "pairs"}.get(group["name"], "steps")
            if learns_from == "steps" and not (self.objective.displacement or self.objective.regret):
                learns_from = "bound"
            learning = [parameter for parameter in group["params"] if parameter.grad is not None]
            together.setdefault(learns_from, []).extend(learning)
        lengths = [
            torch.nn.utils.clip_grad_norm_(params, self.settings.clip_norm) for params in together.values() if params
        ]
        return torch.stack(lengths).norm()

    def _anneal(self) -> None:
        """Learning rates of this update, by its number."""
        done = (self.count / self.settings.anneal_updates).clamp(max=1.0)
        rate = torch.lerp(
            torch.full_like(done, self.settings.learning_rate),
            torch.full_like(done, self.settings.final_learning_rate),
            done,
        )
        if self.settings.ramp_updates:
            rate = rate * (self.count / self.settings.ramp_updates).clamp(max=1.0)
        stage = self.stage
        faster = {"motion": stage.motion_rate, "walls": stage.wall_rate, "landmarks": stage.landmark_rate}
        for group in self.optimiser.param_groups:
            group["lr"].copy_(rate * faster.get(group["name"], 1.0))

    def _update_aside(self) -> None:
        """An update on a stream of its own, as capturing wants it beforehand."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._update()
        torch.cuda.current_stream().wait_stream(aside)

    def _capture(self) -> None:
        """Record the update without running it."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        with torch.cuda.graph(graph):
            self._update()
        self._graph = graph
