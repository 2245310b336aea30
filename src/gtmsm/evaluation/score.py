"""Evaluation of a world model: memorise, imagine, and compare with the truth and with controls."""

import math
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from gtmsm.config import config, require, require_seed
from gtmsm.data.clip import Clip
from gtmsm.data.record import record, record_in_batches
from gtmsm.evaluation import metrics
from gtmsm.evaluation.controls import controls
from gtmsm.evaluation.examine import Examiner, examiner_for
from gtmsm.evaluation.examine.examiner import Masks, joined
from gtmsm.evaluation.forecaster import Guess, Imagined, ModelForecaster
from gtmsm.evaluation.gallery import Gallery
from gtmsm.evaluation.landmarks import LandmarkEvaluationConfig, Trials, work_of_trials
from gtmsm.evaluation.progress import Meter, Tell
from gtmsm.files import replacing
from gtmsm.model.gtmsm import WorldModel
from gtmsm.tensors import FutureFrames
from gtmsm.worlds.walkers import Walker
from gtmsm.worlds.world import World

SSIM_EVERY = 4
"""SSIM is computed at every fourth step: it costs more than all other scores, and successive frames are alike."""
RECORD, PREDICT, SCORE, WAYS = 1, 2, 1, 9
"""Relative costs of a step in the progress line: record it, predict it in all ways, score one of nine ways."""


@config
class EvaluationConfig:
    """How a model is scored."""

    tau: int = 256
    """Steps to memorise (section 4.1)."""
    horizon: int = 256
    """Steps to predict (section 4.1)."""
    clips: int = 500
    """Number of held-out clips; with landmarks, also the maximum number of walks of each kind that test these."""
    seed: int = 0
    """Seed of the clips: the same seed gives the same walks in the same places."""
    slip: float = 0.0
    """Probability that a step slips in the walks to score on; slips in training are a setting of the experiment."""
    metric_poses: bool = False
    """Score poses as they are, in the world's units, since training used true displacements. Otherwise they are scored
    up to what frames and actions cannot tell: the axes of the map, their scale, and the sign of headings."""
    landmarks: LandmarkEvaluationConfig = LandmarkEvaluationConfig()

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        require(self.tau >= 1, f"tau is {self.tau}; give at least 1 step to memorise")
        require(self.horizon >= 1, f"horizon is {self.horizon}; give at least 1 step to predict")
        require(self.clips >= 1, f"clips is {self.clips}; give at least 1")
        require(0 <= self.slip <= 1, f"slip is {self.slip}; give a probability from 0 to 1")
        require_seed(self.seed)


@dataclass(frozen=True)
class Evaluation:
    """Scores, ready for JSON, and examples for the report."""

    scores: dict[str, Any]
    gallery: Gallery


@dataclass(frozen=True)
class ScoredFrames:
    """Frames as they were scored, batch by batch, so that others can score them again."""

    forecast: list[Tensor] = field(default_factory=list)
    truth: list[Tensor] = field(default_factory=list)
    revisited: list[Tensor] = field(default_factory=list)
    """Which frames are at memorised places; empty if that is unknown."""

    def add(self, forecast: FutureFrames, truth: FutureFrames, revisited: Bool[Tensor, "batch future"] | None) -> None:
        """Keep a batch, as float32 on the CPU."""
        self.forecast.append(forecast.float().cpu())
        self.truth.append(truth.float().cpu())
        if revisited is not None:
            self.revisited.append(revisited.cpu())

    def write(self, path: Path, **about: str) -> None:
        """Write a .npz of one array for each kind of frames, and of words; no batch is copied into a whole first."""
        layout, batches = np.lib.format, {name: parts for name, parts in vars(self).items() if parts}
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as draft, zipfile.ZipFile(draft, "w") as archive:
            for name, parts in batches.items():
                arrays = [part.numpy() for part in parts]
                header = layout.header_data_from_array_1_0(arrays[0])
                header |= {"shape": (sum(map(len, arrays)), *arrays[0].shape[1:]), "fortran_order": False}
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    layout.write_array_header_1_0(file, header)
                    for array in arrays:
                        file.write(array.tobytes())
            for name, words in about.items():
                with archive.open(f"{name}.npy", "w") as file:
                    layout.write_array(file, np.array(words))


