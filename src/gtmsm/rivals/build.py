"""Rivals by name, and from files."""

from pathlib import Path

import torch

from gtmsm.config import require
from gtmsm.files import as_path
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.motion import MotionConfig
from gtmsm.model.weights import open_weights
from gtmsm.rivals.context_poses import ContextPoses
from gtmsm.rivals.grid_map import GridMap
from gtmsm.rivals.gru import Gru
from gtmsm.rivals.gtmm import GtmmContent, GtmmIntrospection
from gtmsm.rivals.rival import Kind, Rival, RivalConfig, RivalDescription
from gtmsm.rivals.rssm import Rssm
from gtmsm.rivals.ssm import Ssm
from gtmsm.rivals.transformer import Transformer

KINDS: dict[Kind, type[Rival]] = {
    "gru": Gru,
    "rssm": Rssm,
    "transformer": Transformer,
    "ssm": Ssm,
    "gtmm-introspection": GtmmIntrospection,
    "gtmm-content": GtmmContent,
    "context-poses": ContextPoses,
    "grid-map": GridMap,
}


def build_rival(
    settings: RivalConfig,
    vae: FrameVAEConfig,
    frame_shape: tuple[int, int, int],
    action_size: int,
    pose_size: int = 0,
    borrowed: WorldModel | None = None,
) -> Rival:
    """A rival with fresh weights.

    `pose_size` is the size of true poses, for a rival that needs them. `borrowed` is a GTM-SM whose motion is used, for
    grid-map.
    """
    kind = settings.kind
    needs_motion = KINDS[kind] is GridMap
    require(borrowed is not None or not needs_motion, f"{kind} walks by the motion of a trained GTM-SM; give a model")
    require(borrowed is None or needs_motion, f"{kind} has no use for the motion of a GTM-SM; give no model")
    motion = MotionConfig() if borrowed is None else borrowed.settings.motion
    size = pose_size if KINDS[kind].needs_poses else 0
    about = RivalDescription(
        rival=settings, vae=vae, frame_shape=frame_shape, action_size=action_size, pose_size=size, motion=motion
    )
    rival = KINDS[kind](about)
    if borrowed is not None:
        rival.get_submodule("motion").load_state_dict(borrowed.motion.state_dict())
    return rival


def load_rival(path: str | Path, device: torch.device | str = "cpu") -> Rival:
    """Load a rival from the folder it was trained in, or from a file of weights; its weights have no gradients."""

    def build(said: RivalDescription) -> Rival:
        return KINDS[said.rival.kind](said)

    return open_weights(as_path(path), device, "rival", "rival", RivalDescription, build)
