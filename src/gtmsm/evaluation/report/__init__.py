"""The page people read, its figures and its films."""

from gtmsm.evaluation.report.write import write_report

__all__ = ["write_report"]
