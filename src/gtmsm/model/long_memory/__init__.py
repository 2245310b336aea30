"""Memory that grows: a long memory of a single agent, with an exact and fast search."""

from gtmsm.model.long_memory.memory import LongMemory

__all__ = ["LongMemory"]
