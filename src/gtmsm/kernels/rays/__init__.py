"""Operators with which the prior of rays reads retrieved views."""
