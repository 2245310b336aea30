"""Recorded episodes in the place of a world: they are replayed, nobody can walk in them."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gtmsm.data.clip import Clip, Source
from gtmsm.episodes.episode import Kind
from gtmsm.errors import InputError
from gtmsm.worlds.world import Walk

CANNOT = "this run is about recorded episodes, and nobody can walk in a recording; `gtmsm evaluate` scores it"


class RecordedWorld:
    """Held-out episodes, with as much of a world as scoring asks for."""

    def __init__(
        self,
        kind: Kind,
        source: Source,
        longest: int,
        device: torch.device,
        unit: float = 1.0,
        can_fail: Bool[Tensor, "A"] | None = None,
    ) -> None:
        """`source` draws windows of episodes of up to `longest` steps; `unit` is the length that counts as 1 in their
        poses, and `can_fail` says which actions' steps fail where nothing changes (None: none do)."""
        height, width, channels = kind.frame_shape
        self.kind, self.source, self.longest, self.unit, self.can_fail = kind, source, longest, unit, can_fail
        self.frame_shape = (channels, height, width)
        self.action_names = kind.action_names or tuple(f"axis {i + 1}" for i in range(kind.action_size))
        self.device = device
        self.agents = 0
        self.pose: Float[Tensor, "n D"] = torch.zeros(0, kind.pose_size, device=device)

    def replay(self, n: int, steps: int, generator: torch.Generator) -> Clip:
        """Windows of held-out episodes."""
        return self.source(n, steps, generator)

    def noticed(self, clip: Clip, until: int | None = None) -> Clip:
        """The clip with steps that failed as steps without an action, up to step `until`: an agent sees that it did
        not move."""
        if self.can_fail is None:
            return clip
        failed = self.failed(clip)
        failed[:, until if until is not None else clip.steps :] = False
        return Clip(clip.x, clip.a.masked_fill(failed[..., None], 0.0), clip.true_pose, clip.true_step)

    def failed(self, clip: Clip) -> Bool[Tensor, "batch time"]:
        """Steps that show the very frame of the step before, though actions of their kind otherwise change it."""
        assert self.can_fail is not None
        same = (clip.x[:, 1:] == clip.x[:, :-1]).flatten(2).all(-1)
        acted = ((clip.a != 0) & self.can_fail).any(-1)
        return torch.nn.functional.pad(same, (1, 0)) & acted

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
    """Who walks in recordings."""
    raise InputError(CANNOT)
