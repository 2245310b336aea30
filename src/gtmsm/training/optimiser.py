"""Adam, as App. A uses it, over one long vector of all parameters: a step is the same few kernels for any model."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.kernels.adam import BLOCK, Schedule, Shelf, Tally, adam


class Adam:
    """Adam for named groups of parameters, each with a rate of its own. The parameters become views of one vector."""

    def __init__(self, groups: Mapping[str, Sequence[nn.Parameter]], schedule: Schedule, clip_norm: float) -> None:
        self.groups = {
            name: sorted(parameters, key=lambda parameter: parameter.numel() % 4 > 0)
            for name, parameters in groups.items()
            if parameters
        }
        self.schedule, self.clip_norm = schedule, clip_norm
        padded = [_padded(sum(p.numel() for p in parameters)) for parameters in self.groups.values()]
        some = next(iter(self.groups.values()))[0]
        self.device = some.device
        weight, gradient, first, second = (some.new_zeros(sum(padded), requires_grad=False) for _ in range(4))
        blocks = torch.tensor([size // BLOCK for size in padded])
        group = torch.arange(len(padded), dtype=torch.int32).repeat_interleave(blocks).to(self.device)
        ends = tuple(torch.tensor(padded).cumsum(0).tolist())
        self._shelf = Shelf(weight, gradient, first, second, group, ends)
        self._moments: dict[nn.Parameter, dict[str, Tensor]] = {}
        self._filled: dict[nn.Parameter, int] = {}
        """How much is left empty behind each parameter: something behind the last of a group."""
        for end, size, parameters in zip(ends, padded, self.groups.values(), strict=True):
            begin = end - size
            for parameter in parameters:
                self._settle(parameter, begin)
                begin += parameter.numel()
            self._filled[parameters[-1]] = end - begin
        sizes = [size for parameter, filled in self._filled.items() for size in (parameter.numel(), filled)]
        self._even = next((i for i, size in enumerate(sizes) if size % 4), len(sizes) - 1)
        self._even_size = sum(sizes[: self._even])
        """How many parts of the vector, counted from the first, are multiples of four, and how long they are."""
        self._zeros = some.new_zeros(max(max(p.numel() for p in self._filled), BLOCK))
        self.tally = Tally(*(torch.zeros((), dtype=torch.int64, device=self.device) for _ in range(2)))
        self.pace(dict.fromkeys(self.groups, 1.0), dict.fromkeys(self.groups, "all"))

    def _settle(self, parameter: nn.Parameter, begin: int) -> None:
        """Move a parameter into the vector; there it lies in memory as it did before, and so do its moments."""
        shelf = self._shelf
        weight, first, second = (
            part.as_strided(parameter.shape, parameter.stride(), begin)
            for part in (shelf.weight, shelf.first, shelf.second)
        )
        weight.copy_(parameter.data)
        parameter.data = weight
        self._moments[parameter] = {"exp_avg": first, "exp_avg_sq": second}
        self._filled[parameter] = 0

    def pace(self, faster: Mapping[str, float], together: Mapping[str, str | None]) -> None:
        """How much faster each group learns than the schedule, and with which others its gradients are shortened.

        None: its gradients are not counted, since what is held must not shorten the steps of what learns.
        """
        clips = list(dict.fromkeys(clip for clip in together.values() if clip is not None))
        number = [-1 if (clip := together[name]) is None else clips.index(clip) for name in self.groups]
        self._faster = self._shelf.weight.new_tensor([faster[name] for name in self.groups])
        self._clip = torch.tensor(number, dtype=torch.int32, device=self.device)

    def step(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """One update from the gradients there are, which are taken away; the length of them all.

        A parameter without a gradient counts as one with a gradient of 0.
        """
        parts: list[Tensor] = []
        for parameter, filled in self._filled.items():
            grad, parameter.grad = parameter.grad, None
            parts.append(self._zeros[: parameter.numel()] if grad is None else _as_it_lies(grad, parameter))
            parts.append(self._zeros[:filled])
        # Two launches: the first is fast because all of its parts are multiples of four numbers.
        if self._even:
            torch.cat(parts[: self._even], out=self._shelf.gradient[: self._even_size])
        torch.cat(parts[self._even :], out=self._shelf.gradient[self._even_size :])
        return adam(self._shelf, self._faster, self._clip, self.clip_norm, self.schedule, loss.detach(), self.tally)

    @property
    def rates(self) -> dict[str, float]:
        """Learning rates of the next update; to look at, since a device has to be waited for."""
        rate = float(self.schedule.rate(self.tally.done))
        return {name: rate * float(faster) for name, faster in zip(self.groups, self._faster, strict=True)}

    def moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Adam's running means for a parameter; write into them to restore them."""
        return self._moments[parameter]


def _as_it_lies(grad: Tensor, parameter: nn.Parameter) -> Float[Tensor, "size"]:
    """A gradient as one vector, in the order in which its parameter lies in memory."""
    if grad.stride() != parameter.stride():
        grad = torch.empty_like(parameter.data).copy_(grad)
    return grad.as_strided((parameter.numel(),), (1,))


def _padded(size: int) -> int:
    """The next multiple of a block."""
    return -(-size // BLOCK) * BLOCK
