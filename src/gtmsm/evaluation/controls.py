"""Controls: predictions by the same memory and decoder with less information than the model has, or with more."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.config import require
from gtmsm.data.clip import Clip
from gtmsm.evaluation.forecaster import TRUE_FRAMES, TRUE_POSES, Forecaster, Guess, Guessing
from gtmsm.model.dream import Dream
from gtmsm.model.frame_vae import FrameVAE
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.memory import Memory, nearest
from gtmsm.pose import space_of
from gtmsm.tensors import Actions, Belief, Frames, FutureActions, FutureFrames, TruePoses, gather


class LastFrame(Guessing):
    """Repeats the last memorised frame."""

    def guess(self, x: Frames, a: Actions, plan: FutureActions, poses: TruePoses | None = None) -> Guess:
        """See `Guessing`."""
        return Guess(x[:, -1:].expand(-1, plan.shape[1], -1, -1, -1), None)


class MeanFrame(Guessing):
    """Shows the mean of the memorised frames."""

    def guess(self, x: Frames, a: Actions, plan: FutureActions, poses: TruePoses | None = None) -> Guess:
        """See `Guessing`."""
        return Guess(x.mean(1, keepdim=True).expand(-1, plan.shape[1], -1, -1, -1), None)


class RandomEntry(Guessing):
    """Shows a memorised frame drawn at random; a generator on the CPU draws the same on every device."""

    def __init__(self, generator: torch.Generator) -> None:
        """`generator` draws the frames."""
        self.generator = generator

    def guess(self, x: Frames, a: Actions, plan: FutureActions, poses: TruePoses | None = None) -> Guess:
        """See `Guessing`."""
        drawn = torch.randint(x.shape[1], plan.shape[:2], device=self.generator.device, generator=self.generator)
        index = drawn.to(x.device)
        return Guess(gather(x, index), index)


class NearestCopy(Guessing):
    """Shows the frame memorised nearest to the true pose. It has no retrieval score, which would be right by
    construction."""

    needs_poses = True
    privileges: tuple[str, ...] = (TRUE_POSES,)

    def guess(self, x: Frames, a: Actions, plan: FutureActions, poses: TruePoses | None = None) -> Guess:
        """See `Guessing`."""
        require(poses is not None, "copying at the true pose takes true poses; give poses=(memorised, planned)")
        assert poses is not None
        space = space_of(poses[0].shape[-1])
        return Guess(_nearest_copy(x, space.place(poses[0]), space.place(poses[1])), None)


class BestCopy(Guessing):
    """Shows the memorised frame most similar to the true one."""

    privileges: tuple[str, ...] = (TRUE_FRAMES,)

    def __init__(self, truth: FutureFrames | None = None) -> None:
        """`truth` is the frames to be predicted; see `told`."""
        self.truth = truth

    def told(self, truth: FutureFrames) -> "BestCopy":
        """See `Oracle`."""
        return BestCopy(truth)

    def guess(self, x: Frames, a: Actions, plan: FutureActions, poses: TruePoses | None = None) -> Guess:
        """See `Guessing`."""
        likest = torch.cdist(_told(self.truth).flatten(2), x.flatten(2)).argmin(-1)
        return Guess(gather(x, likest), None)


class Ceiling(Guessing):
    """Encodes and decodes the true frame: the best that this decoder can do."""

    privileges: tuple[str, ...] = (TRUE_FRAMES,)

    def __init__(self, vae: FrameVAE, truth: FutureFrames | None = None) -> None:
        """`vae` encodes and decodes; `truth` is the frames to be predicted, see `told`."""
        self.vae, self.truth = vae, truth

    def told(self, truth: FutureFrames) -> "Ceiling":
        """See `Oracle`."""
        return Ceiling(self.vae, truth)

    @torch.no_grad()
    def guess(self, x: Frames, a: Actions, plan: FutureActions, poses: TruePoses | None = None) -> Guess:
        """See `Guessing`."""
        return Guess(self.vae.decode(self.vae.encode(_told(self.truth)).mean), None)


def control_forecasters(vae: FrameVAE | None = None, seed: int = 0) -> dict[str, Forecaster]:
    """Controls that any model is to be compared with, by name; the ceiling only if a VAE is given."""
    return {
        **({} if vae is None else {"vae_ceiling": Ceiling(vae)}),
        "copy_nearest_true_pose": NearestCopy(),
        "best_copy": BestCopy(),
        "last_frame": LastFrame(),
        "mean_frame": MeanFrame(),
        "random_entry": RandomEntry(torch.Generator().manual_seed(seed)),
    }


def controls(
    model: WorldModel, past: Clip, future: Clip, memory: Memory, dream: Dream,
    places: tuple[Float[Tensor, "batch time _"], Float[Tensor, "batch time _"]] | None, generator: torch.Generator,
) -> dict[str, Guess]:  # fmt: skip
    """The predictions of every control of a world model, by the control's name in scores.json.

    `places` are the agent's true places, in the world's units and in the model's; if None, controls that need them are
    left out.
    """
    given = past.x, past.a, future.a
    believed = nearest(Belief(memory.place.mean), Belief(model.motion.place(dream.poses)), 1).index[..., 0]
    guessed = RandomEntry(generator).guess(*given).retrieved
    assert guessed is not None
    return {
        "vae_ceiling": Ceiling(model.vae).told(future.x).guess(*given),
        **({} if places is None else _told_places(model, past, memory, *places)),
        "best_copy": BestCopy().told(future.x).guess(*given),
        "copy_nearest_predicted_pose": Guess(gather(past.x, believed), believed),
        "last_frame": LastFrame().guess(*given),
        "mean_frame": MeanFrame().guess(*given),
        "random_retrieval": Guess(model.vae.decode(gather(memory.code.mean, guessed)), guessed),
    }


def _told_places(
    model: WorldModel, past: Clip, memory: Memory, true: Float[Tensor, "batch time _"],
    known: Float[Tensor, "batch time _"],
) -> dict[str, Guess]:  # fmt: skip
    """Controls that are given true places. They have no retrieval score, which would be right by construction."""
    tau, reading = past.steps, replace(model.settings.recall, distance="euclidean")
    keys, queries = Belief(known[:, :tau]), Belief(known[:, tau:])
    knowing = model.read(Memory(keys, memory.code, memory.digest), queries, reading)
    return {
        "true_pose_memory": Guess(model.vae.decode(knowing.peak()), None),
        "copy_nearest_true_pose": Guess(_nearest_copy(past.x, true[:, :tau], true[:, tau:]), None),
    }


def _nearest_copy(
    x: Frames, keys: Float[Tensor, "batch time P"], queries: Float[Tensor, "batch horizon P"]
) -> FutureFrames:
    """The frame memorised nearest to each query."""
    return gather(x, nearest(Belief(keys), Belief(queries), 1).index[..., 0])


def _told(truth: FutureFrames | None) -> FutureFrames:
    """The true frames; refuses an oracle that was not given any."""
    require(truth is not None, "an oracle must be told the true frames first; use what `told` returns")
    assert truth is not None
    return truth
