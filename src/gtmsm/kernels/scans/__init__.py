"""Loops over time: poses, momentum, walls and landmarks."""
