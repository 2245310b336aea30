"""Loop closure while walking: the poses of the last steps are corrected when a place is recognised again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from gtmsm.model.following import Observed
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.landmark_filter import Sights, Watched
from gtmsm.model.long_memory import LongMemory
from gtmsm.model.memory import Memory
from gtmsm.model.place_graph import PlaceGraph
from gtmsm.model.pose_graph import close_loops, close_watched_loops, planned_steps
from gtmsm.tensors import Poses, State, States

OPEN = 1_024
"""Maximum number of steps that are still corrected one by one, so that long walks cost no more per step."""


@dataclass(frozen=True)
class OpenSteps:
    """Consecutive steps, with the planned displacement and the recognised places of each; an immutable value."""

    first: int
    """Number of the entry of the first step."""
    start: State
    """State of the agent before the first step."""
    state: States
    plan: Poses
    """Planned displacement of each step; for watched steps, the observed one."""
    sights: Sights
    """Entries recognised at each step, by their numbers."""
    added: Float[Tensor, "1 time G"] | None = None
    """Variance added by each watched step; None if steps were not watched."""

    def __len__(self) -> int:
        """Number of steps."""
        return self.state.shape[1]

    @classmethod
    def of(cls, model: WorldModel, first: int, seen: Sequence[Observed]) -> "OpenSteps":
        """Join consecutive parts of an observed walk."""
        states, made = torch.cat([part.walk.mean for part in seen], 1), torch.cat([part.made for part in seen], 1)
        watched = [part.watched for part in seen if part.watched is not None]
        plan = planned_steps(model.motion, seen[0].start, states, made)
        if watched:
            plan = torch.cat([part.step for part in watched], 1)
        added = torch.cat([part.added for part in watched], 1) if watched else None
        sights = [_padded(part.sights, model.require_landmarks("close loops").settings.matches) for part in seen]
        joined = Sights(*(torch.cat(x, 1) for x in zip(*sights, strict=True)))
        return cls(first, seen[0].start, states, plan, joined, added)

    def then(self, later: "OpenSteps") -> "OpenSteps":
        """These steps, followed by later ones."""
        sights = Sights(*(torch.cat(parts, 1) for parts in zip(self.sights, later.sights, strict=True)))
        state, plan = torch.cat([self.state, later.state], 1), torch.cat([self.plan, later.plan], 1)
        added = None
        if self.added is not None and later.added is not None:
            added = torch.cat([self.added, later.added], 1)
        return replace(self, state=state, plan=plan, sights=sights, added=added)

    def closed(self, model: WorldModel, memory: LongMemory) -> tuple["OpenSteps", Float[Tensor, "1 time G"] | None]:
        """The same steps with the poses that fit planned steps and recognised places best; earlier entries are fixed.

        The second value is the variance of each pose, None if steps were not watched.
        """
        assert model.landmarks is not None
        size, number = model.motion.pose_size, self.sights.index
        fixed = number[number < self.first].unique()
        row = torch.where(number < self.first, torch.searchsorted(fixed, number), number - self.first + len(fixed))
        past = model.motion.pose_at(memory.place_at(fixed[None])) if len(fixed) else self.state[:, :0, :size]
        sights = self.sights._replace(index=row, log_odds=self.sights.log_odds + model.landmarks.bonus)
        space, pose, start = model.motion.space, self.state[..., :size], self.start[:, :size]
        if self.added is None:
            return self.at(close_loops(space, pose, start, self.plan, sights, past, model.landmarks.surprise)), None
        before = memory.since(self.first - 1).variance if self.first else None
        variance = torch.zeros_like(self.added[:, 0]) if before is None else before[:, 0]
        pose, variance = close_watched_loops(space, pose, start, variance, Watched(self.plan, self.added), sights, past)
        return self.at(pose), variance

    def mapped(self, model: WorldModel, memory: Memory, graph: PlaceGraph | None) -> PlaceGraph | None:
        """The place graph extended by these steps, with loops closed if it is a map.

        None where places do not help: if the walk never returns to equal views, or if the graph is still no map after
        `OPEN` steps.
        """
        assert model.landmarks is not None
        space, same, size = model.motion.space, model.landmarks.same, model.motion.pose_size
        if graph is None:
            if not same.is_back(self.sights, self.first):
                return None
            graph = PlaceGraph.begin(self.first, self.start[0, :size], len(space.groups))
        new = slice(graph.first + len(graph) - self.first, None)
        pose, plan, sights = self.state[0, new, :size], self.plan[0, new], Sights(*(x[0, new] for x in self.sights))

        def place_of(number: Int[Tensor, "n"]) -> Float[Tensor, "n D"]:
            return model.motion.pose_at(memory.place_at(number[None].to(self.state.device)))[0]

        graph = graph.then(space, same, pose, plan, sights, place_of)
        if graph.is_map:
            return graph.closed(space, same, model.landmarks.surprise, model.landmarks.bonus)
        return graph if len(graph) < OPEN else None

    def at(self, pose: Poses) -> "OpenSteps":
        """The same steps with these poses."""
        return replace(self, state=torch.cat([pose, self.state[..., pose.shape[-1] :]], -1))

    def without(self, n: int) -> "OpenSteps":
        """The steps after the first n."""
        start = self.state[:, n - 1] if n else self.start
        sights = Sights(*(part[:, n:] for part in self.sights))
        added = None if self.added is None else self.added[:, n:]
        return OpenSteps(self.first + n, start, self.state[:, n:], self.plan[:, n:], sights, added)


def _padded(sights: Sights | None, k: int) -> Sights:
    """The same sights padded to k at each step; padding has a probability of 0."""
    assert sights is not None
    missing = k - sights.index.shape[-1]
    if not missing:
        return sights
    index, log_odds, offset, noise = sights
    return Sights(
        F.pad(index, (0, missing)), F.pad(log_odds, (0, missing), value=-torch.inf),
        F.pad(offset, (0, 0, 0, missing)), F.pad(noise, (0, 0, 0, missing), value=1.0),
    )  # fmt: skip
