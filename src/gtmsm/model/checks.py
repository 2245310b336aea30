"""Checks of the arguments of a world model's methods; each error says in one line how to fix it.

Numbers are checked where they enter a method and where they leave it. Training calls none of these checks.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gtmsm.config import require, require_whole
from gtmsm.errors import InputError
from gtmsm.model.long_memory import LongMemory
from gtmsm.model.memory import Memory, require_weights_of
from gtmsm.tensors import Belief, Gaussian, are_finite, have_values

if TYPE_CHECKING:
    from gtmsm.model.gtmsm import WorldModel

OWN = "; give what memorise of this model returned"


def require_like(model: "WorldModel", what: str, value: object, sizes: tuple[int | str, ...], hint: str) -> None:
    """Require a tensor of these sizes (a name stands for any), of the type and on the device of the model's weights."""
    if not isinstance(value, Tensor):
        raise InputError(f"{what} a {type(value).__name__}; give a tensor, of an array torch.from_numpy(array)")
    weight = model.motion.start(1)  # has the type and device of the weights, and is made quickly
    fits = value.dim() == len(sizes) and all(
        isinstance(size, str) or size == own for size, own in zip(sizes, value.shape, strict=True)
    )
    if not (fits and value.dtype == weight.dtype and value.device == weight.device and value.layout == torch.strided):
        raise InputError(
            f"{what} {value.dtype} of shape {tuple(value.shape)} on {value.device}; this model expects "
            f"{weight.dtype} of shape ({', '.join(map(str, sizes))}) on {weight.device}{hint}"
        )


def require_clips(
    model: "WorldModel",
    frames: Tensor,
    actions: Tensor,
    verb: str,
    memory: Memory | None = None,
    here: Belief | None = None,
) -> None:
    """Require frames in [0, 1], as many finite actions and, if given, as many memories and initial poses as clips."""
    require_actions(model, actions)
    require_frames(model, frames)
    if frames.shape[:2] != actions.shape[:2]:
        raise InputError(
            f"{tuple(frames.shape[:2])} frames but {tuple(actions.shape[:2])} actions (batch, time); "
            "give one action per frame: the one that led to it"
        )
    clips, steps = frames.shape[:2]
    require(clips > 0, "there are 0 clips; give at least 1")
    require(steps > 0, f"there is nothing to {verb}: frames and actions have 0 steps; give at least 1")
    if memory is not None:
        require_memory(model, memory)
        require(memory.batch == clips, f"{memory.batch} memories and {clips} clips; give as many of each")
    if here is not None:
        require_here(model, here)
        require(len(here.mean) == clips, f"{len(here.mean)} poses to set out from and {clips} clips; give as many")
    if have_values(frames):
        low, high = torch.stack(frames.detach().aminmax()).tolist()
        require(0 <= low <= high <= 1, f"frames lie in [{low:.3g}, {high:.3g}]; expected [0, 1]: bytes divided by 255")
    require_finite(model, verb, given(actions, here))


def require_frames(model: "WorldModel", frames: Tensor) -> None:
    """Require frames of the size and type that this model was built for."""
    sizes = ("batch", "time", *model.frame_shape)
    require_like(model, "frames are", frames, sizes, ", in [0, 1]: bytes divided by 255")


def require_actions(model: "WorldModel", actions: Tensor) -> None:
    """Require actions as float vectors of the right size."""
    sizes = ("batch", "time", model.action_size)
    require_like(model, "actions are", actions, sizes, ", one-hot where actions are discrete")


def require_kind(thing: object, wanted: type) -> None:
    """Refuse an object of another type."""
    if not isinstance(thing, wanted):
        raise InputError(f"got a {type(thing).__name__} for a {wanted.__name__}; memorise returns (memory, here)")


def require_memory(model: "WorldModel", memory: Memory) -> None:
    """Require a memory that this model could have written, of finite numbers."""
    require_kind(memory, Memory)
    if memory.weights is not None:
        require_weights_of(memory, model.fingerprint)
    if isinstance(memory, LongMemory) and not len(memory):  # it has no sizes yet
        return
    memory = memory.to_check
    require_kind(memory.place, Belief)
    require_kind(memory.code, Gaussian)
    place, code, size, kl = memory.place, memory.code, model.place_size, model.settings.recall.distance == "kl"
    require_like(model, "memory.code.mean is", code.mean, ("batch", "n", model.settings.vae.code_size), OWN)
    lead = code.mean.shape[:2]
    require_like(model, "memory.code.log_var is", code.log_var, code.mean.shape, OWN)
    require_like(model, "memory.place.mean is", place.mean, (*lead, size), OWN)
    if kl or place.covariance is not None:
        require_like(model, "memory.place.covariance is", place.covariance, (*lead, size, size), OWN)
    if model.landmarks is not None and memory.variance is not None:
        require_like(model, "memory.variance is", memory.variance, (*lead, len(model.landmarks.groups)), OWN)
    if model.landmarks is not None and memory.slips is not None:
        require_like(model, "memory.slips is", memory.slips, (*lead, 3 * len(model.landmarks.groups)), OWN)
    if model.prior.digest_sizes is not None:  # in any precision: that of autocast when it was written
        found = None if memory.digest is None else tuple(memory.digest.shape)
        wanted = (*lead, *model.prior.digest_sizes)
        require(found == wanted, f"memory.digest is of shape {found}; this model expects {wanted}{OWN}")
    if have_values(code.mean) and not memory.is_finite:
        raise InputError("this memory holds NaN or infinity; memorise the walk again")


