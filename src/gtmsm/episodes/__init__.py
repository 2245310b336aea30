"""Recordings of anything: stored, read from other formats, made from any Gymnasium environment."""
