"""The processor time of a row whose function hardly waits: of Spark's JVM and Python workers together.

A job's time does not tell it on a machine that others use, its processor time does. Two sizes are measured, and the
difference leaves out what each job costs once.
"""

from __future__ import annotations

from async_io.processes import tree_cpu_s
from async_io.workers import SparkWorker
from measure import Figures, Settings, Spread, print_table

ROWS = 400_000
SMALL_PART = 8
"""The small job has this part of the rows."""
NAMES = {
    "tuple": "ordered_wait, a tuple",
    "tuple_unordered": "unordered_wait, a tuple",
    "dict": "ordered_wait, a dict",
    "dict_unordered": "unordered_wait, a dict",
    "keep_input": "ordered_wait, keep_input",
    "threads": "ordered_wait, a plain function on threads",
    "gather": "mapInArrow, gather of 100 at a time",
    "identity": "mapInPandas, nothing called",
}


def row_costs(spark: SparkWorker, settings: Settings) -> Figures:
    rows = settings.count(ROWS)
    small = max(20, rows // SMALL_PART)
    for _ in range(2):  # the JVM compiles what it runs often
        for key in NAMES:
            spark.took_s(f"row_{key}", rows)
    costs: dict[str, list[float]] = {key: [] for key in NAMES}
    for _ in range(settings.repeats):
        for key, found in costs.items():
            found.append((_cpu_s(spark, key, rows) - _cpu_s(spark, key, small)) / (rows - small) * 1e6)
    spreads = {NAMES[key]: Spread.of(found) for key, found in costs.items()}
    print_table("Processor time of a row without latency on Spark, in microseconds", spreads, digits=1)
    return {f"async-row.{key}": spreads[NAMES[key]].median for key in costs}


def _cpu_s(spark: SparkWorker, key: str, rows: int) -> float:
    before_s = tree_cpu_s(spark.pid)
    spark.took_s(f"row_{key}", rows)
    return tree_cpu_s(spark.pid) - before_s
