"""One training update; on a GPU the whole of it is one CUDA graph."""

import torch
from jaxtyping import UInt8
from lightning_fabric import Fabric
from torch import Tensor, nn

from gtmsm.config import config, require
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
    clip_norm: float = 10.0
    """Gradients longer than this are shortened to it."""

    def __post_init__(self) -> None:
        """Refuse what cannot learn."""
        require(self.batch >= 1, f"batch is {self.batch}; give at least 1 clip")
        for name in ("learning_rate", "final_learning_rate"):
            require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; give a positive one")
        require(self.anneal_updates >= 1, f"anneal_updates is {self.anneal_updates}; give at least 1")
        require(self.clip_norm > 0, f"clip_norm is {self.clip_norm}; give a positive one")


def build_optimiser(model: WorldModel, settings: OptimiserConfig) -> torch.optim.Adam:
    """Adam with two groups, the walls apart; rates are tensors, so that a graph can change them."""
    walls = [p for name, p in model.motion.named_parameters() if name != "M"]
    fast = {id(p) for p in walls}
    rest = [p for p in model.parameters() if id(p) not in fast]
    device = rest[0].device
    return torch.optim.Adam(
        [
            {"params": params, "lr": torch.tensor(settings.learning_rate, device=device), "walls": params is walls}
            for params in (rest, walls)
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
        generator: torch.Generator,
    ) -> None:
        self.fabric, self.source, self.settings, self.generator = fabric, source, settings, generator
        self.optimiser = build_optimiser(model, settings)
        wrapped, self._wrapped_optimiser = fabric.setup(model, self.optimiser)
        self._model: nn.Module = wrapped
        device = generator.device
        self.count = torch.zeros((), dtype=torch.int64, device=device)
        self.first_bad = torch.zeros((), dtype=torch.int64, device=device)
        """Number of the first update whose loss or gradient was not finite; 0 while there is none."""
        self.sums = {
            name: torch.zeros((), device=device) for name in ("elbo", "log_likelihood", "kl", "gradient", "updates")
        }
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
        loss, logs = self._model(clip.x, clip.a, self.stage.tau, self.generator, self.stage.reading)
        self._wrapped_optimiser.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        length = self.fabric.clip_gradients(
            self._model, self._wrapped_optimiser, max_norm=self.settings.clip_norm, error_if_nonfinite=False
        )
        assert isinstance(length, Tensor)
        self._anneal()
        self._wrapped_optimiser.step()
        self.count += 1
        fine = torch.isfinite(loss.detach()) & torch.isfinite(length)
        self.first_bad.copy_(torch.where(fine | (self.first_bad > 0), self.first_bad, self.count))
        for name, value in (*logs.items(), ("gradient", length), ("updates", torch.ones_like(length))):
            self.sums[name] += value

    def _anneal(self) -> None:
        """Learning rates of this update, by its number."""
        done = (self.count / self.settings.anneal_updates).clamp(max=1.0)
        rate = torch.lerp(
            torch.full_like(done, self.settings.learning_rate),
            torch.full_like(done, self.settings.final_learning_rate),
            done,
        )
        for group in self.optimiser.param_groups:
            group["lr"].copy_(rate * self.stage.wall_rate if group["walls"] else rate)

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
