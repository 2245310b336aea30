"""A picture, a walk over it, and what the model imagines of the rest: as a video."""

import re
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gtmsm.config import require, require_seed
from gtmsm.data.clip import Clip
from gtmsm.data.record import as_clip
from gtmsm.errors import InputError
from gtmsm.evaluation import metrics
from gtmsm.evaluation.video import require_video_name, side_by_side, write_video
from gtmsm.files import require_folder
from gtmsm.run import Run
from gtmsm.worlds.image_walk import ImageWalk, draw_windows
from gtmsm.worlds.images import load_picture
from gtmsm.worlds.walkers import PoissonWalker, Walker

MOST_STEPS = 2_000
"""More than anybody would watch."""

COLUMN = 192
"""Width of a column of the video, or a little less, in pixels."""
BLANK = 0.1
"""Grey of what has not been imagined yet."""


def parse_actions(text: str, names: tuple[str, ...]) -> list[int]:
    """Initials of action names, each with an optional number of repetitions.

    >>> parse_actions("r3 u", ("up", "down", "left", "right", "stay"))
    [3, 3, 3, 0]
    """
    initials = {name[0]: i for i, name in enumerate(names)}
    actions: list[int] = []
    for letter, repeats in re.findall(r"(\d+|[^\s\d,])\s*(\d*)", text):
        if letter.lower() not in initials:
            known = ", ".join(f"{name[0]} ({name})" for name in names)
            raise InputError(
                f'unknown action "{letter}" in "{text}"; use {known}, each with an optional number: "r10 d5"'
            )
        actions += [initials[letter.lower()]] * int(repeats or 1)
        require(len(actions) <= MOST_STEPS, f'"{text}" holds more than {MOST_STEPS} actions; give fewer')
    require(bool(actions), f'"{text}" holds no actions; give something like "r10 d5 l3"')
    return actions


@torch.no_grad()
def film_imagination(
    run: Run,
    *,
    actions: str,
    picture: Path | None,
    images: str | None,
    steps: int,
    tau: int | None,
    seed: int,
    sample: bool,
    out: Path,
    device: torch.device,
) -> str:
    """Write the video; returns a line about it."""
    tau = run.experiment.evaluation.tau if tau is None else tau
    _refuse(steps, tau, seed, run.experiment.model.recall.neighbours, out)
    model = run.load_model(device)
    world, walker = _on_picture(run, picture, device) if picture else _on_images(run, images, device)
    generator = torch.Generator(device).manual_seed(seed)
    world.reset(1, generator)
    chosen = parse_actions(actions, world.action_names) if actions else None
    walk = walker(1, tau + (len(chosen) if chosen else steps), generator)
    if chosen:
        walk[0, tau:] = torch.tensor(chosen, device=device)
    clip = as_clip(world, walk)
    past, future = clip.split(tau)
    memory, here = model.memorise(past.x, past.a)
    dream = model.imagine(memory, here, future.a, generator if sample else None)
    seen = metrics.revisited(clip.true_pose, tau)[0]
    try:
        write_video(out, _frames(world, clip, dream.frames[0], seen, walk[0], tau), fps=8)
    except OSError as problem:
        raise InputError(f"could not write {out}: {problem.strerror or problem}") from problem
    psnr = metrics.psnr_pooled(metrics.frame_mse(future.x, dream.frames)[0], seen)
    quality = "no step of it was at a memorised place" if psnr is None else f"PSNR {psnr:.1f} dB at memorised places"
    return f"{future.steps} steps imagined after {tau} memorised; {quality}\nvideo: {out}"


def _refuse(steps: int, tau: int, seed: int, neighbours: int, out: Path) -> None:
    """Refuse what cannot be filmed, before any work is done for it."""
    require_video_name(out)
    require_folder(out.parent)
    require(not out.is_dir(), f"cannot write {out}: it is a folder")
    require(1 <= steps <= MOST_STEPS, f"steps is {steps}; give 1 to {MOST_STEPS}")
    require(tau >= 1, f"tau is {tau}; give at least 1 step to memorise")
    require(tau >= neighbours, f"tau is {tau} but the model reads {neighbours} neighbours; memorise at least as many")
    require_seed(seed)


def _on_picture(run: Run, picture: Path, device: torch.device) -> tuple[ImageWalk, Walker]:
    """The run's world with one picture as its only image."""
    image = load_picture(picture, run.experiment.world.size)
    return ImageWalk(image[None].to(device), run.experiment.world), PoissonWalker(run.experiment.walker)


def _on_images(run: Run, images: str | None, device: torch.device) -> tuple[ImageWalk, Walker]:
    """The run's world with its held-out images."""
    setting = run.set_up(device, images)
    return setting.test_world, setting.walker


def _frames(
    world: ImageWalk,
    clip: Clip,
    imagined: Float[Tensor, "future channel crop crop"],
    seen: Tensor,
    walk: Int64[Tensor, "time"],
    tau: int,
) -> np.ndarray:
    """The map with the agent's window, what is there, what is imagined, and all that was imagined so far."""
    size, crop = world.config.size, world.config.crop
    zoom = max(1, COLUMN // size)
    cells = clip.true_pose[0, tau:].long()
    maps = draw_windows(world.picture()[0], cells, world.config, zoom)
    painted = paint(imagined, world.config.corner(cells), size)
    captions = [
        f"step {tau + 1 + t}: {world.action_names[a]}, {'seen before' if known else 'never seen'}"
        for t, (a, known) in enumerate(zip(walk[tau:].tolist(), seen.tolist(), strict=True))
    ]
    views = [_enlarged(frames, size * zoom // crop) for frames in (clip.x[0, tau:], imagined)]
    columns = [column.cpu().numpy() for column in (maps, *views, _enlarged(painted, zoom))]
    labels = ["where it is", "truth", "imagined", "imagined so far"]
    return side_by_side(columns, labels, scale=1, captions=captions)


def paint(
    crops: Float[Tensor, "time channel crop crop"], corner: Int64[Tensor, "time 2"], size: int
) -> Float[Tensor, "time channel size size"]:
    """A canvas at every step with all crops up to it in their places, later ones on top."""
    time, channels, crop, _ = crops.shape
    pixel = torch.arange(size, device=crops.device)
    inside = (pixel >= corner[..., None]) & (pixel < corner[..., None] + crop)
    step = torch.arange(time, device=crops.device).view(-1, 1, 1)
    covered = inside[:, 0, :, None] & inside[:, 1, None, :]
    latest = torch.where(covered, step, -1).cummax(0).values  # which crop lies on top of each pixel
    row = (pixel[:, None] - corner[latest, 0]).clamp(0, crop - 1)
    column = (pixel[None, :] - corner[latest, 1]).clamp(0, crop - 1)
    colours = crops.permute(0, 2, 3, 1)[latest, row, column]
    return torch.where((latest >= 0)[..., None], colours, BLANK).permute(0, 3, 1, 2)


def _enlarged(frames: Float[Tensor, "time channel height width"], zoom: int) -> Tensor:
    """Every pixel as a square of `zoom` pixels."""
    return frames.repeat_interleave(max(1, zoom), -1).repeat_interleave(max(1, zoom), -2)
