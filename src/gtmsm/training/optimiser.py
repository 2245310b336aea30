"""PyTorch's Adam, as App. A uses it, for groups of parameters that learn at rates of their own."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


class Schedule(NamedTuple):
    """The learning rate by the number of updates done: it may rise from 0, and falls linearly."""

    first: float
    last: float
    fall: int
    """Updates until it is at its last."""
    rise: int
    """Updates until it has risen; 0: it begins at its first."""

    def rate(self, count: Int64[Tensor, ""]) -> Float[Tensor, ""]:
        """The rate of the update after `count` others."""
        rate = (count * ((self.last - self.first) / self.fall) + self.first).clamp(*sorted((self.first, self.last)))
        return rate * (count / self.rise).clamp(max=1.0) if self.rise else rate


class Optimiser:
    """Adam for named groups of parameters; all of its state is on the device, so that an update can be captured.

    A group is held while its rate is 0: its gradients neither count in the clipping norm nor enter Adam's moments. An
    update whose loss or gradient is not finite is counted in `first_bad` and changes nothing else.
    """

    def __init__(self, groups: Mapping[str, Sequence[nn.Parameter]], schedule: Schedule, clip_norm: float) -> None:
        self.groups = {name: list(parameters) for name, parameters in groups.items() if parameters}
        self.schedule, self.clip_norm = schedule, clip_norm
        device = next(iter(self.groups.values()))[0].device
        self.count, self.first_bad = (torch.zeros((), dtype=torch.int64, device=device) for _ in range(2))
        """Updates done, and the number of the first that was not finite; 0 while there is none."""
        self._rates = torch.zeros(len(self.groups), device=device)
        self._adam = torch.optim.Adam(
            [{"params": group, "lr": rate} for group, rate in zip(self.groups.values(), self._rates, strict=True)],
            betas=(0.9, 0.999),
            eps=1e-8,
            fused=True,
            capturable=device.type == "cuda",
        )
        self.pace(dict.fromkeys(self.groups, 1.0), dict.fromkeys(self.groups, "all"))

    def pace(self, faster: Mapping[str, float], together: Mapping[str, str]) -> None:
        """How much faster than the schedule each group learns, and which groups' gradients are clipped together."""
        self._faster = self._rates.new_tensor([faster[name] for name in self.groups])
        self._held = [p for name, group in self.groups.items() if not faster[name] for p in group]
        self._clipped: dict[str, list[nn.Parameter]] = {}
        for name, group in self.groups.items():
            if faster[name]:
                self._clipped.setdefault(together[name], []).extend(group)

    def step(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """One update from the gradients of all parameters, which are then dropped; returns their norm."""
        for parameter in self._held:
            parameter.grad = None
        norms = []
        for parameters in self._clipped.values():
            norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
            clip_grads_with_norm_(parameters, self.clip_norm, norm.to(self._rates))
            norms.append(norm.to(self._rates))
        total = torch.stack(norms).norm()
        bad = ~(loss.detach() + total).isfinite()
        torch.mul(self._faster, self.schedule.rate(self.count).to(self._faster), out=self._rates)
        self._adam.found_inf = bad.to(torch.float32)  # type: ignore[attr-defined]  # as GradScaler tells it to skip
        self._adam.step()
        self._adam.zero_grad()
        self.count += 1
        torch.where(bad & (self.first_bad == 0), self.count, self.first_bad, out=self.first_bad)
        return total

    @property
    def rates(self) -> dict[str, float]:
        """Learning rates of the next update; waits for the device."""
        rate = float(self.schedule.rate(self.count))
        return {name: rate * float(faster) for name, faster in zip(self.groups, self._faster, strict=True)}

    def state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Adam's moments of a parameter and how often it was updated; empty before its first update."""
        return self._adam.state[parameter]  # type: ignore[no-any-return]

    def restore(self, parameter: nn.Parameter, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` returned; the moments of version 0.1 come without a count of their own."""
        step = state.get("step", self.count).to(device=parameter.device, dtype=torch.float32)
        moments = {
            name: torch.empty_like(parameter, requires_grad=False).copy_(state[name])
            for name in ("exp_avg", "exp_avg_sq")
        }
        self._adam.state[parameter] = {"step": step.clone(), **moments}
