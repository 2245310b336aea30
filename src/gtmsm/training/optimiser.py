"""Adam, as App. A uses it, over one long vector of all parameters: a step is the same few kernels for any model."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.kernels.gradients.adam import BLOCK, Schedule, Shelf, Tally, adam


class Adam:
    """Adam for named groups of parameters, each with a rate of its own. The parameters become views of one vector."""

    def __init__(self, groups: Mapping[str, Sequence[nn.Parameter]], schedule: Schedule, clip_norm: float) -> None:
        self.groups = {
            # Odd sizes last, so that all others begin at multiples of 16 bytes.
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
        self._where: dict[nn.Parameter, tuple[int, int]] = {}
        """Where in the vector each parameter begins, and how much is left empty behind it, at the end of a group."""
        for end, size, parameters in zip(ends, padded, self.groups.values(), strict=True):
            begin = end - size
            for parameter in parameters:
                self._settle(parameter, begin)
                begin += parameter.numel()
            self._where[parameters[-1]] = self._where[parameters[-1]][0], end - begin
        self._zeros = some.new_zeros(BLOCK, requires_grad=False)
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
        self._where[parameter] = begin, 0

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
        runs: list[tuple[int, list[Tensor]]] = []
        reached = -1
        for parameter, (begin, filled) in self._where.items():
            grad, parameter.grad = parameter.grad, None
            if grad is None:
                continue
            vector, end = _as_it_lies(grad, parameter), begin + parameter.numel()
            if reached != begin:
                runs.append((begin, []))
            runs[-1][1].extend([vector, self._zeros[:filled]])
            reached = end + filled
        for begin, parts in runs:  # a launch for all that lie side by side
            torch.cat(parts, out=self._shelf.gradient[begin : begin + sum(map(len, parts))])
        return adam(self._shelf, self._faster, self._clip, self.clip_norm, self.schedule, loss.detach(), self.tally)

    @property
    def vector(self) -> Float[Tensor, "size"]:
        """All parameters."""
        return self._shelf.weight

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
