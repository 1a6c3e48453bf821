"""The span of a run, and the intervals of its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pipeline.report.digests.buckets import TimeBuckets
from pipeline.report.digests.event_digest import DEPTH_BUCKETS, DEPTHS_PER_BUCKET, TIME_BUCKETS

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class ReportRun(NamedTuple):
    """Times are Unix ns in the clock of the run."""

    start_at: int
    """The first time of any row; 0 without rows."""
    end_at: int
    times: TimeBuckets
    """The intervals of events' times."""
    depths: TimeBuckets
    """The intervals of the queue's depth."""
    fine_depths: TimeBuckets
    """The same, each divided into parts."""

    @staticmethod
    def of(database: DuckDBPyConnection) -> ReportRun:
        """Of the digests whose rows are in part_event_totals, part_event_group and so on."""
        [row] = database.execute(_SPAN).fetchall()
        start_at, end_at, times_ns, depths_ns = (number or 0 for number in row)
        times = TimeBuckets.over(start_at, end_at, TIME_BUCKETS, max(1, times_ns))
        depths = TimeBuckets.over(start_at, end_at, DEPTH_BUCKETS, max(1, depths_ns))
        return ReportRun(start_at, end_at, times, depths, depths.divided(DEPTHS_PER_BUCKET, max(1, depths_ns)))


# An interval of a part may be wider than the run needs: its width is known before its rows are.
_SPAN = """
    SELECT least(e.first_at, t.first_at), greatest(e.last_at, t.last_at),
        (SELECT max(width_ns) FROM part_event_group), (SELECT max(width_ns) FROM part_depth)
    FROM (SELECT min(first_at) AS first_at, max(last_at) AS last_at FROM part_event_totals) e,
         (SELECT min(first_at) AS first_at, max(last_at) AS last_at FROM part_transition_totals) t
"""
