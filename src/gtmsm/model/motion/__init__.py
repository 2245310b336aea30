"""p(s_t | s_{t-1}, a_t): how actions move the pose."""

from gtmsm.model.motion.base import Motion, MotionConfig, Scout
from gtmsm.model.motion.flat import Free, Walled
from gtmsm.model.motion.turning import Drifting, Gliding, Rolling, Turning

__all__ = [
    "Drifting", "Free", "Gliding", "Motion", "MotionConfig", "Rolling", "Scout", "Turning", "Walled", "build_motion",
]  # fmt: skip


def build_motion(settings: MotionConfig, action_size: int) -> Motion:
    """The motion that the settings name."""
    kinds: dict[str, type[Free | Turning]] = {
        "free": Free, "walled": Walled, "turning": Turning, "drifting": Drifting, "gliding": Gliding,
        "rolling": Rolling,
    }  # fmt: skip
    return kinds[settings.kind](settings, action_size)
