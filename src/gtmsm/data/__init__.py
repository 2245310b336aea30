"""Clips: recorded from worlds, cut into windows, and stored as files."""
