"""Walks and their frames, made on the device that trains."""
