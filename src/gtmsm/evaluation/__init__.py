"""Scores of models, controls to compare them with, and reports."""
