"""All that training needs to go on exactly where it was, in one safetensors file: nothing is ever unpickled."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gtmsm.errors import InputError
from gtmsm.files import write_atomically
from gtmsm.model.gtmsm import WorldModel
from gtmsm.training.update import Updater

CHECKPOINT = "checkpoint.safetensors"


def write_checkpoint(path: Path, model: WorldModel, updater: Updater, prospected: bool) -> None:
    """Weights, optimiser, counters and randomness."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, moments in updater.optimiser.state.items():
        tensors |= {f"optimiser.{names[parameter]}.{key}": value for key, value in moments.items()}
    tensors |= {f"sums.{name}": total for name, total in updater.sums.items()}
    tensors["count"] = updater.count
    tensors["generator"] = updater.generator.get_state()
    # clone: safetensors refuses tensors that share memory
    whole = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    write_atomically(path, save(whole, {"gtmsm": json.dumps({"prospected": prospected})}))


def read_checkpoint(path: Path, model: WorldModel, updater: Updater) -> bool:
    """Put everything back in place; returns whether the motion had been prospected for."""
    if not path.is_file():
        raise InputError(f"nothing to resume: {path} does not exist; train without --resume")
    try:
        with safe_open(path, framework="pt") as content:
            about = json.loads((content.metadata() or {}).get("gtmsm", "{}"))
            tensors = {name: content.get_tensor(name) for name in content.keys()}
    except (SafetensorError, OSError) as problem:
        raise InputError(f"{path} cannot be read as a checkpoint ({problem}); is it whole?") from None
    model.load_weights(_below("model", tensors), path)
    parameters = dict(model.named_parameters())
    for key, value in _below("optimiser", tensors).items():
        name, moment = key.rsplit(".", 1)
        parameter = parameters[name]
        # fused Adam counts its steps on the CPU unless it is captured in a graph, where they live on the GPU
        device = "cpu" if moment == "step" and parameter.device.type == "cpu" else parameter.device
        updater.optimiser.state[parameter][moment] = value.to(device)
    for name, total in _below("sums", tensors).items():
        updater.sums[name].copy_(total)
    updater.count.copy_(tensors["count"])
    if tensors["generator"].shape != updater.generator.get_state().shape:
        raise InputError(f"{path} was written on another kind of device; resume it on that kind")
    updater.generator.set_state(tensors["generator"])
    return bool(about["prospected"])


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entries `prefix.*`, without the prefix."""
    return {name.removeprefix(f"{prefix}."): value for name, value in tensors.items() if name.startswith(f"{prefix}.")}


def latest_update(path: Path) -> int:
    """How many updates a checkpoint has seen."""
    with safe_open(path, framework="pt") as content:
        count: torch.Tensor = content.get_tensor("count")
    return int(count)
