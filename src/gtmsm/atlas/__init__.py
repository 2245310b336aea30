"""Memory that outlives a process and is shared by many machines."""

from gtmsm.atlas.atlas import Atlas, Unfinished
from gtmsm.atlas.meeting import Meeting

__all__ = ["Atlas", "Meeting", "Unfinished"]
