"""Memorise a clip, look a picture up in it, say and draw where it was seen."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from gtmsm.config import require
from gtmsm.data.store import SUFFIX, Recording, read_clip, require_size
from gtmsm.files import require_writable
from gtmsm.find.figure import draw_answer
from gtmsm.find.ground import ground_for, require_same_world
from gtmsm.find.words import headline, told
from gtmsm.model.gtmsm import WorldModel
from gtmsm.run import Run
from gtmsm.worlds.images import read_picture


@dataclass(frozen=True)
class _Question:
    """A picture or a short clip, of which the last frame is asked for."""

    x: Tensor
    a: Tensor | None

    @property
    def picture(self) -> UInt8[np.ndarray, "height width 3"]:
        """What is asked for, to be shown."""
        return (255 * self.x[0, -1]).round().byte().permute(1, 2, 0).cpu().numpy()


@torch.no_grad()
def find_picture(run: Run, clip: Path, picture: Path, *, out: Path, device: torch.device, closure: int = 0) -> str:
    """Draw where the picture was seen; returns lines that say it."""
    require(out.suffix.lower() == ".png", f'cannot write a figure as "{out.name}"; end its name with .png')
    require_writable(out)
    model = run.load_model(device)
    recording = _read(clip, model)
    question = _ask(picture, model, device)
    memory, _ = model.memorise(recording.x(device), recording.a(model.action_size, device), closure=closure)
    where = model.localise(memory, question.x, question.a)
    inferred = _array(model.motion.pose_at(memory.place.mean))
    require(bool(np.isfinite(inferred).all()), f"{run.folder}: poses are NaN or infinite: it diverged, train it again")
    metric = run.experiment.training.objective.displacement > 0
    ground = ground_for(model, run.experiment.world, recording, inferred, metric)
    out.parent.mkdir(parents=True, exist_ok=True)
    asked = picture.name if question.a is None else f"{picture.name}, the last of {question.x.shape[1]} frames"
    draw_answer(out, ground, where, headline(where, metric), question.picture, asked, recording.frames)
    return f"{told(where, model.settings.motion.has_heading, metric)}\nfigure: {out}"


def _read(path: Path, model: WorldModel) -> Recording:
    """A clip of the kind that the model knows."""
    recording = read_clip(path, model.frame_shape, model.action_size)
    require_same_world(str(path), recording, model.motion.pose_size)
    return recording


def _ask(path: Path, model: WorldModel, device: torch.device) -> _Question:
    """A picture file, or a clip with its actions."""
    if path.suffix.lower() == SUFFIX:
        asked = _read(path, model)
        return _Question(asked.x(device), asked.a(model.action_size, device))
    frame = read_picture(path)
    height, width = frame.shape[1:]
    require_size(f"{path}:", height, width, model.frame_shape)
    return _Question(frame.to(device)[None, None].float() / 255, None)


def _array(poses: Tensor) -> Float64[np.ndarray, "time D"]:
    """The poses of the only walk, on the host."""
    return poses[0].double().cpu().numpy()
