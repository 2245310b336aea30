"""Worlds: images and rooms to walk in, and policies that walk there."""
