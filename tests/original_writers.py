"""Recordings written by the libraries that own the formats.

What is in tests/written/ was made by `PYTHONPATH=src:tests python -m original_writers NAME` with

| NAME | by | in Python |
|---|---|---|
| `worldmodel` | stable-worldmodel 0.1.1, `HDF5Writer` | 3.11 |
| `world` | stable-worldmodel 0.1.1, `World.collect` | 3.12 |
| `minari` | Minari 0.5.4, `create_dataset_from_buffers` | 3.11 |
| `lerobot` | LeRobot 0.6.1, `LeRobotDataset.create`, `add_frame`, `save_episode`, `finalize` | 3.12 |

The walks are those of `recordings.walk`, three of 30 actions each, and one action more where a row has to have one.
"""

import os
import shutil
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
from recordings import MOVES, ground, rows_of_worldmodel, walk

WRITTEN = Path(__file__).parent / "written"
EPISODES, STEPS, SIZE = 3, 30, 16


def worldmodel(root: Path) -> None:
    """Discrete actions, with poses."""
    with worldmodel_module().HDF5Writer(root / "worldmodel.h5") as writer:
        writer.write_episodes(rows_of_worldmodel(seed, steps=STEPS) for seed in range(EPISODES))


def worldmodel_module() -> ModuleType:
    """Its own HDF5 reader and writer; the package itself imports much that is not needed for it."""
    spec = find_spec("stable_worldmodel")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("stable_worldmodel")
    stubs = {}
    for name in ("", ".data", ".data.formats"):
        module = stubs[f"stable_worldmodel{name}"] = ModuleType(f"stable_worldmodel{name}")
        module.__path__ = [str(Path(spec.submodule_search_locations[0]).joinpath(*name.split(".")[1:]))]
    if find_spec("hdf5plugin") is None:
        stubs["hdf5plugin"] = ModuleType("hdf5plugin")
    with mock.patch.dict(sys.modules, stubs):
        return import_module("stable_worldmodel.data.formats.hdf5")


class Toy(gymnasium.Env[np.ndarray, int]):
    """The same walk as an environment."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(0, 128, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(len(MOVES))

    def __init__(self, render_mode: str = "rgb_array", **settings: object) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.ground, self.at, self.taken = ground(np.random.default_rng(seed)), np.array([56, 56]), 0
        return self._seen()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at, self.taken = np.clip(self.at + MOVES[int(np.ravel(action)[0])], 0, 128 - SIZE), self.taken + 1
        seen, info = self._seen()
        return seen, 0.0, False, self.taken >= STEPS, info

    def render(self) -> np.ndarray:  # type: ignore[override]
        y, x = self.at
        return self.ground[y : y + SIZE, x : x + SIZE]

    def _seen(self) -> tuple[np.ndarray, dict[str, Any]]:
        where = self.at.astype(np.float32)
        return where, {"state": where, "goal": np.zeros(2, np.float32)}


def world(root: Path) -> None:
    """What its World records of an environment: the frame of the reset is lost, and the last action is the first."""
    library = import_module("stable_worldmodel")
    gymnasium.register("toy/Walk-v0", Toy)
    toy = library.World("toy/Walk-v0", num_envs=1, image_shape=(SIZE, SIZE), max_episode_steps=STEPS)
    toy.set_policy(library.policy.RandomPolicy(seed=0))
    toy.collect(root / "world.h5", episodes=2, seed=0, format="hdf5")


def minari(root: Path, jpeg: bool = False, inside: bool = False, size: int = SIZE) -> None:
    """Discrete actions, with poses; `inside`: observations are dictionaries."""
    library, buffers = import_module("minari"), import_module("minari.data_collector")
    spaces = import_module("gymnasium.spaces")
    made = []
    for seed in range(EPISODES):
        frames, actions, poses = walk(seed, STEPS, size)
        ends = np.arange(len(actions)) == len(actions) - 1
        seen = {"pixels": frames, "direction": poses} if inside else frames
        buffer = buffers.EpisodeBuffer(
            seed=seed, observations=seen, actions=actions, rewards=list(np.zeros(len(actions))),
            terminations=list(ends & False), truncations=list(ends), infos={"pose": poses},
        )  # fmt: skip
        made.append(buffer)
    picture = spaces.Box(0, 255, (size, size, 3), np.uint8)
    seen_in = spaces.Dict({"pixels": picture, "direction": spaces.Box(-np.inf, np.inf, (2,))}) if inside else picture
    with mock.patch.dict(os.environ, MINARI_DATASETS_PATH=str(root)):
        library.create_dataset_from_buffers(
            "minari-v0", made, observation_space=seen_in, action_space=spaces.Discrete(5), jpeg_encoding=jpeg
        )


def lerobot(root: Path) -> None:
    """Continuous actions: once with an MP4 (AV1), once with pictures in the Parquet."""
    datasets = import_module("lerobot.datasets.lerobot_dataset")
    for kind, size in (("video", 32), ("image", SIZE)):
        features = {
            "observation.images.front": {"dtype": kind, "shape": (size, size, 3), "names": ["height", "width", "rgb"]},
            "observation.state": {"dtype": "float32", "shape": (2,), "names": ["y", "x"]},
            "action": {"dtype": "float32", "shape": (2,), "names": ["down", "right"]},
        }
        data = datasets.LeRobotDataset.create(
            "toy/walk", fps=10, features=features, root=root / f"lerobot-{kind}", robot_type="toy"
        )
        for seed in range(EPISODES):
            frames, actions, poses = walk(seed, STEPS, size)
            done = np.concatenate([MOVES[actions] / 2, [(0, 0)]]).astype(np.float32)
            for frame, pose, action in zip(frames, poses, done, strict=True):
                data.add_frame(
                    {"observation.images.front": frame, "observation.state": pose, "action": action, "task": "walk"}
                )
            data.save_episode()
        data.finalize()


WRITERS = {writer.__name__: writer for writer in (worldmodel, world, minari, lerobot)}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        for old in WRITTEN.glob(f"{name}[.-]*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        WRITTEN.mkdir(exist_ok=True)
        WRITERS[name](WRITTEN)