def errors_of(clip: Clip, guess: Guess, examiner: Examiner) -> dict[str, Tensor]:
    """Errors of one way to predict a batch, by name, for each step of each clip."""
    truth = clip.x[:, examiner.tau :]
    hit = None if guess.retrieved is None else examiner.hits(clip, guess.retrieved)
    errors = {
        "mse": metrics.frame_mse(truth, guess.frames),
        "ssim": metrics.ssim(truth[:, ::SSIM_EVERY], guess.frames[:, ::SSIM_EVERY]),
        **({} if hit is None else {"hit": hit}),
        **examiner.judge(clip, guess.frames),
    }
    return {name: error.cpu() for name, error in errors.items()}


def summary_of(errors: dict[str, Tensor], seen: Bool[Tensor, "clips future"] | None, masks: Masks) -> dict[str, Any]:
    """The scores of one way to predict, from its errors over all clips.

    `seen` marks steps at memorised places; None if that is unknown.
    """
    mse, ssim, hit = errors.pop("mse"), errors.pop("ssim"), errors.pop("hit", None)
    unseen = torch.zeros_like(mse, dtype=torch.bool) if seen is None else ~seen
    seen = torch.zeros_like(unseen) if seen is None else seen
    scores = {
        "psnr_pooled": metrics.psnr_pooled(mse),
        "psnr_frames": metrics.psnr_frames(mse),
        "psnr_revisited": metrics.psnr_pooled(mse, seen),
        "psnr_unseen": metrics.psnr_pooled(mse, unseen),
        "ssim": ssim.double().mean().item(),
        "retrieval_revisited": None if hit is None else metrics.mean_where(hit, seen),
        "retrieval_revisited_last16": None if hit is None else metrics.mean_where(hit[:, -16:], seen[:, -16:]),
        "psnr_by_step": metrics.psnr_by_step(mse),
        "retrieval_by_step": None if hit is None else metrics.by_step(hit, seen),
    }
    scores |= {f"psnr_{name}": metrics.psnr_pooled(mse, mask) for name, mask in masks.items()}
    if hit is not None:
        scores |= {f"retrieval_{name}": metrics.mean_where(hit, mask) for name, mask in masks.items()}
    judged_on = next(iter(masks.values()), torch.ones_like(seen))
    return scores | {name: metrics.mean_where(error, judged_on) for name, error in errors.items()}


@torch.no_grad()
def evaluate(
    model: WorldModel,
    world: World,
    walker: Walker,
    settings: EvaluationConfig,
    device: torch.device,
    tell: Tell | None = None,
    fitted_in: World | None = None,
    frames: ScoredFrames | None = None,
) -> Evaluation:
    """Score `model` on walks in the places of `world`; `tell` is called with the progress.

    The map from the model's poses to the world's is fitted on other walks there, or in `fitted_in`, another world of
    the same kind. All imagined and true frames are added to `frames`.
    """
    k, tau = model.settings.recall.neighbours, settings.tau
    require(k <= tau, f"the model reads {k} neighbours but tau is {tau}; memorise at least {k} steps")
    examiner = examiner_for(world, settings.tau, settings.metric_poses)
    bounded = replace(settings.landmarks, walks=min(settings.landmarks.walks, settings.clips))
    of_clips = (RECORD + PREDICT + WAYS * SCORE) * settings.clips * (settings.tau + settings.horizon)
    of_trials = 0 if model.landmarks is None else work_of_trials(bounded, examiner, walker)
    meter = Meter(of_clips + of_trials, tell)
    meter.add("clips", 0)
    # Walks and random guesses are drawn on the CPU, so that they are the same on every device. Each has a generator of
    # its own, so that they are the same for every model, whatever it draws itself.
    walks, guessing = (torch.Generator().manual_seed(settings.seed + i) for i in (0, 5))  # 2 to 4: `Trials`
    examiner.calibrate(model, walker, settings.tau + settings.horizon, settings.seed + 6, fitted_in)
    chance = torch.Generator(device).manual_seed(settings.seed + 1)
    rows: dict[str, list[dict[str, Tensor]]] = {}
    masks: list[Masks] = []
    drawn = record_in_batches(world, walker, settings.clips, settings.tau + settings.horizon, walks)
    for clip in map(examiner.prepared, drawn):
        steps = len(clip.x) * clip.steps
        meter.add("clips", steps * RECORD)
        guesses = _guesses(model, examiner, clip, chance, guessing)
        meter.add("clips", steps * PREDICT)
        for name, guess in guesses.items():
            rows.setdefault(name, []).append(errors_of(clip, guess, examiner))
            meter.add("clips", steps * SCORE)
        masks.append({"revisited": examiner.revisited(clip)} | examiner.masks(clip))
        if frames is not None:
            known = masks[-1]["revisited"] if examiner.knows_places else None
            frames.add(guesses["imagined"].frames, clip.x[:, tau:], known)
    every = {name: mask.cpu() for name, mask in joined(masks).items()}
    seen = every.pop("revisited") if examiner.knows_places else None
    revisited = {"revisited_fraction": None if seen is None else seen.double().mean().item()}
    summaries = {name: summary_of(joined(parts), seen, every) | revisited for name, parts in rows.items()}
    scores = {
        **summaries.pop("imagined"),
        **examiner.scores(),
        "sampled": summaries.pop("sampled"),
        "controls": summaries,
        "protocol": _protocol(settings, examiner),
    }
    if (verdict := metrics.converged(scores)) is not None:
        scores["converged"] = verdict
    if model.landmarks is not None:
        scores["landmarks"] = Trials(model, examiner, bounded, settings.seed, meter).scores(world, walker)
    return Evaluation(only_numbers(scores), examiner.gallery(model))


