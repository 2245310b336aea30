"""Recorded episodes in place of a world: they can be replayed, but no agent can walk in them."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from gtmsm.data.clip import Clip, Source
from gtmsm.episodes.episode import Kind
from gtmsm.errors import InputError
from gtmsm.tensors import Actions, Poses
from gtmsm.worlds.world import Walk

FAILS = 0.2
"""Fraction of an action's usual step below which a step has failed."""

CANNOT = "this run is about recorded episodes, and nobody can walk in a recording; `gtmsm evaluate` scores it"


@dataclass(frozen=True)
class Failing:
    """Which steps fail: those that are much shorter than usual or, if poses are unknown, leave the frame unchanged."""

    usual: Float[Tensor, "A 2"]
    """Length and turn of a step of each action that does not fail; 0 if the action never moves or turns, or poses are
    unknown."""
    shows: Bool[Tensor, "A"]
    """Actions that usually change the frame."""

    def __call__(
        self, x: Shaped[Tensor, "batch time *picture"], a: Actions, step: Poses, unit: float = 1.0
    ) -> Bool[Tensor, "batch time"]:
        """Return which steps failed; `unit` is the length that counts as 1 in `step`."""
        if step.shape[-1]:
            usual = a.abs() @ self.usual
            went = torch.stack([unit * step[..., :2].norm(dim=-1), step[..., 2:].sum(-1).abs()], dim=-1)
            expected = usual > 0
            return expected.any(-1) & ~(expected & (went >= FAILS * usual)).any(-1)
        same = (x[:, 1:] == x[:, :-1]).flatten(2).all(-1)
        return torch.nn.functional.pad(same, (1, 0)) & ((a != 0) & self.shows).any(-1)


class RecordedWorld:
    """Held-out episodes, with the part of a world's interface that scoring needs."""

    def __init__(
        self,
        kind: Kind,
        source: Source,
        longest: int,
        device: torch.device,
        unit: float = 1.0,
        failing: Failing | None = None,
    ) -> None:
        """`source` draws windows of episodes of up to `longest` steps; `unit` is the length that counts as 1 in their
        poses, and `failing` tells which steps failed (None: none do)."""
        height, width, channels = kind.frame_shape
        self.kind, self.source, self.longest, self.unit, self.failing = kind, source, longest, unit, failing
        self.frame_shape = (channels, height, width)
        self.action_names = kind.action_names or tuple(f"axis {i + 1}" for i in range(kind.action_size))
        self.device = device
        self.agents = 0
        self.pose: Float[Tensor, "n D"] = torch.zeros(0, kind.pose_size, device=device)

    def replay(self, n: int, steps: int, generator: torch.Generator) -> Clip:
        """Draw windows of held-out episodes."""
        return self.source(n, steps, generator)

    def noticed(self, clip: Clip) -> Clip:
        """Turn the failed steps of a clip into steps without an action, and keep the actions that were tried."""
        if self.failing is None:
            return clip
        made = clip.a.masked_fill(self.failed(clip)[..., None], 0.0)
        return Clip(clip.x, made, clip.true_pose, clip.true_step, clip.a)

    def failed(self, clip: Clip) -> Bool[Tensor, "batch time"]:
        """Which steps failed."""
        assert self.failing is not None
        return self.failing(clip.x, clip.a, clip.true_step, self.unit)

    # ---- what only a world can do

    def reset(self, n: int, generator: torch.Generator | None = None) -> None:
        """Refused."""
        raise InputError(CANNOT)

    def step(self, action: Tensor) -> None:
        """Refused."""
        raise InputError(CANNOT)

    def walk(self, actions: Tensor) -> Walk:
        """Refused."""
        raise InputError(CANNOT)

    def look(self) -> Tensor:
        """Refused."""
        raise InputError(CANNOT)


def nobody(world: object, steps: int, generator: torch.Generator) -> Tensor:
    """Stand-in for a walker of a recording: refuses to walk."""
    raise InputError(CANNOT)
