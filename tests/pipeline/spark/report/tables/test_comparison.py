"""Two runs side by side."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from pipeline.spark.report.tables.comparison import comparison

FIGURES = "subject string, metric string, unit string, value double"


def test_the_figures_of_both_runs_stand_side_by_side(spark: SparkSession, assert_table: Any) -> None:
    before = [
        ("run", "span", "s", 8.0),
        ("run", "failed", "", 0.0),
        ("queue a", "p50", "s", None),
        ("gone", "x", "", 1.0),
    ]
    after = [("run", "span", "s", 6.0), ("run", "failed", "", 2.0), ("queue a", "p50", "s", 1.0), ("new", "x", "", 3.0)]

    found = comparison(spark.createDataFrame(before, FIGURES), spark.createDataFrame(after, FIGURES))

    rows = [
        ("run", "span", "s", 8.0, 6.0, -0.25),
        ("run", "failed", "", 0.0, 2.0, None),
        ("queue a", "p50", "s", None, 1.0, None),
        ("gone", "x", "", 1.0, None, None),
        ("new", "x", "", None, 3.0, None),
    ]
    schema = "subject string, metric string, unit string, before double, after double, change double"
    assert_table(found, schema, rows)
