"""Render and compare: the pose at which memory would show what is seen.

Two views that match tell a pose to some percent of a room, and now and then a wrong one. What memory shows at a pose,
p(z | s, m), is far more telling: at a wrong place it hardly ever looks like what is seen, and near the right one its
derivatives by the pose say where to go.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.pose import Space
from gtmsm.tensors import Codes, Gaussian, gather

Show: TypeAlias = Callable[[Float[Tensor, "batch n D"]], Gaussian]
"""p(z | s, m) at poses."""
VIEWS = 4
"""Steps of a walk, at most, whose views are compared."""
CHOSEN = 2
"""Of several poses so many are refined: those at which memory shows most of what is seen."""
ROUNDS = 2
"""Of a Gauss-Newton search."""
HEARD = 0.05
"""Share of a code's log-probability that counts: its numbers err alike."""
PROBE, PROBE_TURN = 0.03, 0.02
"""Steps by which derivatives are taken, in units of the pose space and radians ..."""
LOOSE, LOOSE_TURN = 0.15, 0.12
"""... and standard deviations of the poses to begin with."""
ALIKE = 5.0
"""Memory shows what is seen where the misfit is below this: at the right pose it is 0.5 to 2, of another place it is 8
and more (validation rooms)."""
FARTHEST = 0.3
"""A round moves a pose by no more than that, in each coordinate."""


class Rendered(NamedTuple):
    """Poses, the likeliest of them refined."""

    pose: Float[Tensor, "batch M D"]
    log_prob: Float[Tensor, "batch M"]
    """Of what was seen, as memory shows it there: the mean over views, as far as it counts; with the prior, if any."""
    misfit: Float[Tensor, "batch M"]
    """Squared difference between what was seen and what memory shows there, in units of its variance: 1 is usual."""

    @property
    def known(self) -> Float[Tensor, "batch M"]:
        """Probability that what was seen is what memory shows there."""
        return torch.sigmoid(ALIKE - self.misfit)

    @property
    def best(self) -> Int[Tensor, "batch 1"]:
        """Which of the poses is the likeliest."""
        return self.log_prob.argmax(1, keepdim=True)

    @property
    def likeliest(self) -> Float[Tensor, "batch D"]:
        """That pose."""
        return gather(self.pose, self.best)[:, 0]

    @property
    def shown(self) -> Bool[Tensor, "batch 1"]:
        """Whether memory shows there what was seen."""
        return self.known.gather(1, self.best) > 0.5


@torch.no_grad()
def render_and_compare(
    show: Show,
    space: Space,
    pose: Float[Tensor, "batch M D"],
    path: Float[Tensor, "batch T D"],
    code: Codes,
    log_prior: Float[Tensor, "M"] | None = None,
) -> Rendered:
    """How likely a walk began at each of M poses; the best are moved to where memory shows more of what is seen.

    `path` is the walk from the origin, and `code` what was seen on it; a single picture is a walk that has not moved.
    `log_prior` is that of the poses, all alike if there is none.
    """
    steps = torch.linspace(path.shape[1] - 1, 0, min(VIEWS, path.shape[1])).long().flip(0)
    search = _Search(show, space, path[:, steps], code[:, steps])
    views = search.views(pose)
    prior = torch.zeros_like(pose[..., 0]) if log_prior is None else log_prior.expand(pose.shape[:2])
    first, misfit = prior + search.likelihood(views), search.misfit(views)
    chosen = first.topk(min(CHOSEN, first.shape[1]), dim=1).indices
    best, views = search.refined(gather(pose, chosen), views.at(chosen))
    return Rendered(
        pose.scatter(1, chosen[..., None].expand_as(best), best),
        first.scatter(1, chosen, prior.gather(1, chosen) + search.likelihood(views)),
        misfit.scatter(1, chosen, search.misfit(views)),
    )


class _Search(NamedTuple):
    """A walk whose start is looked for."""

    show: Show
    space: Space
    path: Float[Tensor, "batch T D"]
    seen: Float[Tensor, "batch T Z"]

    def views(self, start: Float[Tensor, "batch m D"]) -> Gaussian:
        """What memory shows along the walk from each start, `batch m T Z`."""
        pose = self.space.step(start[:, :, None], self.path[:, None].expand(-1, start.shape[1], -1, -1))
        return self.show(pose.flatten(1, 2)).unflatten(1, (start.shape[1], -1))

    def likelihood(self, views: Gaussian) -> Float[Tensor, "batch m"]:
        """How likely it is that these views are what was seen."""
        return HEARD * views.log_prob(self.seen[:, None]).mean(-1)

    def misfit(self, views: Gaussian) -> Float[Tensor, "batch m"]:
        """How far these views are from what was seen, in units of their variance."""
        return ((self.seen[:, None] - views.mean).square() * (-views.log_var).exp()).mean((-2, -1))

    def refined(
        self, start: Float[Tensor, "batch m D"], views: Gaussian
    ) -> tuple[Float[Tensor, "batch m D"], Gaussian]:
        """Starts after some rounds of Gauss-Newton, each damped by whether the last one helped, and the views there."""
        likely, damping = self.likelihood(views), torch.ones_like(start[..., 0])
        for _ in range(ROUNDS):
            there = start + self._step(start, views, damping).clamp(-FARTHEST, FARTHEST)
            shown = self.views(there)
            found = self.likelihood(shown)
            better = found > likely
            start = torch.where(better[..., None], there, start)
            views = Gaussian(*(
                torch.where(better[..., None, None], new, old)
                for new, old in ((shown.mean, views.mean), (shown.log_var, views.log_var))
            ))  # fmt: skip
            likely, damping = torch.where(better, found, likely), damping * torch.where(better, 0.5, 8.0)
        return start, views

    def _step(
        self, start: Float[Tensor, "batch m D"], views: Gaussian, damping: Float[Tensor, "batch m"]
    ) -> Float[Tensor, "batch m D"]:
        """To where the views would be what was seen if they changed as they do around each start."""
        positions, angles = self.space.positions, self.space.angles
        probe = start.new_tensor([PROBE] * positions + [PROBE_TURN] * angles)
        loose = start.new_tensor([LOOSE] * positions + [LOOSE_TURN] * angles)
        beside = self.views((start[:, :, None] + torch.diag(probe)).flatten(1, 2)).mean
        slope = (beside.unflatten(1, (-1, len(probe))) - views.mean[:, :, None]) / probe[:, None, None]
        weighed = slope * (HEARD * (-views.log_var).exp())[:, :, None]
        normal = torch.einsum("bmitz,bmjtz->bmij", weighed, slope) + damping[..., None, None] * torch.diag(loose**-2)
        short = torch.einsum("bmitz,bmtz->bmi", weighed, self.seen[:, None] - views.mean)
        return torch.linalg.solve(normal, short)