def require_here(model: "WorldModel", here: Belief) -> None:
    """Require an initial pose for each walk, of the size of this model's states."""
    require_kind(here, Belief)
    size, hint = model.motion.state_size, ": one pose per walk, like walk[:, -1], of this model"
    require_like(model, "here.mean is", here.mean, ("batch", size), hint)
    if here.covariance is not None:
        require_like(model, "here.covariance is", here.covariance, (len(here.mean), size, size), hint)


def given(actions: Tensor, here: Belief | None) -> dict[str, Tensor | None]:
    """Tensors that a method is given besides frames and a memory, by name."""
    parts: dict[str, Tensor | None] = {"actions": actions}
    return parts if here is None else {**parts, "here.mean": here.mean, "here.covariance": here.covariance}


def require_finite(model: "WorldModel", verb: str, parts: Mapping[str, Tensor | None], *made: Tensor | None) -> None:
    """Refuse NaN and infinity in inputs `parts` and outputs `made` of a method; the error names their source."""
    if are_finite(*parts.values(), *made):
        return
    for name, part in parts.items():
        require(are_finite(part), f"{name} holds NaN or infinity; give finite numbers")
    for name, weight in model.state_dict().items():
        require(are_finite(weight), f"the weight {name} of this model holds NaN or infinity; load or train it again")
    raise InputError(
        f"{verb} came to NaN or infinity, though all that was given is finite: numbers are too large; give smaller "
        "actions and poses, or compute in float64"
    )


def require_closure(model: "WorldModel", closure: int | None) -> None:
    """Require a number of steps after which loops are closed, and a model that can close them."""
    if closure is not None and (not isinstance(closure, int) or closure < 0 or (closure and not model.landmarks)):
        raise InputError(f"closure is {closure}; give a number of steps, 0 for never; it takes landmarks")


def require_enough(memory: Memory, asked: int) -> None:
    """Require a memory that holds enough entries to look up."""
    require(len(memory) > 0, "this memory is empty; memorise a walk before you ask where something was seen")
    require(
        asked <= len(memory),
        f"this model looks up {asked} entries (K') but memory holds {len(memory)}; memorise at least {asked} steps",
    )


def start_of_plans(model: "WorldModel", memory: Memory, here: Belief, plans: int) -> Belief:
    """Require as many memories and initial poses as plans, or one for all; return an initial pose for each plan."""
    require_memory(model, memory)
    require_here(model, here)
    require(plans > 0, "there are 0 plans; give the actions of at least 1")
    require(len(memory) > 0, "this memory is empty; memorise a walk before you imagine another")
    if len(here.mean) not in (1, plans) or memory.batch not in (1, plans):
        raise InputError(
            f"{memory.batch} memories, {len(here.mean)} places to start from and {plans} plans; "
            "give as many of each, or one memory and one place for all plans"
        )
    if len(here.mean) == plans:
        return here
    covariance = None if here.covariance is None else here.covariance.expand(plans, -1, -1)
    return Belief(here.mean.expand(plans, -1), covariance)


def require_split(steps: int, tau: int, neighbours: int) -> None:
    """Require a clip with enough steps to memorise and at least one to explain."""
    require_whole("tau", tau, most=steps - 1)
    few = f"tau is {tau} but this model reads {neighbours} neighbours; memorise at least as many steps"
    require(neighbours <= tau, few)


def require_device(device: torch.device | str) -> torch.device:
    """Require a device that PyTorch knows and that is available."""
    try:
        found = torch.device(device)
        require(found.type != "meta", "device is meta, which holds no numbers; use cpu or cuda")
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError):
        gpus = torch.cuda.device_count()
        there = f"PyTorch sees {gpus} GPUs here" if gpus else "PyTorch sees no GPU"
        raise InputError(f'device is {device!r}, but {there}; use "cpu" or, with a GPU, "cuda"') from None
    return found
