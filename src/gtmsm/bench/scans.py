"""Loops over time: many walks of poses alone, and the scans of a training update there and back."""

from collections.abc import Iterator

import torch
from torch import Tensor

from gtmsm.bench.sizes import Sizes
from gtmsm.bench.task import Goal, Task
from gtmsm.bench.work import Work, bytes_of, fuse_flops, no_gradients, walled_step_flops
from gtmsm.kernels.scans.walled_scan import Gate, walled_scan
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.landmark_filter import Sights, Surprise, filter_positions
from gtmsm.presets import PRESETS
from gtmsm.worlds.image_walk import ACTIONS

THERE_AND_BACK = 3
"""A gradient takes about twice the arithmetic of what it is of."""
SIGHTS = 8
"""K' of a step, in the landmark scan."""


def random_actions(batch: int, steps: int, kinds: int, device: torch.device) -> Tensor:
    """One-hot, all equally likely."""
    generator = torch.Generator(device).manual_seed(0)
    drawn = torch.randint(kinds, (batch, steps), device=device, generator=generator)
    return torch.nn.functional.one_hot(drawn, kinds).float()


def rollouts(sizes: Sizes, device: torch.device) -> Iterator[Task]:
    """Poses of many sequences of actions between walls: what planning would ask for."""
    batch, steps = sizes.rollouts
    settings = PRESETS["image-walk"][1].model
    motion = WorldModel(settings, (3, 8, 8), len(ACTIONS)).motion.to(device)
    start, actions = motion.start(batch), random_actions(batch, steps, len(ACTIONS), device)
    size = motion.state_size
    each = 2 * size * len(ACTIONS) + walled_step_flops(settings.motion.hidden, size)
    least = Work(batch * steps * each, bytes_of(actions) + bytes_of(start) * (1 + steps))
    yield Task(
        "pose rollouts",
        f"{batch:,} × {steps} steps",
        no_gradients(lambda: motion.unroll(start, actions)),
        batch * steps,
        "steps",
        least,
        Goal("rate", 200e6),
    )


def walled(sizes: Sizes, device: torch.device) -> Iterator[Task]:
    """The scan between walls with its gradients, as in an update."""
    batch, steps = sizes.scan
    start, displacement, noise, gate = _a_walk(batch, steps, device)
    inputs = [start, displacement, noise, *gate]

    def there_and_back() -> object:
        return torch.autograd.grad(walled_scan(start, displacement, noise, gate).sum(), inputs)

    flops = THERE_AND_BACK * batch * steps * walled_step_flops(*gate.W.shape)
    least = Work(flops, 2 * bytes_of(*inputs) + 2 * bytes_of(displacement))  # poses, and their gradients coming back
    size = f"{batch} × {steps} steps"
    yield Task("walled scan + grad", size, there_and_back, batch * steps, "steps", least, graph=True)


def landmarks(sizes: Sizes, device: torch.device) -> Iterator[Task]:
    """The scan that recognises places on the way; training filters without gradients."""
    batch, steps = sizes.scan
    start, displacement, _, gate = _a_walk(batch, steps, device)
    earlier = torch.arange(steps, device=device)[:, None] - 1 - torch.arange(SIGHTS, device=device)
    index = earlier.clamp_min(0).expand(batch, steps, SIGHTS).contiguous()
    generator = torch.Generator(device).manual_seed(1)
    drawn = torch.randn(batch, steps, SIGHTS, 4, device=device, generator=generator)
    log_odds = torch.where(earlier >= 0, 1 + drawn[..., 0], -torch.inf)
    offset, spread = 0.3 * drawn[..., 1:3], 0.1 * drawn[..., 3:].exp()
    variance = torch.full((batch, 1), 0.1, device=device)
    past = torch.zeros(batch, 0, 2, device=device), torch.zeros(batch, 0, 1, device=device)
    sights, surprise = Sights(index, log_odds, offset, spread), Surprise(0.1, (0.02,), (0.5,))
    inputs = [start, displacement, *gate, variance, log_odds, offset, spread]

    def forward() -> object:
        return filter_positions(start, displacement, gate, variance, sights, past, surprise)

    each = walled_step_flops(*gate.W.shape) + fuse_flops(SIGHTS, 2)
    made = 1.5 * bytes_of(displacement)  # positions and variances
    least = Work(batch * steps * each, bytes_of(*inputs, index) + int(made))
    size = f"{batch} × {steps} steps, {SIGHTS} sights"
    yield Task("landmark scan", size, no_gradients(forward), batch * steps, "steps", least, graph=True)


def _a_walk(batch: int, steps: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Gate]:
    """Start, displacements, noise and walls, all to be learned from."""
    generator = torch.Generator(device).manual_seed(0)
    hidden = PRESETS["image-walk"][1].model.motion.hidden

    def draw(scale: float, *shape: int) -> Tensor:
        return (scale * torch.randn(shape, device=device, generator=generator)).requires_grad_()

    gate = Gate(draw(1, hidden, 2), draw(1, hidden), draw(1 / hidden, hidden), draw(1))
    return draw(1, batch, 2), draw(0.3, batch, steps, 2), draw(1e-3, batch, steps, 2), gate
