"""Layers that are too small or too narrow for libraries, and the operations between library layers."""
