"""Frames that nobody has seen: the decoder alone, and imagination from actions to pixels."""

from collections.abc import Iterator

import torch
from torch import Tensor

from gtmsm.bench.ceilings import Precision
from gtmsm.bench.scans import random_actions
from gtmsm.bench.sizes import Sizes
from gtmsm.bench.task import Goal, Task
from gtmsm.bench.work import Work, bytes_of, count_flops, no_gradients, search_flops, weight_bytes
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.memory import Memory
from gtmsm.presets import PRESETS
from gtmsm.tensors import Belief
from gtmsm.worlds.physics import ACTIONS

PRESET = "walk"
FRAME = (3, 32, 32)
AS_MANY_AS = Goal("rate", 1e6)


def precisions(device: torch.device) -> tuple[Precision, ...]:
    """As it comes (on a GPU convolutions round to TF32), and on a GPU under autocast, too."""
    return ("tf32", "bfloat16") if device.type == "cuda" else ("float32",)


def decoder(sizes: Sizes, device: torch.device) -> Iterator[Task]:
    """Codes to pixels: most of what an imagined frame costs."""
    model = _model(device)
    count = sizes.imagined[0] * sizes.imagined[1]
    codes = torch.randn(count, model.settings.vae.code_size, device=device)
    with torch.no_grad():
        flops = count_flops(lambda: model.vae.decode(codes[:1])) * count
    traffic = bytes_of(codes) + count * bytes_of(torch.empty(FRAME)) + weight_bytes([model.vae.decoder])
    for precision in precisions(device):

        def decode(half: bool = precision == "bfloat16") -> Tensor:
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                return model.vae.decode(codes)

        yield Task(
            f"decoder alone{_named(precision)}",
            f"{count:,} frames",
            no_gradients(decode),
            count,
            "frames",
            Work(flops, traffic, precision),
            AS_MANY_AS,
        )


def imagine(sizes: Sizes, device: torch.device) -> Iterator[Task]:
    """Actions to poses, poses to memories, memories to pixels."""
    model = _model(device)
    batch, steps = sizes.imagined
    tau = PRESETS[PRESET][1].training.curriculum.tau
    memory, here = _a_memory(model, batch, tau, device)
    actions = random_actions(batch, steps, len(ACTIONS), device)
    k, size = model.settings.recall.neighbours, memory.place.mean.shape[-1]
    first = Memory(memory.place[:1], memory.code[:1])
    with torch.no_grad():
        flops = batch * count_flops(lambda: model.imagine(first, here[:1], actions[:1]).frames)
    flops += batch * search_flops(steps, tau, size)
    traffic = (
        bytes_of(actions, memory.place.mean)
        + batch
        * steps
        * (bytes_of(torch.empty(FRAME)) + k * bytes_of(memory.code.mean[0, 0], memory.code.log_var[0, 0]))
        + weight_bytes([model.motion, model.prior, model.vae.decoder])
    )
    for precision in precisions(device):

        def frames(half: bool = precision == "bfloat16") -> Tensor:
            dream = model.imagine(memory, here, actions)  # poses stay in float32
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                return dream.frames

        yield Task(
            f"imagined frames{_named(precision)}",
            f"{batch} × {steps} steps, memory {tau}",
            no_gradients(frames),
            batch * steps,
            "frames",
            Work(flops, traffic, precision),
            AS_MANY_AS,
        )


def _model(device: torch.device) -> WorldModel:
    """The paper's, untrained: weights take as long whatever they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return WorldModel(PRESETS[PRESET][1].model, FRAME, len(ACTIONS)).to(device).eval()


def _a_memory(model: WorldModel, batch: int, tau: int, device: torch.device) -> tuple[Memory, Belief]:
    """Of walks through noise."""
    generator = torch.Generator(device).manual_seed(0)
    frames = torch.rand(1, tau, *FRAME, device=device, generator=generator).expand(batch, -1, -1, -1, -1)
    with torch.no_grad():
        return model.memorise(frames, random_actions(batch, tau, len(ACTIONS), device))


def _named(precision: Precision) -> str:
    """What tells the second row from the first."""
    return ", bf16" if precision == "bfloat16" else ""
