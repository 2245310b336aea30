"""Gaussians, beliefs, scans over time, and type aliases for shapes.

Axes are named `batch time ...` in this order. Frames are `channel height width` in [0, 1]; S is the size
of a state, D of a pose, P of a place, Z of a code, A of an action, K the number of neighbours.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from gtmsm.errors import InputError

Frames: TypeAlias = Float[Tensor, "batch time channel height width"]
Actions: TypeAlias = Float[Tensor, "batch time A"]
States: TypeAlias = Float[Tensor, "batch time S"]
State: TypeAlias = Float[Tensor, "batch S"]
Poses: TypeAlias = Float[Tensor, "batch time D"]
FutureActions: TypeAlias = Float[Tensor, "batch horizon A"]
FutureFrames: TypeAlias = Float[Tensor, "batch horizon channel height width"]
TruePoses: TypeAlias = tuple[Poses, Float[Tensor, "batch horizon D"]]
"""True poses at the memorised steps and at the planned steps."""
Codes: TypeAlias = Float[Tensor, "batch time Z"]
PerStep: TypeAlias = Float[Tensor, "batch time"]
PerEntry: TypeAlias = Float[Tensor, "batch time K"]
EntryIndex: TypeAlias = Int[Tensor, "batch time K"]
EntryPoses: TypeAlias = Float[Tensor, "batch n D"]
Pose: TypeAlias = Float[Tensor, "*#batch D"]
Place: TypeAlias = Float[Tensor, "*#batch P"]
Variance: TypeAlias = Float[Tensor, "*batch G"]
"""Variance of the position and, if there is one, of the heading."""
Combine: TypeAlias = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Floating-point types for computation; 8-bit types are for storage only."""
LOG_TWO_PI = math.log(2 * math.pi)


def require_generator(generator: object, device: torch.device | None = None) -> None:
    """Refuse anything but None or a generator that can draw on this device."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InputError(f"generator is a {type(generator).__name__}; give torch.Generator().manual_seed(0), or None")
    if generator is not None and device is not None and generator.device.type != device.type:
        raise InputError(
            f'generator is on {generator.device} but the model on {device}; give torch.Generator("{device}")'
        )


def have_values(*tensors: Tensor) -> bool:
    """Whether values can be read: not of meta or fake tensors, nor in compilation, `torch.func` or graph capture."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if any(x.is_meta or isinstance(x, FakeTensor) for x in tensors):
        return False
    return not (any(x.is_cuda for x in tensors) and torch.cuda.is_current_stream_capturing())


def are_finite(*tensors: Tensor | None) -> bool:
    """Whether all values are finite; True if they cannot be read. A GPU is synchronised once for all tensors."""
    there = [x.detach() for x in tensors if x is not None]
    if not have_values(*there):
        return True
    # A sum is finite unless a term is not, or it overflows. It is 40 times as fast as `isfinite` on a CPU.
    return math.isfinite(sum(x.sum() for x in there)) or all(bool(x.isfinite().all()) for x in there)


@dataclass(frozen=True)
class Gaussian:
    """N(mean, diag(exp(log_var)))."""

    mean: Float[Tensor, "*batch Z"]
    log_var: Float[Tensor, "*batch Z"]

    def log_prob(self, z: Float[Tensor, "*any Z"]) -> Float[Tensor, "*out"]:
        """log N(z | mean, var), summed over the last axis; broadcasts over the others."""
        scaled2 = (z - self.mean).square() * (-self.log_var).exp()
        return -0.5 * (scaled2 + self.log_var + LOG_TWO_PI).sum(-1)

    def divergence(self, other: "Gaussian") -> Float[Tensor, "*batch"]:
        """KL[self || other], summed over the last axis."""
        spread = (self.log_var.exp() + (self.mean - other.mean).square()) * (-other.log_var).exp()
        return 0.5 * (other.log_var - self.log_var + spread - 1).sum(-1)

    def sample(self, generator: torch.Generator) -> Float[Tensor, "*batch Z"]:
        """A reparameterised sample."""
        noise = torch.randn(self.mean.shape, dtype=self.mean.dtype, device=self.mean.device, generator=generator)
        return self.mean + noise * (0.5 * self.log_var).exp()

    def __getitem__(self, index: object) -> "Gaussian":
        """Index mean and log-variance alike."""
        return Gaussian(self.mean[index], self.log_var[index])  # type: ignore[index]

    def take(self, index: Int[Tensor, "*which"]) -> "Gaussian":
        """The rows `index` of a flat batch of Gaussians."""

        def rows(x: Tensor) -> Tensor:
            # Its backward pass adds rows, which is several times as fast as that of advanced indexing.
            return x.index_select(0, index.flatten()).view(*index.shape, x.shape[-1])

        return Gaussian(rows(self.mean), rows(self.log_var))

    def at(self, index: Int[Tensor, "batch *which"]) -> "Gaussian":
        """The entries `index` of each batch member."""
        return Gaussian(gather(self.mean, index), gather(self.log_var, index))

    def then(self, later: "Gaussian") -> "Gaussian":
        """The entries of both, concatenated for each batch member."""
        return Gaussian(torch.cat([self.mean, later.mean], 1), torch.cat([self.log_var, later.log_var], 1))

    def flatten(self) -> "Gaussian":
        """All leading axes as one."""
        return Gaussian(self.mean.flatten(0, -2), self.log_var.flatten(0, -2))

    def unflatten(self, axis: int, sizes: tuple[int, ...]) -> "Gaussian":
        """`Tensor.unflatten` of mean and log-variance."""
        return Gaussian(self.mean.unflatten(axis, sizes), self.log_var.unflatten(axis, sizes))


