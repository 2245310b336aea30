"""Render and compare: the pose at which the view predicted by memory fits the observed view.

A match of two views gives a pose to within some percent of a room, and now and then a wrong one. The view that memory
predicts at a pose, p(z | s, m), is far more informative: at a wrong pose it hardly ever looks like the observed view,
and near the right one its derivatives with respect to the pose point there.
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
"""Maximum number of steps of a walk whose views are compared."""
CHOSEN = 2
"""Number of poses that are refined: those whose predicted views fit best."""
ROUNDS = 2
"""Rounds of a Gauss-Newton search."""
HEARD = 0.05
"""Weight of a code's log-probability: errors of its dimensions are correlated."""
PROBE, PROBE_TURN = 0.03, 0.02
"""Step sizes of finite differences, in units of the pose space and in radians."""
LOOSE, LOOSE_TURN = 0.15, 0.12
"""Prior standard deviations of the poses, in the same units."""
ALIKE = 5.0
"""A predicted view counts as the observed one if the misfit is below this: it is 0.5 to 2 at the right pose, and 8 and
more at another place (validation rooms)."""
FARTHEST = 0.3
"""Maximum change of each coordinate of a pose in one round."""


class Rendered(NamedTuple):
    """Poses, the likeliest of them refined."""

    pose: Float[Tensor, "batch M D"]
    log_prob: Float[Tensor, "batch M"]
    """Weighted log-probability of the observed views under the predicted ones, averaged over views, plus any prior."""
    misfit: Float[Tensor, "batch M"]
    """Mean squared difference of observed and predicted views, in units of the predicted variance: 1 is usual."""

    @property
    def known(self) -> Float[Tensor, "batch M"]:
        """Probability that the observed views are those that memory predicts there."""
        return torch.sigmoid(ALIKE - self.misfit)

    @property
    def best(self) -> Int[Tensor, "batch 1"]:
        """Index of the likeliest pose."""
        return self.log_prob.argmax(1, keepdim=True)

    @property
    def likeliest(self) -> Float[Tensor, "batch D"]:
        """The likeliest pose."""
        return gather(self.pose, self.best)[:, 0]

    @property
    def shown(self) -> Bool[Tensor, "batch 1"]:
        """Whether the observed views are those that memory predicts at the likeliest pose."""
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
    """How likely a walk began at each of M poses; the best poses are refined until predicted views fit better.

    `path`: the walk from the origin. `code`: codes of the frames seen on it; a single picture is a walk that has not
    moved. `log_prior`: log-prior of the poses, uniform if None.
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
    """A walk whose start is searched."""

    show: Show
    space: Space
    path: Float[Tensor, "batch T D"]
    seen: Float[Tensor, "batch T Z"]

    def views(self, start: Float[Tensor, "batch m D"]) -> Gaussian:
        """The views that memory predicts along the walk from each start, `batch m T Z`."""
        pose = self.space.step(start[:, :, None], self.path[:, None].expand(-1, start.shape[1], -1, -1))
        return self.show(pose.flatten(1, 2)).unflatten(1, (start.shape[1], -1))

    def likelihood(self, views: Gaussian) -> Float[Tensor, "batch m"]:
        """Weighted log-likelihood of the observed views under `views`."""
        return HEARD * views.log_prob(self.seen[:, None]).mean(-1)

    def misfit(self, views: Gaussian) -> Float[Tensor, "batch m"]:
        """Mean squared difference of `views` and the observed views, in units of their variance."""
        return ((self.seen[:, None] - views.mean).square() * (-views.log_var).exp()).mean((-2, -1))

    def refined(
        self, start: Float[Tensor, "batch m D"], views: Gaussian
    ) -> tuple[Float[Tensor, "batch m D"], Gaussian]:
        """Starts after rounds of Gauss-Newton, each damped by whether the last one helped; and the views there."""
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
        """The damped Gauss-Newton step from each start, with derivatives of views by finite differences."""
        positions, angles = self.space.positions, self.space.angles
        probe = start.new_tensor([PROBE] * positions + [PROBE_TURN] * angles)
        loose = start.new_tensor([LOOSE] * positions + [LOOSE_TURN] * angles)
        beside = self.views((start[:, :, None] + torch.diag(probe)).flatten(1, 2)).mean
        slope = (beside.unflatten(1, (-1, len(probe))) - views.mean[:, :, None]) / probe[:, None, None]
        weighed = slope * (HEARD * (-views.log_var).exp())[:, :, None]
        normal = torch.einsum("bmitz,bmjtz->bmij", weighed, slope) + damping[..., None, None] * torch.diag(loose**-2)
        short = torch.einsum("bmitz,bmtz->bmi", weighed, self.seen[:, None] - views.mean)
        return torch.linalg.solve(normal, short)
