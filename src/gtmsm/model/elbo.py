"""The bound of section 3.4 per frame, and the poses, codes and forecasts that it is computed from."""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gtmsm.model.frame_memory import FrameMemory, frame_numbers
from gtmsm.model.landmark import Learned
from gtmsm.model.recall import Forecast, RecallConfig
from gtmsm.model.recognition import Lookup
from gtmsm.tensors import Actions, Belief, Frames, Gaussian, Poses, States, gather

if TYPE_CHECKING:
    from gtmsm.model.gtmsm import WorldModel

Values = TypeVar("Values", Tensor, Gaussian)


@dataclass(frozen=True)
class Elbo:
    """E_q[log p(x|z)] by one sample, and E_p*(s) KL[q(z|x) || p(z|s, m)], in nats."""

    log_likelihood: Float[Tensor, "batch time"]
    kl: Float[Tensor, "batch time"]
    pose_kl: Float[Tensor, "batch time"] | None = None
    """KL[q(s_t | s_{t-1}, a_t, z_t, m) || p(s_t | s_{t-1}, a_t)], with landmarks: the third term of App. D."""

    @property
    def bound(self) -> Float[Tensor, "batch time"]:
        """F(theta, phi) per frame."""
        bound = self.log_likelihood - self.kl
        return bound if self.pose_kl is None else bound - self.pose_kl

    def parts(self) -> dict[str, Float[Tensor, "batch time"]]:
        """The terms of the bound, by name."""
        parts = {"log_likelihood": self.log_likelihood, "kl": self.kl}
        return parts if self.pose_kl is None else parts | {"pose_kl": self.pose_kl}


@dataclass(frozen=True)
class Walk:
    """The poses of a clip: p*(s_t) given its actions or, with landmarks, q*(s_t) given its frames as well."""

    mean: States
    sample: States
    codes: Gaussian | None = None
    """q(z|x) of all frames, if poses were inferred from them."""
    lookup: Lookup | None = None
    learned: Learned | None = None
    step: Poses | None = None
    """d_t of each step of the mean path, if the motion returns it with the path."""

    @property
    def pose_kl(self) -> Float[Tensor, "batch time"] | None:
        """The KL term of poses that were corrected by landmarks; None without landmarks."""
        return None if self.learned is None else self.learned.divergence

    def detached(self) -> "Walk":
        """The same poses without gradients, so that the bound does not train the motion."""
        learned = self.learned and replace(self.learned, divergence=self.learned.divergence.detach())
        return replace(self, mean=self.mean.detach(), sample=self.sample.detach(), learned=learned)


@dataclass(frozen=True)
class Foreseen:
    """Codes of the frames to explain, and the forecasts that memory makes for them."""

    code: Gaussian
    """q(z|x)."""
    z: Float[Tensor, "batch asked Z"]
    """A sample of it."""
    forecast: Forecast
    """p(z|s, m)."""
    complete: Bool[Tensor, "batch asked"] | None = None
    """Which steps had all of their retrieved frames encoded (see `FrameMemory`); None: all steps."""
    needed: Int[Tensor, ""] | None = None
    """Number of distinct memorised frames that were retrieved."""


def at_steps(values: Values, asked: Int[Tensor, "batch asked"] | None, tau: int) -> Values:
    """The values at the steps `asked`; None: at all steps after tau."""
    if asked is None:
        return values[:, tau:]
    return values.at(asked) if isinstance(values, Gaussian) else gather(values, asked)


def infer(model: "WorldModel", frames: Frames, actions: Actions, generator: torch.Generator) -> Walk:
    """The mean path of a clip and one sampled path; with landmarks, frames are encoded and looked up first."""
    if model.landmarks is None:
        with torch.autocast(frames.device.type, enabled=False):
            paths = model.motion.unroll_twice(actions, model.motion.draw_noise(actions, generator))
        return Walk(paths.mean, paths.sample, step=paths.step)
    codes = model.vae.encode(frames)
    with torch.autocast(frames.device.type, enabled=False):
        lookup = model.landmarks.look_back(codes, codes, 0)
        learned = model.landmarks.learn(model.motion, model.motion.start(len(actions)), actions, codes, lookup)
        sample = model.landmarks.sample(learned.track, generator)
    return Walk(learned.track.state, sample, codes, lookup, learned)


def foresee(
    model: "WorldModel",
    frames: Frames,
    actions: Actions,
    walk: Walk,
    tau: int,
    asked: Int[Tensor, "batch asked"] | None,
    reading: RecallConfig,
    generator: torch.Generator,
    capacity: int | None = None,
) -> Foreseen:
    """q(z|x) and p(z|s, m) at the steps `asked` (None: all after tau), with a memory of the first tau steps.

    Memory is read at sampled poses or, with the KL distance, at the marginals p*(s_t) themselves.
    """
    with torch.autocast(frames.device.type, enabled=False):
        place = Belief(model.motion.place(walk.mean))
        query = Belief(at_steps(model.motion.place(walk.sample), asked, tau))
        if reading.distance == "kl":
            place = model.motion.believe(Belief(model.motion.start(len(actions))), actions)
            assert place.covariance is not None
            query = Belief(at_steps(place.mean, asked, tau), at_steps(place.covariance, asked, tau))
    if walk.codes is not None:
        code = at_steps(walk.codes, asked, tau)
        forecast = model.read(model.written(place[:, :tau], walk.codes[:, :tau]), query, reading)
        return Foreseen(code, code.sample(generator), forecast)
    if asked is None:
        asked = frame_numbers(1, frames.shape[1], 0, frames.device)[:, tau:].expand(len(frames), -1)
    hold = None if model.log_var is None else partial(model.as_samples, generator=generator)
    memory = FrameMemory(place[:, :tau], frames, asked, model.vae, model.prior, capacity, hold)
    forecast = model.read(memory, query, reading)
    code = memory.asked_code
    return Foreseen(code, code.sample(generator), forecast, memory.complete, memory.needed)
