"""Operators that have a fast implementation: a readable function each, and what replaces it on a device."""
