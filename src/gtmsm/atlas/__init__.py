"""Persistent memories of many agents, shared between processes and machines."""

from gtmsm.atlas.atlas import Atlas, Unfinished
from gtmsm.atlas.meeting import Meeting

__all__ = ["Atlas", "Meeting", "Unfinished"]
