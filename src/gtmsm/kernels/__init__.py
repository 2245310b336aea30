"""Operators: readable functions, each with fast implementations for some devices."""
