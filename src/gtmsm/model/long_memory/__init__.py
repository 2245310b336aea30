"""Memory that grows: one long memory of a single agent, searched exactly and in next to no time."""

from gtmsm.model.long_memory.memory import LongMemory

__all__ = ["LongMemory"]
