"""Memorise, imagine, compare with the truth and with the controls."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gtmsm.config import config, require, require_seed
from gtmsm.data.clip import Clip
from gtmsm.data.record import record
from gtmsm.evaluation import metrics
from gtmsm.evaluation.controls import Guess, controls
from gtmsm.evaluation.gallery import Gallery
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.motion import Free, Walled
from gtmsm.worlds.image_walk import MOVES, ImageWalk
from gtmsm.worlds.walkers import Walker

SSIM_EVERY = 4
"""SSIM looks at every fourth step only: it costs more than all the rest, and neighbouring frames are alike."""


@config
class EvaluationConfig:
    """How a model is scored."""

    tau: int = 256
    """Steps to memorise (section 4.1)."""
    horizon: int = 256
    """Steps to predict (section 4.1)."""
    clips: int = 500
    """Held-out clips."""
    seed: int = 0
    """Of the clips: the same seed gives the same walks on the same images."""

    def __post_init__(self) -> None:
        """Refuse what cannot be scored."""
        require(self.tau >= 1, f"tau is {self.tau}; give at least 1 step to memorise")
        require(self.horizon >= 1, f"horizon is {self.horizon}; give at least 1 step to predict")
        require(self.clips >= 1, f"clips is {self.clips}; give at least 1")
        require_seed(self.seed)


@dataclass(frozen=True)
class Evaluation:
    """Numbers for programs, pictures for people."""

    scores: dict[str, Any]
    gallery: Gallery


@dataclass
class _Tally:
    """What one way of predicting did, clip after clip."""

    mse: list[Float[Tensor, "batch future"]] = field(default_factory=list)
    ssim: list[Float[Tensor, "batch future"]] = field(default_factory=list)
    hit: list[Bool[Tensor, "batch future"]] = field(default_factory=list)

    def add(self, clip: Clip, tau: int, guess: Guess) -> None:
        """Compare one batch with the truth."""
        self.mse.append(metrics.frame_mse(clip.x[:, tau:], guess.frames).cpu())
        self.ssim.append(metrics.ssim(clip.x[:, tau::SSIM_EVERY], guess.frames[:, ::SSIM_EVERY]).cpu())
        if guess.retrieved is not None:
            self.hit.append(metrics.hits(clip.true_pose, tau, guess.retrieved).cpu())

    def summary(self, seen: Bool[Tensor, "clips future"]) -> dict[str, Any]:
        """The scores of this way."""
        mse, ssim = torch.cat(self.mse), torch.cat(self.ssim)
        hit = torch.cat(self.hit) if self.hit else None
        return {
            "psnr_pooled": metrics.psnr_pooled(mse),
            "psnr_frames": metrics.psnr_frames(mse),
            "psnr_revisited": metrics.psnr_pooled(mse, seen),
            "psnr_unseen": metrics.psnr_pooled(mse, ~seen),
            "ssim": ssim.double().mean().item(),
            "retrieval_revisited": None if hit is None else _share(hit, seen),
            "retrieval_revisited_last16": None if hit is None else _share(hit[:, -16:], seen[:, -16:]),
            "psnr_by_step": metrics.psnr_by_step(mse),
            "retrieval_by_step": None if hit is None else metrics.by_step(hit, seen),
        }


def _share(value: Bool[Tensor, "*n"], mask: Bool[Tensor, "*n"]) -> float | None:
    """How often `value` holds where `mask` does."""
    return value[mask].double().mean().item() if mask.any() else None


@torch.no_grad()
def evaluate(
    model: WorldModel, world: ImageWalk, walker: Walker, settings: EvaluationConfig, device: torch.device
) -> Evaluation:
    """Score `model` on walks over the images of `world`."""
    reading = model.settings.recall.neighbours
    require(
        reading <= settings.tau,
        f"the model reads {reading} neighbours but tau is {settings.tau}; memorise at least {reading} steps",
    )
    # Apart, so that two models are scored on the same walks however much chance each of them uses.
    walks, chance = (torch.Generator(device).manual_seed(settings.seed + i) for i in (0, 1))
    tallies: dict[str, _Tally] = {}
    true, inferred, seen = [], [], []
    gallery: dict[str, Any] = {}
    for clip in _batches(world, walker, settings, walks):
        past, future = clip.split(settings.tau)
        memory, here = model.memorise(past.x, past.a)
        dream = model.imagine(memory, here, future.a)
        sampled = model.imagine(memory, here, future.a, chance)
        guesses = {
            "imagined": Guess(dream.frames, dream.retrieved),
            "sampled": Guess(sampled.frames, sampled.retrieved),
            **controls(model, past, future, memory, dream, chance),
        }
        for name, guess in guesses.items():
            tallies.setdefault(name, _Tally()).add(clip, settings.tau, guess)
        walk = torch.cat([memory.place.mean, dream.poses], 1).cpu()
        true.append(clip.true_pose.cpu())
        inferred.append(walk)
        seen.append(metrics.revisited(clip.true_pose, settings.tau).cpu())
        if not gallery:
            gallery = _examples(world, clip, dream.frames, walk, settings.tau)
    fit = metrics.affine_fit(torch.cat(inferred), torch.cat(true))
    share = torch.cat(seen).double().mean().item()
    r2 = {"imagined": fit.r2, "sampled": None, "true_pose_memory": 1.0, "copy_nearest_true_pose": 1.0}
    r2["copy_nearest_predicted_pose"] = fit.r2
    summaries = {
        name: tally.summary(torch.cat(seen)) | {"pose_r2": r2.get(name), "revisited_fraction": share}
        for name, tally in tallies.items()
    }
    scores = {
        **summaries.pop("imagined"),
        "sampled": summaries.pop("sampled"),
        "controls": summaries,
        "protocol": _protocol(settings),
    }
    scores["converged"] = all((scores[name] or 0) >= bar for name, bar in metrics.CONVERGED.items())
    return Evaluation(scores, Gallery(**gallery, **_learned_motion(model, world, torch.cat(true), torch.cat(inferred))))


def glance(
    model: WorldModel, world: ImageWalk, walker: Walker, settings: EvaluationConfig, device: torch.device
) -> dict[str, float]:
    """PSNR, retrieval and R2 on a few held-out clips, quickly: what training shows while it runs."""
    generator = torch.Generator(device).manual_seed(settings.seed)
    with torch.no_grad():
        clip = record(world, walker, settings.clips, settings.tau + settings.horizon, generator)
        past, future = clip.split(settings.tau)
        memory, here = model.memorise(past.x, past.a)
        dream = model.imagine(memory, here, future.a)
        seen = metrics.revisited(clip.true_pose, settings.tau)
        hit = metrics.hits(clip.true_pose, settings.tau, dream.retrieved)
        walk = torch.cat([memory.place.mean, dream.poses], 1)
        return {
            "psnr": metrics.psnr_pooled(metrics.frame_mse(future.x, dream.frames)) or 0.0,
            "retrieval": _share(hit, seen) or 0.0,
            "pose_r2": metrics.affine_fit(walk, clip.true_pose).r2,
        }


def _batches(
    world: ImageWalk, walker: Walker, settings: EvaluationConfig, generator: torch.Generator, at_once: int = 50
) -> Iterator[Clip]:
    """Clips in portions that fit into memory."""
    for begin in range(0, settings.clips, at_once):
        n = min(at_once, settings.clips - begin)
        yield record(world, walker, n, settings.tau + settings.horizon, generator)


def _protocol(settings: EvaluationConfig) -> dict[str, Any]:
    """How the scores came about, as the metric rules ask."""
    return {
        "tau": settings.tau,
        "horizon": settings.horizon,
        "clips": settings.clips,
        "seed": settings.seed,
        "prediction": "mean path, mean of the heaviest component; samples of the prior under `sampled`",
        "psnr": "data range 1; pooled = PSNR of the mean error, frames = mean of per-frame PSNRs, capped at "
        f"{metrics.PSNR_CAP:.0f} dB; revisited and unseen are pooled",
        "ssim": f"uniform {metrics.SSIM_WINDOW}x{metrics.SSIM_WINDOW} window, every {SSIM_EVERY}th step",
        "privileges": "fixed start; no displacement loss, no true poses, no labels of walls",
    }


def _examples(world: ImageWalk, clip: Clip, imagined: Tensor, walk: Tensor, tau: int, count: int = 4) -> dict[str, Any]:
    """The first few clips of a batch that was just recorded in `world`."""
    return {
        "images": world.picture()[:count].cpu().numpy(),
        "truth": clip.x[:count, tau:].cpu().numpy(),
        "imagined": imagined[:count].cpu().numpy(),
        "true_pose": clip.true_pose[:count].cpu().numpy(),
        "inferred_pose": walk[:count].numpy(),
        "tau": tau,
        "view_corner": world.config.corner(clip.true_pose[:count, tau - 1]).cpu().numpy(),
    }


def _learned_motion(
    model: WorldModel,
    world: ImageWalk,
    true: Float[Tensor, "clips time 2"],
    inferred: Float[Tensor, "clips time S"],
) -> dict[str, Any]:
    """M and sigma_d, and the truth mapped into their space."""
    motion = model.motion
    assert isinstance(motion, Free)
    into = metrics.affine_fit(true, inferred)
    far = world.config.cells - 0.5
    corners = torch.tensor([[-0.5, -0.5], [-0.5, far], [far, far], [far, -0.5]])
    moves = torch.tensor(MOVES, dtype=torch.float64)
    low, high = inferred.flatten(0, 1).amin(0), inferred.flatten(0, 1).amax(0)
    margin = 1.5 * motion.M.detach().cpu().norm(dim=0).max()
    xs, ys = (torch.linspace(float(a), float(b), 160) for a, b in zip(low - margin, high + margin, strict=True))
    if isinstance(motion, Walled):
        grid = torch.stack(torch.meshgrid(xs, ys, indexing="xy"), -1).to(motion.M.device)
        values = motion.gate(grid).cpu()
    else:
        xs, ys, values = torch.empty(0), torch.empty(0), torch.empty(0, 0)
    return {
        "displacement": motion.M.detach().cpu().T.numpy(),
        "action_names": world.action_names,
        "wall_xs": xs.numpy(),
        "wall_ys": ys.numpy(),
        "wall_values": values.numpy(),
        "walls": into(corners.double()).float().numpy(),
        "true_displacement": (moves @ into.matrix).float().numpy(),
    }
