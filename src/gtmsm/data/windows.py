"""Clips rendered once, on the device that trains, and cut into windows for every update."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from gtmsm.data.clip import Clip
from gtmsm.data.record import one_hot, steps_of
from gtmsm.errors import InputError
from gtmsm.tensors import Frames, Gaussian
from gtmsm.worlds.rooms import Rooms
from gtmsm.worlds.slip import Slipping
from gtmsm.worlds.walkers import Walker


@dataclass(frozen=True)
class Windows:
    """A pool of clips. Frames are bytes, a quarter of the memory of floats."""

    frames: UInt8[Tensor, "clips time channel height width"]
    a: Float[Tensor, "clips time A"]
    true_pose: Float[Tensor, "clips time D"]
    true_step: Float[Tensor, "clips time D"]
    code: Gaussian | None = None
    """Codes of the frames, if the coder no longer learns."""

    def __call__(self, n: int, steps: int, generator: torch.Generator) -> Clip:
        """Draw `n` windows of `steps` consecutive steps, each from a random step of a random clip."""
        clips, length = self.frames.shape[:2]
        if steps > length:
            raise InputError(
                f"asked for windows of {steps} steps but clips have {length}; record longer clips, or memorise and "
                "predict fewer"
            )
        which = torch.randint(clips, (n, 1), device=generator.device, generator=generator)
        first = torch.randint(length - steps + 1, (n, 1), device=generator.device, generator=generator)
        row = (which * length + first + torch.arange(steps, device=generator.device)).flatten()

        def cut(part: Tensor) -> Tensor:
            return part.flatten(0, 1).index_select(0, row).unflatten(0, (n, steps))

        code = self.code and Gaussian(cut(self.code.mean), cut(self.code.log_var))
        return Clip(cut(self.frames) / 255, cut(self.a), cut(self.true_pose), cut(self.true_step), code=code)

    @torch.no_grad()
    def encoded(self, encode: Callable[[Frames], Gaussian], at_once: int = 64) -> "Windows":
        """The same with the codes of all frames, computed for `at_once` clips at a time."""
        first = encode(self.frames[:1] / 255)
        whole = Gaussian(*(part.new_empty(len(self.frames), *part.shape[1:]) for part in (first.mean, first.log_var)))
        for begin in range(0, len(self.frames), at_once):  # in place: codes are as large as the frames
            some = slice(begin, begin + at_once)
            code = encode(self.frames[some] / 255)
            whole.mean[some], whole.log_var[some] = code.mean, code.log_var
        return replace(self, code=whole)


def record_windows(
    world: Rooms | Slipping, walker: Walker, clips: int, steps: int, generator: torch.Generator
) -> Windows:
    """Record `clips` agents that are put into the world and walk for `steps`, all on the world's device."""
    world.reset(clips, generator)
    actions = walker(world, steps, generator)
    start = world.pose
    frames, poses = world.walk_bytes(actions)
    return Windows(frames, one_hot(actions, len(world.action_names)), poses, steps_of(start, poses))
