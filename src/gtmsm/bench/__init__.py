"""How fast is it here, and how fast could it be? Speeds with the floor of their work beside each (`gtmsm bench`)."""

from gtmsm.bench.entries import ENTRIES
from gtmsm.bench.measure import Report, bench
from gtmsm.bench.sizes import sizes_for
from gtmsm.bench.table import goals_table, profile_table, speeds_table

__all__ = ["ENTRIES", "Report", "bench", "goals_table", "profile_table", "sizes_for", "speeds_table"]
