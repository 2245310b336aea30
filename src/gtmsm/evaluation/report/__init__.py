"""The HTML report, with its figures and films."""

from gtmsm.evaluation.report.write import write_report

__all__ = ["write_report"]
