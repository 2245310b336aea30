"""`gtmsm bench`: speed on this device, beside the limits that its memory and arithmetic set."""

from gtmsm.bench.measure import Report, bench
from gtmsm.bench.sizes import sizes_for
from gtmsm.bench.tables import profile_table, speeds_table
from gtmsm.bench.tasks import ENTRIES

__all__ = ["ENTRIES", "Report", "bench", "profile_table", "sizes_for", "speeds_table"]
