"""Honest scores, the controls beside them, and a report to look at."""
