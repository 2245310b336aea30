"""Recordings: a store of episodes, readers of other formats, and recording of any Gymnasium environment."""
