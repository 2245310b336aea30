"""Checkpoints: all that training needs to continue exactly, in one safetensors file; nothing is ever unpickled."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gtmsm.config import TOO_MANY, require
from gtmsm.errors import InputError
from gtmsm.files import read_tensors, write_tensors
from gtmsm.model.budget import Budget
from gtmsm.model.weights import take_weights
from gtmsm.training.base_loss import Trainable
from gtmsm.training.update import Updater

CHECKPOINT = "checkpoint.safetensors"


def write_checkpoint(path: Path, model: Trainable, updater: Updater, prospected: bool) -> None:
    """Write weights, optimiser, counters and the generator states of all processes; every process must call it."""
    generators = updater.every_generator()
    if not updater.fabric.is_global_zero:
        return
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        state = updater.optimiser.state(parameter)
        tensors |= {f"optimiser.{name}.{key}": value for key, value in state.items()}
    tensors |= {f"sums.{name}": total for name, total in updater.sums.items()}
    tensors["count"] = updater.count
    tensors["generator"] = generators
    write_tensors(path, tensors, {"prospected": prospected, "device": updater.generator.device.type})


def updates_behind(path: Path) -> int:
    """Number of updates done when a checkpoint was written; refuses other files."""
    return int(_open(path)[1]["count"])


def budget_of(path: Path) -> Budget:
    """What a model resumed from a checkpoint may allocate."""
    return Budget(_below("model", _open(path)[1]), path)


def _open(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the tensors of a checkpoint; refuses other files."""
    require(path.is_file(), f"nothing to resume: {path} does not exist; train into another --run, without --resume")
    about, tensors = read_tensors(path)
    nothing = torch.zeros(())
    count, generator = tensors.get("count", nothing), tensors.get("generator", nothing)
    fits = count.dtype == torch.int64 and count.dim() == 0 and 0 <= int(count) < TOO_MANY
    if not (fits and generator.dtype == torch.uint8 and isinstance(about.get("prospected"), bool)):
        raise InputError(f"{path} is not a checkpoint of gtmsm; resume a run folder that `gtmsm train` made")
    return about, tensors


def read_checkpoint(path: Path, model: Trainable, updater: Updater) -> bool:
    """Restore model, optimiser, counters and generator; return whether the motion had been prospected for."""
    about, tensors = _open(path)
    take_weights(model, _below("model", tensors), path)
    homes = {"count": updater.count} | {f"sums.{name}": total for name, total in updater.sums.items()}
    for name, parameter in model.named_parameters():
        homes |= {f"optimiser.{name}.{key}": value for key, value in updater.optimiser.state(parameter).items()}
    # Checkpoints of version 0.1 have one count for all groups, and lack some of the sums.
    saved = {name: home for name, home in homes.items() if name.startswith("sums.")}
    saved |= {name: tensors["count"] for name in homes if name.endswith(".step")}
    saved |= {name: value for name, value in tensors.items() if name != "generator" and not name.startswith("model.")}
    for name in sorted(homes.keys() | saved.keys()):
        mine, theirs = ((part[name].dtype, part[name].shape) if name in part else () for part in (homes, saved))
        fits = mine == theirs and bool(saved[name].isfinite().all())
        require(fits, f"{path} is of another training, or damaged: see {name}; train into another --run")
    for name, home in homes.items():
        home.copy_(saved[name])
    try:
        updater.generator.set_state(_generator(path, about, tensors["generator"], updater))
    except RuntimeError as problem:
        raise InputError(f"{path} is damaged at generator ({problem}); train into another --run") from None
    return bool(about["prospected"])


def _generator(path: Path, about: Mapping[str, Any], states: Tensor, updater: Updater) -> Tensor:
    """The state of this process's generator, among those of all processes."""
    size, processes, here = updater.generator.get_state().numel(), updater.fabric.world_size, updater.generator.device
    # Checkpoints of version 0.1 do not say where they were written; the state of a CPU's generator is much longer.
    of_cpu = states.numel() % torch.Generator().get_state().numel() == 0
    there = about.get("device", "cpu" if of_cpu else "cuda")
    require(there == here.type, f"{path} was written on {there}, and this is {here.type}; resume with --device {there}")
    if states.numel() != size * processes:
        raise InputError(
            f"{path} was written by {states.numel() // size} processes; resume it with as many --devices, "
            f"not {processes}"
        )
    return states.view(processes, size)[updater.fabric.global_rank].clone()


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entries `prefix.*`, without the prefix."""
    return {name.removeprefix(f"{prefix}."): value for name, value in tensors.items() if name.startswith(f"{prefix}.")}
