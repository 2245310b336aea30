"""Settings of a world model, and the description of it that a weights file holds."""

from gtmsm.config import config, require, require_whole
from gtmsm.errors import shown
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.model.recognition import LandmarkConfig

LARGEST = 1_024
"""Largest side of a frame in pixels, and largest number of actions."""


@config
class WorldModelConfig:
    """The parts of a world model."""

    vae: FrameVAEConfig = FrameVAEConfig()
    motion: MotionConfig = MotionConfig()
    recall: RecallConfig = RecallConfig()
    landmark: LandmarkConfig = LandmarkConfig()
    bumps: int = 0
    """Hidden units of the network that predicts from a view which steps fail (not in the paper); 0: no network."""

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        require(
            self.recall.distance != "kl" or self.motion.noise > 0,
            "distance is kl but noise is 0: a pose that is known exactly has no divergence; give some noise",
        )
        require(
            self.recall.distance != "kl" or not self.motion.has_heading,
            f"distance is kl, which compares poses themselves, but the places of a {self.motion.kind} motion are not "
            "its poses; use distance euclidean",
        )
        wants_heading = self.recall.prior == "rays" or self.recall.choice == "visible"
        require(
            self.motion.has_heading or not wants_heading,
            f"prior {self.recall.prior} with choice {self.recall.choice} needs an agent with a heading, and a "
            f"{self.motion.kind} motion has none; use turning, drifting, gliding or rolling",
        )
        require(self.bumps >= 0, f"bumps is {self.bumps}; give a number of units, or 0")
        require(
            self.landmark.form == "off" or self.motion.noise > 0,
            "landmarks correct a pose that may be wrong, but noise is 0; give some noise",
        )
        require(
            self.landmark.form == "off" or self.recall.distance == "euclidean",
            "distance is kl, but beliefs corrected by landmarks are no marginals of the motion; use distance euclidean",
        )
        require(
            self.landmark.form == "off" or self.recall.holds == "statistics",
            "landmarks compare views by the variances of their codes, which samples have not; use holds statistics",
        )
        require(
            not self.landmark.rendered or self.recall.prior != "mixture",
            f"rendered is {self.landmark.rendered}, but a mixture shows no view between two places; use prior query or "
            "rays, or rendered 0",
        )
        require(
            self.recall.prior != "rays" or self.vae.coder == "spatial",
            f"prior rays needs spatial codes but coder is {self.vae.coder}; use coder spatial",
        )


@config
class Description:
    """The description of a model in its weights file."""

    model: WorldModelConfig
    frame_shape: tuple[int, int, int]
    action_size: int

    def __post_init__(self) -> None:
        """Refuse sizes out of range."""
        require_sizes(self.frame_shape, self.action_size)


def require_sizes(frame_shape: tuple[int, int, int], action_size: int) -> None:
    """Refuse sizes of frames and actions out of range, before anything is allocated for them."""
    shaped = isinstance(frame_shape, tuple) and len(frame_shape) == 3
    require(shaped, f"frame_shape is {shown(frame_shape)}; give a tuple (channels, height, width)")
    for name, size in (*(("frame_shape", size) for size in frame_shape), ("action_size", action_size)):
        require_whole(name, size, most=LARGEST)
