"""What the registry says of the tables' columns."""

from __future__ import annotations

import pytest

from pipeline.report.tables.registry import COMPARISON, TABLES, ReportColumn

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("at", "Unix ns"),
        ("starts_at", "Unix ns"),
        ("starts", ""),
        ("status", ""),
        ("wait_s", "s"),
        ("handling_total_ms", "ms"),
        ("memory_mb", "MiB"),
        ("gpu_milli_total", "thousandths"),
    ],
)
def test_the_unit_of_a_column_is_the_end_of_its_name(name: str, unit: str) -> None:
    """A column `at` had no unit."""
    assert ReportColumn(name, "long", nullable=False).unit == unit


def test_every_fractional_column_has_a_unit_except_the_figures_of_a_comparison() -> None:
    found = {
        column.name
        for table in (*TABLES, COMPARISON)
        for column in table.columns
        if column.type == "double" and not column.unit
    }

    assert found == {"value", "before", "after"}  # their unit is in the column `unit`
