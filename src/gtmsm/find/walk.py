"""Record a walk through a held-out place as a clip file, and pictures to localise in it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from gtmsm.config import require, require_seed
from gtmsm.data.clip import Clip
from gtmsm.data.record import as_clip
from gtmsm.data.store import LONGEST, Recording, require_clip_name, write_clip
from gtmsm.evaluation.examine import Examiner, examiner_for
from gtmsm.files import replacing, require_folder, require_writable
from gtmsm.find.words import pose_in_words
from gtmsm.pose import space_of
from gtmsm.run import Run
from gtmsm.worlds.walkers import Walker
from gtmsm.worlds.world import World


@torch.no_grad()
def record_walk(run: Run, out: Path, *, steps: int | None, seed: int, images: str | None, pictures: Path | None) -> str:
    """Write the clip and, if a folder is given, pictures to localise; return lines about them."""
    steps = run.experiment.evaluation.tau if steps is None else steps
    require(1 <= steps <= LONGEST, f"steps is {steps}; give 1 to {LONGEST}")
    require_seed(seed)
    require_clip_name(out)
    require_writable(out)
    if pictures is not None:
        require_folder(pictures)
    setting = run.set_up(torch.device("cpu"), images)
    world, walker = setting.test_world, setting.walker
    generator = torch.Generator().manual_seed(seed)
    world.reset(1, generator)
    clip = as_clip(world, walker(world, steps, generator))
    examiner = examiner_for(world, steps)
    recording = Recording.of(clip, examiner.chart())
    out.parent.mkdir(parents=True, exist_ok=True)
    write_clip(out, recording)
    told = f"{steps} steps of {recording.frames.shape[2]}x{recording.frames.shape[1]} pixels, with the truth: {out}"
    if pictures is None:
        return told
    pictures.mkdir(parents=True, exist_ok=True)
    again = _seen_again(examiner, world, walker, clip, generator, pictures)
    return "\n".join([told, *again, *_elsewhere(examiner, world, walker, generator, pictures)])


def _seen_again(
    examiner: Examiner, world: World, walker: Walker, clip: Clip, generator: torch.Generator, folder: Path
) -> list[str]:
    """Write pictures from later steps at places of the clip, or from the clip itself if the agent never comes back."""
    later = as_clip(world, walker(world, max(100, clip.steps), generator))
    names = ("x", "a", "true_pose", "true_step")
    x, a, pose, step = (torch.cat([getattr(clip, name), getattr(later, name)], 1) for name in names)
    whole = Clip(x, a, pose, step)
    again = (clip.steps + examiner.revisited(whole)[0].nonzero()[:, 0]).tolist()
    came_back = len(again) > 0
    source = "when it came by again" if came_back else "in the clip itself, since the walk never came by again"
    poses = space_of(whole.true_pose.shape[-1]).displacement(whole.true_start, whole.true_pose[0])
    return [
        f"{path}: seen at {pose_in_words(poses[step].tolist())} from the start, {source}"
        for step, path in _write_some(whole, again if came_back else range(clip.steps), 3, folder / "seen")
    ]


def _elsewhere(examiner: Examiner, world: World, walker: Walker, generator: torch.Generator, folder: Path) -> list[str]:
    """Write pictures of another place, if there is one."""
    before = int(examiner.where[0])
    for _ in range(100):
        world.reset(1, generator)
        if int(examiner.where[0]) != before:
            break
    else:
        return ["no pictures of another place: this run's world has no other"]
    clip = as_clip(world, walker(world, 32, generator))
    written = _write_some(clip, range(clip.steps), 2, folder / "other-place")
    return [f"{path}: of another place, never seen in the clip" for _, path in written]


def _write_some(clip: Clip, steps: Sequence[int], count: int, stem: Path) -> Iterator[tuple[int, Path]]:
    """Write frames of a few steps far from each other, including the last one; yield each step and its file."""
    chosen = np.linspace(0, len(steps) - 1, count + 1)[1:].round().astype(int)
    for step in sorted({steps[i] for i in chosen}):
        path = stem.with_name(f"{stem.name}-step-{step + 1:04d}.png")
        with replacing(path) as draft:
            Image.fromarray(as_bytes(clip.x[0, step])).save(draft, "PNG")
        yield step, path


def as_bytes(picture: Float[Tensor, "3 height width"]) -> UInt8[np.ndarray, "height width 3"]:
    """Convert a frame to bytes with channels last, as in files."""
    return (255 * picture).round().byte().permute(1, 2, 0).cpu().numpy()
