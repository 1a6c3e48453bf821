"""The table of what could not be read of a journal."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from pipeline.journal.damage import Problem, in_order
from pipeline.report.digests.run import ReportRun


def damage(run: ReportRun) -> str:
    """One row per problem, which several parts of the digest may have; from problem."""
    return "SELECT DISTINCT * FROM problem"


def problems_in(table: Path) -> list[Problem]:
    """The rows of the table in this folder, in the order of their places; none if it is absent."""
    rows = [row for file in sorted(table.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    return in_order(Problem(**row) for row in rows)
