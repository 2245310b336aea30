"""The image walk as a Gymnasium environment, for whoever brings an agent of their own.

>>> import gymnasium
>>> env = gymnasium.make("gtmsm.worlds.gym:gtmsm/ImageWalk-v0", images="builtin")
"""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from jaxtyping import UInt8

from gtmsm.config import require
from gtmsm.errors import did_you_mean
from gtmsm.worlds.image_walk import ACTIONS, ImageWalk, ImageWalkConfig, Start, draw_windows
from gtmsm.worlds.images import load_images

IMAGE_WALK = "gtmsm/ImageWalk-v0"
EPISODE = 512
"""T, the steps of a test sequence (section 4.1)."""

PICTURE = 512
"""Side of a rendered picture in screen pixels, or a little less: image pixels stay square and sharp."""


class ImageWalkEnv(gymnasium.Env[np.ndarray, int | np.int64]):
    """Walk on an image; the observation is the crop under the agent, and nothing is rewarded."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}

    def __init__(
        self,
        images: str | Path = "builtin",
        size: int = 32,
        crop: int = 8,
        stride: int = 3,
        start: Start = "centre",
        split: str = "train",
        render_mode: str | None = None,
    ) -> None:
        """Walk on the training (or test) images of a source that `load_images` reads."""
        modes = self.metadata["render_modes"]
        require(
            render_mode is None or render_mode in modes,
            f'render_mode is "{render_mode}"; {did_you_mean(str(render_mode), modes)}',
        )
        require(split in ("train", "test"), f'split is "{split}"; {did_you_mean(split, ("train", "test"))}')
        self.config = ImageWalkConfig(size=size, crop=crop, stride=stride, start=start)
        self.images = getattr(load_images(images, size), split)
        self.world = ImageWalk(self.images, self.config)
        self.render_mode = render_mode
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))
        self.observation_space = gymnasium.spaces.Box(0, 255, (crop, crop, 3), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[UInt8[np.ndarray, "crop crop 3"], dict[str, Any]]:
        """Draw an image, and a cell where the start is random."""
        super().reset(seed=seed)
        cells = self.config.cells
        image = self.np_random.integers(len(self.images), size=1)
        cell = np.full((1, 2), cells // 2)
        if self.config.start == "random":
            cell = self.np_random.integers(cells, size=(1, 2))
        self.world.place(torch.from_numpy(image), torch.from_numpy(cell))
        return self._observation(), self._info()

    def step(
        self, action: int | np.int64
    ) -> tuple[UInt8[np.ndarray, "crop crop 3"], float, bool, bool, dict[str, Any]]:
        """Move one cell; an episode never ends by itself, Gymnasium cuts it after 512 steps."""
        require(
            self.action_space.contains(action),
            f"action is {action!r}; expected 0 to {len(ACTIONS) - 1}: {', '.join(ACTIONS)}",
        )
        self.world.step(torch.tensor([int(action)]))
        return self._observation(), 0.0, False, False, self._info()

    def render(self) -> UInt8[np.ndarray, "side side 3"] | None:
        """The whole image with the agent's window as a yellow square (fig. 2a)."""
        if self.render_mode is None:
            return None
        zoom = max(1, PICTURE // self.config.size)
        framed = draw_windows(self.world.picture()[0], self.world.cell, self.config, zoom)[0]
        return (framed * 255).round().byte().permute(1, 2, 0).numpy()

    def _observation(self) -> UInt8[np.ndarray, "crop crop 3"]:
        """What the agent sees, height first and channels last."""
        return (self.world.look()[0] * 255).round().byte().permute(1, 2, 0).numpy()

    def _info(self) -> dict[str, Any]:
        """Where the agent really is."""
        return {"cell": self.world.cell[0].numpy().copy(), "image": int(self.world.image[0])}


def register_envs() -> None:
    """Make our environments known to `gymnasium.make`; `import gtmsm` does it."""
    if IMAGE_WALK not in gymnasium.registry:
        gymnasium.register(IMAGE_WALK, entry_point="gtmsm.worlds.gym:ImageWalkEnv", max_episode_steps=EPISODE)