@dataclass(frozen=True)
class Belief:
    """A Gaussian over states with a full covariance, since walls couple the axes."""

    mean: Float[Tensor, "*batch S"]
    covariance: Float[Tensor, "*batch S S"] | None = None
    """None if only the mean is needed: training reads memory by its means alone."""

    def __getitem__(self, index: object) -> "Belief":
        """Index mean and covariance alike."""
        covariance = None if self.covariance is None else self.covariance[index]  # type: ignore[index]
        return Belief(self.mean[index], covariance)  # type: ignore[index]

    def detached(self) -> "Belief":
        """The same without gradients."""
        return Belief(self.mean.detach(), None if self.covariance is None else self.covariance.detach())

    def sample(self, generator: torch.Generator) -> Float[Tensor, "*batch S"]:
        """A sample; the mean itself if there is no covariance."""
        if self.covariance is None:
            return self.mean
        noise = torch.randn(self.mean.shape, dtype=self.mean.dtype, device=self.mean.device, generator=generator)
        # The covariance of a pose that is known exactly is 0, which has no Cholesky factor: add a tiny diagonal.
        tiny = torch.finfo(noise.dtype).tiny * torch.eye(noise.shape[-1], dtype=noise.dtype, device=noise.device)
        try:
            factor = torch.linalg.cholesky(self.covariance + tiny)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            fix = "give a covariance, as memorise returns"
            raise InputError(f"here.covariance is not positive definite; {fix}") from None
        return self.mean + (factor @ noise[..., None]).squeeze(-1)


def gather(entries: Shaped[Tensor, "batch n *value"], index: Int[Tensor, "batch *which"]) -> Tensor:
    """entries[i, index[i]] for every i of the batch."""
    # By rows of one flat table: the backward pass adds rows, which is faster than that of advanced indexing.
    batch, n = entries.shape[:2]
    first = n * torch.arange(batch, device=index.device).view(-1, *[1] * (index.dim() - 1))
    rows = entries.flatten(0, 1).index_select(0, (index + first).flatten())
    return rows.view(*index.shape, *entries.shape[2:])


def applied(M: Float[Tensor, "D A"], a: Float[Tensor, "*batch A"]) -> Float[Tensor, "*batch D"]:
    """M a, never rounded to TF32 or bfloat16: errors of turns add up over hundreds of steps."""
    may_round = a.is_cuda or torch.is_autocast_enabled(a.device.type)
    return (a[..., None, :] * M).sum(-1) if may_round else a @ M.mT


def prefix_scan(combine: Combine, elements: Sequence[Tensor]) -> list[Tensor]:
    """All prefixes along time (axis 1): out[t] = combine(combine(e[0], e[1]), ... e[t]).

    `combine(earlier, later)` must be associative. Each round doubles the length that a prefix covers
    (Hillis and Steele, 1986), so T steps take log2(T) rounds.
    """
    scanned = list(elements)
    length = 1
    while length < scanned[0].shape[1]:
        longer = combine([part[:, :-length] for part in scanned], [part[:, length:] for part in scanned])
        scanned = [torch.cat([part[:, :length], new], dim=1) for part, new in zip(scanned, longer, strict=True)]
        length *= 2
    return scanned
