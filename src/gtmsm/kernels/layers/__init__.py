"""Layers too small or too narrow for libraries, and what lies between those of libraries."""
