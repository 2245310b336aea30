"""`gtmsm imagine`: a video of a walk, of which the model memorises the beginning and imagines the rest."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from gtmsm.config import require, require_seed
from gtmsm.data.clip import Clip
from gtmsm.data.record import as_clip
from gtmsm.data.store import LONGEST
from gtmsm.errors import InputError, shortened
from gtmsm.evaluation import metrics
from gtmsm.evaluation.examine import Examiner, ImageWalkExaminer, RecordedExaminer, RoomsExaminer, examiner_for
from gtmsm.evaluation.report.map_film import film_map, tensor_of
from gtmsm.evaluation.video import comparison, require_video_name, side_by_side, write_video
from gtmsm.files import require_writable
from gtmsm.model.dream import Dream
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.planning import Obstacles, Walked
from gtmsm.run import Run
from gtmsm.worlds.floorplan import Plan
from gtmsm.worlds.image_map import draw_windows
from gtmsm.worlds.physics import IDLE

Film: TypeAlias = UInt8[np.ndarray, "future tall wide 3"]
MOST_STEPS = 2_000
"""Maximum number of steps of a video."""
COLUMN = 192
"""Width of a column of the video, or a little less, in pixels."""
VIEW = 256
"""The same in rooms, whose views have more detail and whose videos have fewer columns."""
BLANK = 0.1
"""Grey level of pixels that have not been imagined yet."""


def parse_actions(text: str, names: tuple[str, ...], keys: Mapping[str, int] | None = None) -> list[int]:
    """Parse one letter per action, each with an optional number of repetitions; `keys` replaces initials as letters.

    >>> parse_actions("r3 u", ("up", "down", "left", "right", "stay"))
    [3, 3, 3, 0]
    """
    keys = keys or {name[0]: i for i, name in enumerate(names)}
    first, second, *_ = (*keys, *keys)
    example = f'"{first}10 {second}5"'
    actions: list[int] = []
    given = shortened(text)
    for letter, repeats in re.findall(r"(\d+|[^\s\d,])\s*(\d*)", text):
        if letter.lower() not in keys:
            known = ", ".join(f"{key} ({_name(i, names)})" for key, i in keys.items())
            raise InputError(
                f'unknown action "{shortened(letter)}" in "{given}"; use {known}, each with an optional number: '
                f"{example}"
            )
        count = int(repeats or 1) if len(repeats) < 10 else MOST_STEPS + 1
        require(len(actions) + count <= MOST_STEPS, f'"{given}" holds more than {MOST_STEPS} actions; give fewer')
        actions += [keys[letter.lower()]] * count
    require(bool(actions), f'"{given}" holds no actions; give something like {example}')
    return actions


def _name(action: int, names: tuple[str, ...]) -> str:
    """Name of an action, or of no action."""
    return "no key" if action == IDLE else names[action]


@torch.no_grad()
def film_imagination(
    run: Run, *, actions: str, picture: Path | None, images: str | None, places: Plan | None, steps: int,
    tau: int | None, seed: int, sample: bool, out: Path, device: torch.device,
) -> str:  # fmt: skip
    """Write the video; return lines about it."""
    tau = run.experiment.evaluation.tau if tau is None else tau
    _refuse(steps, tau, seed, run.experiment.model.recall.neighbours, out)
    model = run.load_model(device)
    setting = run.set_up(device, images, plan=places, picture=picture)
    world, walker = setting.test_world, setting.walker
    examiner = examiner_for(world, tau, run.experiment.evaluation.metric_poses)
    generator = torch.Generator().manual_seed(seed)
    if isinstance(examiner, RecordedExaminer):
        require(not actions, "imagining other actions than recorded ones is not filmed yet; leave out --actions")
        chance = torch.Generator(device).manual_seed(seed + 1) if sample else None
        return _film_recording(examiner, model, steps, generator, chance, out)
    world.reset(1, generator)
    chosen = parse_actions(actions, world.action_names, examiner.world.action_keys) if actions else None
    walk = walker(world, tau + (len(chosen) if chosen else steps), generator)
    if chosen:
        walk[0, tau:] = torch.tensor(chosen)
    clip = as_clip(world, walk)
    past, future = clip.split(tau)
    chance = torch.Generator(device).manual_seed(seed + 1) if sample else None
    dream = _imagined(model, past, future, chance)
    bumped = examiner.bumped(clip)[0].tolist()
    seen = examiner.revisited(clip)[0].tolist()
    captions = [
        f"step {tau + 1 + t}: {_name(a, world.action_names)}{', bumped' * bump}, "
        f"{'seen before' if known else 'never seen'}"
        for t, (a, known, bump) in enumerate(zip(walk[0, tau:].tolist(), seen, bumped, strict=True))
    ]
    shoot, fps = FILMS[type(examiner)]
    film, quality = shoot(examiner, model, clip, dream, captions)
    _write(out, film, fps)
    told = f"{future.steps} steps imagined after {tau} memorised; {quality}\n"
    if any(bumped):
        first = tau + 1 + bumped.index(True)
        told += f"bumped at step {first}: no walls of rooms are known but those met before, so poses may go astray\n"
    return f"{told}video: {out}"


def _imagined(model: WorldModel, past: Clip, future: Clip, chance: torch.Generator | None) -> Dream:
    """The rest of a walk, imagined; what was bumped into while its beginning was memorised stops it."""
    seen = model.observe(past.x, past.a)
    walked = Walked.along(seen.walk.mean[0], past.a[0])
    obstacles = Obstacles.of(model.motion, seen.entries, walked)
    return model.imagine(seen.entries, seen.walk[:, -1], future.a, chance, obstacles)


def _write(out: Path, film: Film, fps: int) -> None:
    """Write the video; an error of one line says why that failed."""
    try:
        write_video(out, film, fps)
    except OSError as problem:
        raise InputError(f"could not write {out}: {problem.strerror or problem}") from problem


def _film_recording(
    examiner: RecordedExaminer, model: WorldModel, steps: int, generator: torch.Generator,
    chance: torch.Generator | None, out: Path,
) -> str:  # fmt: skip
    """Film a held-out window: its beginning is memorised, the rest imagined from the recorded actions."""
    tau, world = examiner.tau, examiner.world
    require(world.longest > tau, f"tau is {tau} and held-out episodes have up to {world.longest} steps; lower --tau")
    clip = examiner.prepared(world.replay(1, min(tau + steps, world.longest), generator))
    past, future = clip.split(tau)
    dream = _imagined(model, past, future, chance)
    truth, imagined = future.x.cpu().numpy(), dream.frames.cpu().numpy()
    seen = examiner.revisited(clip).cpu().numpy() if examiner.knows_places else None
    _write(out, comparison(truth, imagined, seen, tau, max(1, VIEW // truth.shape[-1])), 12)
    guesses = (dream.frames, past.x.mean(1, keepdim=True).expand_as(future.x))
    psnr, mean = (metrics.psnr_pooled(metrics.frame_mse(future.x, guess)) for guess in guesses)
    quality = f"PSNR {psnr:.1f} dB (the mean of the memorised frames: {mean:.1f})"
    fewer = f" ({steps} asked; held-out episodes have up to {world.longest} steps)" if future.steps < steps else ""
    return f"{future.steps} steps imagined after {tau} memorised{fewer}; {quality}\nvideo: {out}"


def _refuse(steps: int, tau: int, seed: int, neighbours: int, out: Path) -> None:
    """Refuse settings that cannot be filmed, before any work is done."""
    require_video_name(out)
    require_writable(out)
    require(1 <= steps <= MOST_STEPS, f"steps is {steps}; give 1 to {MOST_STEPS}")
    require(tau >= 1, f"tau is {tau}; give at least 1 step to memorise")
    require(tau <= LONGEST, f"tau is {tau}; give at most {LONGEST} steps to memorise")
    require(tau >= neighbours, f"tau is {tau} but the model reads {neighbours} neighbours; memorise at least as many")
    require_seed(seed)


def _on_image(
    examiner: ImageWalkExaminer, model: WorldModel, clip: Clip, dream: Dream, captions: list[str]
) -> tuple[Film, str]:
    """Film four columns: the map with the agent's window, the true view, the imagined one, and all imagined so far.

    The second value is the PSNR at memorised places, in words.
    """
    world, imagined, truth = examiner.world, dream.frames[0], clip.x[:, examiner.tau :]
    size, crop = world.config.size, world.config.crop
    zoom = max(1, COLUMN // size)
    cells = clip.true_pose[0, -len(imagined) :].long()
    maps = draw_windows(world.picture()[0], cells, world.config, zoom, world.solid[0])
    painted = paint(imagined, world.config.corner(cells), size)
    views = [_enlarged(frames, size * zoom // crop) for frames in (truth[0], imagined)]
    columns = [column.cpu().numpy() for column in (maps, *views, _enlarged(painted, zoom))]
    film = side_by_side(columns, ["where it is", "truth", "imagined", "imagined so far"], scale=1, captions=captions)
    psnr = metrics.psnr_pooled(metrics.frame_mse(truth, dream.frames), examiner.revisited(clip))
    return film, "no step of it was at a memorised place" if psnr is None else f"PSNR {psnr:.1f} dB at memorised places"


def _in_rooms(
    examiner: RoomsExaminer, model: WorldModel, clip: Clip, dream: Dream, captions: list[str]
) -> tuple[Film, str]:
    """Film three columns: the map (memorised places, path since then, true and inferred agent), truth, imagination.

    The second value, in words, is the PSNR over all steps, since a view can be composed of others, and the error of
    the last pose.
    """
    tau, truth = examiner.tau, clip.x[:, examiner.tau :]
    past = model.motion.unroll(model.motion.start(1), clip.a[:, :tau])
    examiner.note(clip, torch.cat([past, dream.poses], 1), dream.frames)
    shown, off = examiner.gallery(model), examiner.scores()
    scale = max(1, VIEW // truth.shape[-1])
    true, inferred = (tensor_of(pose[0]) for pose in (shown.true_pose, shown.inferred_pose))
    maps = film_map(shown.maps[0], true, tau, scale * truth.shape[-1], inferred, trail=True)
    labels = ["red: where it is, blue: where it thinks", "truth", "imagined"]
    film = side_by_side([maps, shown.truth[0], shown.imagined[0]], labels, scale, captions)
    guesses = (dream.frames, clip.x[:, tau - 1 : tau].expand_as(truth))
    psnr, still = (metrics.psnr_pooled(metrics.frame_mse(truth, guess)) for guess in guesses)
    return film, (
        f"PSNR {psnr:.1f} dB (the last frame repeated: {still:.1f}), "
        f"at the end {off['position_error']:.2f} wall heights and {off['heading_error']:.1f}° off"
    )


FILMS: dict[type[Examiner], tuple[Callable[..., tuple[Film, str]], int]] = {
    ImageWalkExaminer: (_on_image, 8),
    RoomsExaminer: (_in_rooms, 12),
}
"""For each kind of world, the function that films a walk and scores it in words, and frames per second. Steps in rooms
are small: Labyrinth has 15 per second."""


def paint(
    crops: Float[Tensor, "time channel crop crop"], corner: Int64[Tensor, "time 2"], size: int
) -> Float[Tensor, "time channel size size"]:
    """A canvas for every step with all crops up to it at their positions, later ones on top."""
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
