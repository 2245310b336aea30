"""Using a world model live: an agent that remembers as it walks."""

from gtmsm.explore.explorer import Explorer

__all__ = ["Explorer"]
