"""Worlds become clips."""
