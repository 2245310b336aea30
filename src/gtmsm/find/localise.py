"""Memorise a clip, localise a picture in it, and report the answer as text and as a figure."""

from pathlib import Path

import torch
from torch import Tensor

from gtmsm.config import require
from gtmsm.data.store import SUFFIX, Recording, read_clip, require_size
from gtmsm.experiments import OwnExperiment
from gtmsm.files import require_writable
from gtmsm.find.figure import draw_answer
from gtmsm.find.ground import ground_for, require_same_world
from gtmsm.find.walk import as_bytes
from gtmsm.find.words import headline, told
from gtmsm.model.gtmsm import WorldModel
from gtmsm.run import Run
from gtmsm.tensors import Frames
from gtmsm.worlds.images import read_picture


@torch.no_grad()
def find_picture(run: Run, clip: Path, picture: Path, *, out: Path, device: torch.device, closure: int = 0) -> str:
    """Draw where the picture was seen; return the answer as text."""
    require(out.suffix.lower() == ".png", f'cannot write a figure as "{out.name}"; end its name with .png')
    require_writable(out)
    model = run.load_model(device)
    recording = _read(clip, model)
    x, a = _ask(picture, model, device)
    memory, _ = model.memorise(recording.x(device), recording.a(model.action_size, device), closure=closure)
    where = model.localise(memory, x, a)
    inferred = model.motion.pose_at(memory.place.mean)[0].double().cpu().numpy()
    metric = run.experiment.training.objective.displacement > 0
    assert not isinstance(run.experiment, OwnExperiment), "its models have no landmarks to localise by"
    ground = ground_for(model, run.experiment.world, recording, inferred, metric)
    out.parent.mkdir(parents=True, exist_ok=True)
    asked = picture.name if a is None else f"{picture.name}, the last of {x.shape[1]} frames"
    draw_answer(out, ground, where, headline(where, metric), as_bytes(x[0, -1]), asked, recording.frames)
    return f"{told(where, model.settings.motion.has_heading, metric)}\nfigure: {out}"


def _read(path: Path, model: WorldModel) -> Recording:
    """Read a clip; refuse one that does not fit the model."""
    recording = read_clip(path, model.frame_shape, model.action_size)
    require_same_world(str(path), recording, model.motion.pose_size)
    return recording


def _ask(path: Path, model: WorldModel, device: torch.device) -> tuple[Frames, Tensor | None]:
    """Read what is asked for: a picture, or the last frame of a short clip, whose actions are returned too."""
    if path.suffix.lower() == SUFFIX:
        asked = _read(path, model)
        return asked.x(device), asked.a(model.action_size, device)
    frame = read_picture(path)
    require_size(f"{path}:", frame.shape[1], frame.shape[2], model.frame_shape)
    return frame.to(device)[None, None].float() / 255, None