def only_numbers(scores: Any) -> Any:
    """Scores with None for NaN and infinity, which JSON cannot represent.

    >>> only_numbers({"psnr": [30.0, float("nan")]})
    {'psnr': [30.0, None]}
    """
    if isinstance(scores, dict):
        return {name: only_numbers(value) for name, value in scores.items()}
    if isinstance(scores, list | tuple):
        return [only_numbers(value) for value in scores]
    return None if isinstance(scores, float) and not math.isfinite(scores) else scores


def _guesses(
    model: WorldModel, examiner: Examiner, clip: Clip, chance: torch.Generator, guessing: torch.Generator
) -> dict[str, Guess]:
    """Predictions of one batch by the model and its controls; `chance` draws samples, `guessing` random entries."""
    past, future = clip.split(examiner.tau)
    imagined = _imagine(model, examiner, clip)
    sampled = model.imagine(imagined.memory, imagined.here, future.a, chance)
    places = examiner.places(clip, imagined.walk)
    return {
        "imagined": imagined,
        "sampled": Guess(sampled.frames, sampled.retrieved),
        **controls(model, past, future, imagined.memory, imagined.dream, places, guessing),
    }


def _imagine(model: WorldModel, examiner: Examiner, clip: Clip) -> Imagined:
    """The model's prediction of one batch; its poses are passed on to the examiner."""
    past, future = clip.split(examiner.tau)
    imagined = ModelForecaster(model).guess(past.x, past.a, future.a)
    examiner.note(clip, imagined.walk, imagined.frames, imagined.reckoned)
    return imagined


@torch.no_grad()
def glance(model: WorldModel, world: World, walker: Walker, settings: EvaluationConfig) -> dict[str, float]:
    """Quick scores during training: PSNR, retrieval and poses on a few held-out clips."""
    examiner = examiner_for(world, settings.tau, settings.metric_poses)
    examiner.calibrate(model, walker, settings.tau + settings.horizon, settings.seed + 6)
    generator = torch.Generator().manual_seed(settings.seed)
    clip = examiner.prepared(record(world, walker, settings.clips, settings.tau + settings.horizon, generator))
    imagined = _imagine(model, examiner, clip)
    values = {"psnr": metrics.psnr_pooled(metrics.frame_mse(clip.x[:, settings.tau :], imagined.frames)) or 0.0}
    hit = examiner.hits(clip, imagined.retrieved)
    if hit is not None:
        values["retrieval"] = metrics.mean_where(hit, examiner.revisited(clip)) or 0.0
    return values | {name: score for name, score in examiner.scores().items() if isinstance(score, float)}


def _protocol(settings: EvaluationConfig, examiner: Examiner) -> dict[str, Any]:
    """How the scores were computed: settings, definitions and privileges."""
    return {
        **{name: getattr(settings, name) for name in ("tau", "horizon", "clips", "seed", "slip")},
        "prediction": "mean path, point estimate of the prior (a mixture: the mean of its heaviest component); samples "
        "of the prior under `sampled`",
        "psnr": "data range 1; pooled = PSNR of the mean error, frames = mean of per-frame PSNRs, capped at "
        f"{metrics.PSNR_CAP:.0f} dB; revisited and unseen are pooled",
        "ssim": f"uniform {metrics.SSIM_WINDOW}x{metrics.SSIM_WINDOW} window, every {SSIM_EVERY}th step",
        "poses": examiner.poses,
        "privileges": examiner.privileges,
    }
