"""What a model learns from: the bound of a clip whose first tau steps are memorised, and the terms beside it."""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from gtmsm.kernels.bound.mean_bound import mean_bound
from gtmsm.kernels.search.distinct import distinct
from gtmsm.model.elbo import Elbo, ObjectiveConfig, elbo
from gtmsm.model.frame_vae import FrameVAE
from gtmsm.model.landmark import Learned
from gtmsm.model.recall import Forecast, RecallConfig, Retrieved
from gtmsm.model.recognition import Lookup
from gtmsm.tensors import Belief, Gaussian, gather

if TYPE_CHECKING:
    from gtmsm.model.gtmsm import WorldModel

_Values = TypeVar("_Values", Tensor, Gaussian)


def learn(
    model: "WorldModel",
    frames: Float[Tensor, "batch time channel height width"],
    actions: Float[Tensor, "batch time A"],
    true_step: Float[Tensor, "batch time D"],
    tau: int,
    generator: torch.Generator,
    reading: RecallConfig,
    objective: ObjectiveConfig,
    room: int | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, and what to log: the negative bound, averaged over frames, and the extra terms.

    `room` is how many memorised frames may be encoded (see `_encode`); None: as many as are retrieved.
    """
    if objective.recognition_only:
        return _recognise_only(model, frames, true_step)
    walked = _infer(model, frames, actions, generator)
    inferred = walked if objective.poses_from_bound else walked.detached()
    asked = _draw_steps(len(frames), tau, frames.shape[1], objective.targets, generator)
    foreseen = _foresee(model, frames, actions, tau, asked, inferred, reading, generator, room)
    truth = _at(frames, asked, tau)
    peak = foreseen.forecast.peak() if objective.foresight else None
    loss, logs, error2 = foreseen.loss(model.vae, truth, inferred.divergence_at(asked, tau), peak)
    if foreseen.needed is not None:
        logs["needed"] = foreseen.needed
    if walked.codes is not None and objective.recognition:
        logs["recognition"] = _recognition(model, walked, true_step, objective)
        loss = loss + objective.recognition * logs["recognition"]
    if error2 is not None:
        logs["foresight"] = foreseen.mean(error2)
        loss = loss + objective.foresight * logs["foresight"]
        logs["foresight"] = logs["foresight"] / frames[0, 0].numel()
    if objective.displacement:
        # Steps that made the path need not be felt along it: through poses and back is the identity, but for rounding.
        felt = model.motion.displacement(walked.mean) if walked.step is None else walked.step
        logs["displacement"] = (felt - true_step)[:, objective.displacement_after :].square().sum(-1).mean()
    if walked.learned is not None:
        # Where places are recognised an agent notices by itself when a step has gone otherwise than planned.
        made = true_step if objective.displacement else model.motion.displacement(walked.mean.detach())
        regret = model.motion.regret(walked.learned.before.detach(), actions, made)
        logs["regret"] = regret[:, objective.displacement_after :].mean()
        loss = loss + (objective.displacement or objective.regret) * logs["regret"]
    elif objective.displacement:
        loss = loss + objective.displacement * logs["displacement"]
    return loss, {name: value.detach() for name, value in logs.items()}


def explain(
    model: "WorldModel",
    frames: Float[Tensor, "batch time channel height width"],
    actions: Float[Tensor, "batch time A"],
    tau: int,
    generator: torch.Generator | None,
    reading: RecallConfig,
) -> Elbo:
    """The bound on log p(x_{tau+1:T} | a, x_{1:tau}), per frame."""
    inferred = _infer(model, frames, actions, generator)
    foreseen = _foresee(model, frames, actions, tau, None, inferred, reading, generator)
    return foreseen.bound(model.vae, frames[:, tau:], inferred.divergence_at(None, tau))


@dataclass(frozen=True)
class _Inferred:
    """Where a walk led, for the bound."""

    mean: Float[Tensor, "batch time S"]
    sample: Float[Tensor, "batch time S"]
    codes: Gaussian | None = None
    """Of all frames, where poses were inferred from them."""
    lookup: Lookup | None = None
    learned: Learned | None = None
    step: Float[Tensor, "batch time D"] | None = None
    """d_t of every step of the mean path, where the motion knows it for nothing."""

    def divergence_at(self, asked: Int[Tensor, "batch asked"] | None, tau: int) -> Float[Tensor, "batch asked"] | None:
        """What the bound pays for the poses inferred at these steps."""
        return None if self.learned is None else _at(self.learned.divergence, asked, tau)

    def detached(self) -> "_Inferred":
        """The same, from whose poses no motion can be learned; steps are for what they are compared with."""
        learned = self.learned and replace(self.learned, divergence=self.learned.divergence.detach())
        return replace(self, mean=self.mean.detach(), sample=self.sample.detach(), learned=learned)


@dataclass(frozen=True)
class _Foreseen:
    """What memory says of the steps asked for, and what was there."""

    code: Gaussian
    """q(z|x)."""
    z: Float[Tensor, "batch asked Z"]
    """A sample of it."""
    forecast: Forecast
    """p(z|s, m)."""
    needed: Int[Tensor, ""] | None = None
    """How many memorised frames were retrieved at all, where only those are encoded."""
    fits: Bool[Tensor, "batch asked"] | None = None
    """Which steps found everything they retrieved encoded; None: all."""

    def bound(
        self,
        vae: FrameVAE,
        truth: Float[Tensor, "batch asked channel height width"],
        paid: Float[Tensor, "batch asked"] | None,
    ) -> Elbo:
        """The bound per frame."""
        return elbo(vae, truth, self.code, self.z, self.forecast, paid)

    def loss(
        self,
        vae: FrameVAE,
        truth: Float[Tensor, "batch asked channel height width"],
        paid: Float[Tensor, "batch asked"] | None,
        peak: Float[Tensor, "batch asked Z"] | None,
    ) -> tuple[Tensor, dict[str, Tensor], Float[Tensor, "batch asked"] | None]:
        """Minus the bound, and the bound and its terms, averaged over the steps that count; and the errors of `peak`.

        Those are squared errors of what these codes decode to; None if there are no such codes.
        """
        if paid is not None or vae.settings.likelihood != "gaussian":
            terms = self.bound(vae, truth, paid)
            means = {name: self.mean(each) for name, each in ({"elbo": terms.bound} | terms.parts()).items()}
            return -means["elbo"], means, None if peak is None else vae.error2(truth, peak)
        if peak is None:
            error2, foreseen = vae.error2(truth, self.z), None
        else:  # all at once: a decoder is faster for twice as many than twice
            error2, foreseen = vae.error2(torch.cat([truth, truth]), torch.cat([self.z, peak])).chunk(2)
        kl = self.forecast.divergence(self.code, self.z)
        fits = None if self.fits is None else self.fits.flatten()
        found = mean_bound(error2.flatten(), kl.flatten(), vae.log_sigma, math.prod(vae.frame_shape), fits)
        return found.loss, {"elbo": found.bound, "log_likelihood": found.log_likelihood, "kl": found.kl}, foreseen

    def mean(self, each: Float[Tensor, "batch asked"]) -> Float[Tensor, ""]:
        """Over the steps that count."""
        if self.fits is None:
            return each.mean()
        return torch.where(self.fits, each, 0.0).sum() / self.fits.sum().clamp_min(1)


def _recognise_only(
    model: "WorldModel",
    frames: Float[Tensor, "batch time channel height width"],
    true_step: Float[Tensor, "batch time D"],
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of recognising places, all else held."""
    landmarks = model.require_landmarks("recognise places")
    with torch.no_grad():
        code = model.vae.encode(frames)
        with torch.autocast(frames.device.type, enabled=False):
            code = Gaussian(code.mean.to(frames), code.log_var.to(frames))
            lookup = landmarks.look_back(code, code, 0)
    loss = landmarks.recognition_loss(code, lookup, model.motion.retrace(true_step))
    return loss, {"recognition": loss.detach()}


def _recognition(
    model: "WorldModel", inferred: _Inferred, true_step: Float[Tensor, "batch time D"], objective: ObjectiveConfig
) -> Float[Tensor, ""]:
    """How badly places are recognised, by the path that true displacements make, or the model's own."""
    landmarks = model.require_landmarks("recognise places")
    assert inferred.codes is not None and inferred.lookup is not None and inferred.learned is not None
    own = inferred.mean[..., : model.motion.pose_size].detach()
    path = model.motion.retrace(true_step) if objective.displacement else own
    return landmarks.recognition_loss(inferred.codes, inferred.lookup, path, inferred.learned.match)


def _foresee(
    model: "WorldModel",
    frames: Float[Tensor, "batch time channel height width"],
    actions: Float[Tensor, "batch time A"],
    tau: int,
    asked: Int[Tensor, "batch asked"] | None,
    inferred: _Inferred,
    reading: RecallConfig,
    generator: torch.Generator | None,
    room: int | None = None,
) -> _Foreseen:
    """q(z|x) and p(z|s, m) at the steps `asked`, with the first tau steps for a memory; None: at all later ones."""
    motion = model.motion
    with torch.autocast(frames.device.type, enabled=False):
        covariance = None
        if reading.distance == "kl":
            covariance = motion.believe(Belief(motion.start(len(actions))), actions).covariance
        place = Belief(motion.place(inferred.mean), covariance)  # of which the first tau steps are the memory
        query = Belief(
            _at(motion.place(inferred.sample), asked, tau), None if covariance is None else _at(covariance, asked, tau)
        )
        neighbours = model.choose(place, query, reading.neighbours or tau, reading, tau)

    def relative() -> Float[Tensor, "batch asked K P"]:
        with torch.autocast(frames.device.type, enabled=False):
            return motion.relative_at(place.mean, query.mean, neighbours.index)

    if inferred.codes is None:
        codes = _encode(model, frames, tau, asked, neighbours.index, generator, room)
    else:
        own = _at(inferred.codes, asked, tau)
        every = inferred.codes[:, :tau].flatten()
        codes = _Codes(own, own.sample(generator), every, _in_order(neighbours.index, tau))
    digest = model.prior.digest(codes.bank)
    forecast = model.prior(Retrieved(neighbours, codes.bank, codes.row, relative, reading.delta, digest))
    return _Foreseen(codes.own, codes.z, forecast, codes.needed, codes.fits)


class _Codes(NamedTuple):
    """Codes of the steps asked for, samples of them, and codes of memorised steps."""

    own: Gaussian
    z: Float[Tensor, "batch asked Z"]
    bank: Gaussian
    row: Int[Tensor, "batch asked K"]
    """Which of the bank each step retrieves."""
    needed: Int[Tensor, ""] | None = None
    fits: Bool[Tensor, "batch asked"] | None = None


def _encode(
    model: "WorldModel",
    frames: Float[Tensor, "batch time channel height width"],
    tau: int,
    asked: Int[Tensor, "batch asked"] | None,
    index: Int[Tensor, "batch asked K"],
    generator: torch.Generator | None,
    room: int | None,
) -> _Codes:
    """Codes of what is asked for and of what it retrieves, of nothing else.

    Poses do not depend on frames, so retrieval comes first, and a frame that nobody retrieves need not be encoded:
    three in four of a long memory. How many are left depends on the data, and a graph of kernels cannot wait for it:
    there is `room` for so many, and steps that retrieve what found none are left out of the bound.
    """
    batch, steps = frames.shape[:2]
    needed, fits = None, None
    if index.shape[-1] == tau:
        memorised, row = _steps(batch, 0, tau, steps, frames.device), _in_order(index, tau)
    else:
        found = distinct(index, tau, room, steps)
        memorised, needed, row = found.entry, found.needed, found.row
        fits = None if room is None else found.fits
    wanted = _steps(batch, tau, steps, steps, frames.device)
    if asked is not None:
        wanted = (asked + steps * torch.arange(batch, device=frames.device)[:, None]).flatten()
    noise = None
    if generator is not None:
        size = len(wanted), model.settings.vae.code_size
        noise = torch.randn(size, dtype=frames.dtype, device=frames.device, generator=generator)
    drawn = model.vae.draw(frames.flatten(0, 1), torch.cat([wanted, memorised]), len(wanted), noise)
    mean, log_var, z = (part.unflatten(0, (batch, -1)) for part in drawn[:3])
    return _Codes(Gaussian(mean, log_var), z, Gaussian(*drawn[3:]), row, needed, fits)


def _in_order(index: Int[Tensor, "batch asked K"], n: int) -> Int[Tensor, "batch asked K"]:
    """Numbers of entries where all n of every memory follow those of the one before."""
    return index + n * torch.arange(len(index), device=index.device).view(-1, 1, 1)


@cache  # a captured graph reads them, and does not keep them alive
def _steps(batch: int, first: int, end: int, pitch: int, device: torch.device) -> Int64[Tensor, "steps"]:
    """Numbers b pitch + t of the steps from `first` to `end` of every clip b; the same for every update."""
    with torch.inference_mode(False):  # whoever asks first may be merely looking, and the next may learn
        clip = torch.arange(batch, device=device)
        return (torch.arange(first, end, device=device) + pitch * clip[:, None]).flatten()


def _at(values: _Values, asked: Int[Tensor, "batch asked"] | None, tau: int) -> _Values:
    """Those of the steps asked for; None: of all that come after tau."""
    if asked is None:
        return values[:, tau:]
    return values.at(asked) if isinstance(values, Gaussian) else gather(values, asked)


def _infer(
    model: "WorldModel",
    frames: Float[Tensor, "batch time channel height width"],
    actions: Float[Tensor, "batch time A"],
    generator: torch.Generator | None,
) -> _Inferred:
    """The mean path and one sampled path (without a generator the mean twice); with landmarks, all codes first."""
    start = model.motion.start(len(actions))
    if model.landmarks is not None:
        codes = model.vae.encode(frames)
        with torch.autocast(frames.device.type, enabled=False):
            codes = Gaussian(codes.mean.to(frames), codes.log_var.to(frames))
            lookup = model.landmarks.look_back(codes, codes, 0)
            learned = model.landmarks.learn(model.motion, start, actions, codes, lookup)
            sample = model.landmarks.sample(learned.track, generator)
        return _Inferred(learned.track.state, sample, codes, lookup, learned)
    with torch.autocast(frames.device.type, enabled=False):
        if generator is None:
            mean = model.motion.unroll(start, actions)
            return _Inferred(mean, mean)
        paths = model.motion.unroll_twice(actions, model.motion.draw_noise(actions, generator))
        return _Inferred(paths.mean, paths.sample, step=paths.step)


def _draw_steps(
    batch: int, first: int, end: int, count: int, generator: torch.Generator
) -> Int[Tensor, "batch count"] | None:
    """`count` different steps from `first` to `end` for each clip, at random; None: all of them, in order."""
    if not count or count >= end - first:
        return None
    lots = torch.rand(batch, end - first, device=generator.device, generator=generator)
    return first + lots.topk(count, dim=1).indices
