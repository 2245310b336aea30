"""Using a world model live: an agent that remembers as it walks."""

from gtmsm.explore.explorer import Explorer
from gtmsm.explore.journey import Journey, TravelConfig, travel

__all__ = ["Explorer", "Journey", "TravelConfig", "travel"]
