"""Adam, as in App. A, for groups of parameters with separate learning rates; Muon for some matrices."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from gtmsm.kernels.adam import BLOCK, adam_step, scheduled_rate
from gtmsm.training.muon import Alike, muon_step


class Schedule(NamedTuple):
    """The learning rate as a function of the updates done: an optional linear rise from 0, then a linear fall."""

    first: float
    last: float
    fall: int
    """Updates until the last rate is reached."""
    rise: int
    """Updates over which the rate rises from 0; 0: it begins at the first rate."""

    def rate(self, count: Int64[Tensor, ""]) -> Float[Tensor, ""]:
        """The learning rate after `count` updates."""
        return scheduled_rate(count, *self)


class Optimiser:
    """Adam for named groups of parameters, which become views of one vector: a step is a few calls for any model.

    Groups named in `by_muon` are weight matrices, which Muon updates. Their gradients are not clipped, since Muon does
    not depend on their length. A group is held while its rate is 0: its gradients neither count in the clipping norm
    nor enter its moments. An update whose loss or gradient is not finite only counts; `first_bad` is the number of
    the first such update. All state is on the device, so that an update can be captured.
    """

    def __init__(
        self,
        groups: Mapping[str, Sequence[nn.Parameter]],
        schedule: Schedule,
        clip_norm: float,
        by_muon: Collection[str] = (),
    ) -> None:
        # Odd sizes come last, so that all others begin at multiples of 16 bytes: unaligned weights are read slowly.
        # Equal shapes lie side by side.
        self.groups = {
            name: sorted(parameters, key=lambda parameter: (parameter.numel() % 4 > 0, parameter.shape))
            for name, parameters in groups.items()
            if parameters
        }
        self.schedule, self.clip_norm = schedule, clip_norm
        some = next(iter(self.groups.values()))[0]
        device, sizes = some.device, [sum(p.numel() for p in group) for group in self.groups.values()]
        self._padding = [some.new_zeros(-size % BLOCK, requires_grad=False) for size in sizes]
        total = sum(sizes) + sum(map(len, self._padding))
        self._weight, self._first, self._second = (some.new_zeros(total, requires_grad=False) for _ in range(3))
        blocks = torch.tensor([-(-size // BLOCK) for size in sizes])
        self._group = torch.arange(len(sizes), dtype=torch.int32).repeat_interleave(blocks).to(device)
        self._counts = torch.zeros(len(sizes), dtype=torch.int64, device=device)
        """Number of updates of each group; updates in which a group is held do not count."""
        self._progress = torch.zeros(2, dtype=torch.int64, device=device)
        self.count, self.first_bad = self._progress
        """Updates done, and the number of the first update that was not finite (0: none)."""
        self._moments: dict[nn.Parameter, dict[str, Tensor]] = {}
        self._by_muon: dict[str, tuple[slice, list[Alike]]] = {}
        """Location of each group's matrices in the vector, and their shapes."""
        begin = 0
        for number, ((name, group), padding) in enumerate(zip(self.groups.items(), self._padding, strict=True)):
            if name in by_muon:
                alike = Counter(parameter.shape for parameter in group)
                shapes = [Alike(many, *shape) for shape, many in alike.items()]
                self._by_muon[name] = slice(begin, begin + sizes[number]), shapes
            for parameter in group:
                self._move(parameter, begin, number)
                begin += parameter.numel()
            begin += len(padding)
        self.pace(dict.fromkeys(self.groups, 1.0), dict.fromkeys(self.groups, "all"))

    def _move(self, parameter: nn.Parameter, begin: int, group: int) -> None:
        """Make a parameter a view of the vector, with its layout unchanged."""
        weight, first, second = (
            part.as_strided(parameter.shape, parameter.stride(), begin)
            for part in (self._weight, self._first, self._second)
        )
        weight.copy_(parameter.data)
        parameter.data = weight
        self._moments[parameter] = {"exp_avg": first, "exp_avg_sq": second, "step": self._counts[group]}

    def pace(self, faster: Mapping[str, float], together: Mapping[str, str]) -> None:
        """Set each group's multiple of the scheduled rate, and which groups' gradients are clipped together."""
        clips = list(dict.fromkeys(together[name] for name in self.groups))
        by_adam = {name for name in self.groups if faster[name] and name not in self._by_muon}
        number = [clips.index(together[name]) if name in by_adam else -1 for name in self.groups]
        learning = {name for name in self._by_muon if any(parameter.requires_grad for parameter in self.groups[name])}
        self._turning = {name: faster[name] for name in self._by_muon if faster[name] and name in learning}
        self._faster = self._weight.new_tensor([faster[name] for name in self.groups])
        self._clip = torch.tensor(number, dtype=torch.int32, device=self._weight.device)

    def step(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Update all parameters by their gradients, drop the gradients, and return their norm."""
        parts = []
        for group, padding in zip(self.groups.values(), self._padding, strict=True):
            parts += [_as_vector(parameter) for parameter in group]
            parts.append(padding)
        for parameter in self._moments:
            parameter.grad = None
        gradient, loss = torch.cat(parts), loss.detach()
        return self._with_muon(gradient, loss) if self._turning else self._by_adam(gradient, loss)

    def _by_adam(self, gradient: Float[Tensor, "size"], loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Update by Adam all groups that are neither held nor Muon's; count the update; return the gradients' norm."""
        return adam_step(
            self._weight, self._first, self._second, self._counts, self._progress, gradient, self._group,
            self._faster, self._clip, loss, self.clip_norm, *self.schedule,
        )  # fmt: skip

    def _with_muon(self, gradient: Float[Tensor, "size"], loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Update the groups of Muon and of Adam; if any gradient is not finite, nothing changes."""
        rate = self.schedule.rate(self.count).to(gradient.dtype)
        matrices = {name: gradient[self._by_muon[name][0]] for name in self._turning}
        norm2 = torch.stack([part.square().sum() for part in matrices.values()]).sum()
        norm = (self._by_adam(gradient, loss + 0 * norm2).square() + norm2).sqrt()
        live = norm.isfinite().to(gradient.dtype)
        for name, part in matrices.items():
            where, shapes = self._by_muon[name]
            muon_step(self._weight[where], self._first[where], part, shapes, self._turning[name] * rate, live)
            self._counts[list(self.groups).index(name)] += live.long()
        return norm

    @property
    def rates(self) -> dict[str, float]:
        """Learning rates of the next update; waits for the device."""
        rate = float(self.schedule.rate(self.count))
        return {name: rate * float(faster) for name, faster in zip(self.groups, self._faster, strict=True)}

    def state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Moments of a parameter and its number of updates; write into them to restore them."""
        return self._moments[parameter]


def _as_vector(parameter: nn.Parameter) -> Float[Tensor, "size"]:
    """A parameter's gradient, flattened in the order of the parameter's memory layout; zeros if it has none."""
    grad = parameter.grad
    if grad is None:
        return torch.zeros_like(parameter.data).as_strided((parameter.numel(),), (1,))
    if grad.stride() != parameter.stride():
        grad = torch.empty_like(parameter.data).copy_(grad)
    return grad.as_strided((parameter.numel(),), (1,))
