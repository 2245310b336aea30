"""`gtmsm export rrd`: a walk with frames, imagined frames, poses and map, as a file for the viewer of rerun."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from gtmsm.config import require, require_seed, require_whole
from gtmsm.data.record import one_hot
from gtmsm.data.store import LONGEST
from gtmsm.errors import InputError
from gtmsm.experiments import ImageWalkExperiment, RoomsExperiment
from gtmsm.explore import Explorer
from gtmsm.files import replacing, require_writable
from gtmsm.film import MOST_STEPS
from gtmsm.run import Run
from gtmsm.worlds.physics import IDLE

AT_ONCE = 256
"""Number of views of an explorer's memory that are decoded together."""


class _File:
    """An rrd file, to which data are logged step by step."""

    def __init__(self, path: Path) -> None:
        try:
            import rerun
        except ModuleNotFoundError:
            raise InputError('rrd files need rerun-sdk; run: pip install "gtmsm[rerun]"') from None
        self._rerun: Any = rerun
        self._stream = rerun.RecordingStream("gtmsm")
        self._stream.save(path)

    def at(self, **step: int) -> None:
        """Set the step of a timeline to which everything logged from now on belongs."""
        self._stream.reset_time()
        ((name, number),) = step.items()
        self._stream.set_time(name, sequence=number)

    def frame(self, name: str, frame: Float[Tensor, "channel height width"]) -> None:
        """Log a picture, losslessly."""
        self._stream.log(name, self._rerun.Image(_pixels(frame)))

    def numbers(self, name: str, values: Tensor | list[float]) -> None:
        """Log values of curves over time: a pose is two or three curves."""
        self._stream.log(name, self._rerun.Scalars([float(value) for value in values]))

    def agent(self, name: str, pose: Float[Tensor, "D"]) -> None:
        """Log the position of an agent and, if it has one, its heading."""
        position = pose[None, :2].cpu().numpy()
        self._stream.log(name, self._rerun.Points2D(position))
        if len(pose) == 3:
            ahead = torch.stack([pose[2].cos(), pose[2].sin()])[None].cpu().numpy()
            self._stream.log(name, self._rerun.Arrows2D(origins=position, vectors=0.5 * ahead))

    def line(self, name: str, poses: Float[Tensor, "time D"]) -> None:
        """Log a path, visible as a whole at any time."""
        self._stream.log(name, self._rerun.LineStrips2D([poses[:, :2].cpu().numpy()]), static=True)

    def dots(self, name: str, poses: Float[Tensor, "n P"]) -> None:
        """Log places, all visible at any time."""
        self._stream.log(name, self._rerun.Points2D(poses[:, :2].cpu().numpy()), static=True)

    def close(self) -> None:
        """Write what is left."""
        self._stream.flush()
        self._stream.disconnect()


def _pixels(frame: Float[Tensor, "channel height width"]) -> UInt8[np.ndarray, "height width channel"]:
    """A frame as bytes with three channels."""
    pixels = (255 * frame.clamp(0, 1)).round().byte().cpu()
    return pixels.expand(max(3, len(pixels)), -1, -1).permute(1, 2, 0).contiguous().numpy()


@torch.no_grad()
def export_walk(
    run: Run, *, kind: Literal["rrd"], explorer: Path | None, steps: int, tau: int | None, images: str | None,
    seed: int, out: Path, device: torch.device,
) -> str:  # fmt: skip
    """Write the file; return lines about it."""
    tau = run.experiment.evaluation.tau if tau is None else tau
    require(out.suffix == f".{kind}", f"out is {out}; give a name that ends in .{kind}")
    require_writable(out)
    require_seed(seed)
    require_whole("steps", steps, 0, MOST_STEPS)
    require_whole("tau", tau, 1, LONGEST)
    model = run.load_model(device)
    walked = None if explorer is None else Explorer.load(explorer, model)
    walks = isinstance(run.experiment, ImageWalkExperiment | RoomsExperiment)
    require(walks or walked is not None, f"{run.folder} learned from recordings: give the walk as --explorer FILE")
    setting = None if walked is not None else run.set_up(device, images)
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as draft:
        file = _File(draft)
        try:
            if walked is not None:
                told = _remembered(file, walked)
            else:
                assert setting is not None
                world, generator = setting.test_world, torch.Generator().manual_seed(seed)
                world.reset(1, generator)
                actions = setting.walker(world, tau + steps, generator)[0].tolist()
                told = _walked(file, Explorer(model), world, actions, tau)
        finally:
            file.close()
    return f"{told}\nfile: {out} (open it with: rerun {out})"


def _walked(file: _File, explorer: Explorer, world: Any, actions: list[int], tau: int) -> str:
    """Log the view and the prediction of each step: first while tau steps are memorised, then in a dream."""
    model, true = explorer.model, [world.pose[0].clone()]
    vectors = one_hot(torch.tensor([actions], device=world.device), model.action_size)
    dreamt = explorer.here.mean[:0]
    for t, action in enumerate(actions):
        awake = t < tau
        if t == tau:
            dream = explorer.imagine(vectors[:, tau:])
            dreamt = dream.poses[0]
        file.at(step=t)
        world.step(torch.tensor([action], device=world.device))
        true.append(world.pose[0].clone())
        seen = world.look()[0]
        expected = None
        if awake and len(explorer) >= max(1, model.settings.recall.neighbours):
            expected = explorer.imagine(vectors[:, t : t + 1]).frames[0, 0]
        if awake:
            explorer.step(seen, None if action == IDLE else action)
            here = explorer.here.mean[0, : model.motion.pose_size]
        else:
            expected, here = dream.frames[0, t - tau], dreamt[t - tau, : model.motion.pose_size]
        file.frame("real", seen)
        file.numbers("pose/true", true[-1].float())
        file.numbers("pose/inferred", here)
        file.agent("map/agent", here)
        if expected is not None:
            file.frame("imagined", expected)
            file.numbers("psnr", [-10 * float((expected - seen).square().mean().clamp_min(1e-6).log10())])
    path = torch.cat([explorer.path[0], dreamt])
    file.line("map/path", path)
    file.line("world/true", torch.stack(true).float())
    file.dots("map/memorised", explorer.memory.place.mean[0])
    return f"{tau} steps memorised, {len(actions) - tau} imagined"


def _remembered(file: _File, explorer: Explorer) -> str:
    """Log the path of an explorer, and its memorised views, decoded, each at its place."""
    model, path, memory = explorer.model, explorer.path[0], explorer.memory.snapshot()
    size = model.motion.pose_size
    for t, state in enumerate(path):
        file.at(step=t)
        file.numbers("pose/inferred", state[:size])
        file.agent("map/agent", state[:size])
    places = memory.place.mean[0]
    for first in range(0, len(memory), AT_ONCE):
        frames = model.vae.decode(memory.code.mean[:, first : first + AT_ONCE])[0]
        for i, frame in enumerate(frames):
            file.at(view=first + i)
            file.frame("remembered", frame)
            file.agent("map/seen_from", model.motion.pose_at(places[first + i]))
    file.line("map/path", path)
    file.dots("map/memorised", places)
    return f"a walk of {len(path)} steps, {len(memory)} views"
