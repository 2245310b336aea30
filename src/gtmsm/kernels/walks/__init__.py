"""Walks and what is seen on them, made on the device that trains."""
