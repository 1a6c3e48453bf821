from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from dispatcher import DispatcherError
from pipeline.spark.sweep import SWEEP_SCHEMA, sweep
from pipeline.sweep.outcome import run_row
from statemachines.resourcemanager import Resource, ResourceManagerConfig
from statemachines.simulation.workload import ApplicationSpec, NodeSpec, Workload, WorkloadError

from ..sweep.small import combined

SIZE = Resource(1024, 1000)
APPLICATIONS = tuple(
    ApplicationSpec(f"a{number}", number * 1000, SIZE, queue="ab"[number % 2], am_duration_ms=9000)
    for number in range(8)
)
BAD_ROW = WorkloadError(Path("w.csv"), "found a bad value", row=3)
WORKLOAD = Workload("w", (NodeSpec("n", Resource(2048, 2000)),), APPLICATIONS, (BAD_ROW,))


def combinations() -> list[Any]:
    """Four, and one that fails."""
    found = combined(WORKLOAD, "scheduler=fifo,capacity", "nodes=1.0,2.0")
    bad = ResourceManagerConfig.model_validate(
        {"metrics": {"enabled": False}, "scheduler": {"kind": "capacity", "queues": [{"name": "a", "capacity": 1}]}}
    )
    return [*found, replace(found[0], number=5, config=bad)]


def figures(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """In the order of the combinations, without the run times."""
    plain = [row if isinstance(row, dict) else row.asDict() for row in rows]
    return sorted(({**row, "wall_s": None} for row in plain), key=lambda row: row["number"])


def test_tasks_compute_the_same_rows_as_this_process(either: SparkSession) -> None:
    found = sweep(either, WORKLOAD, combinations()).collect()

    assert figures(found) == figures([run_row(WORKLOAD, each) for each in combinations()])
    # One node runs two applications at a time, 10 s each: waits of 0, 0, 8, 8, 16, 16, 24 and 24 s.
    first, *_, failed = figures(found)
    assert first["settings"] == {"scheduler": "fifo", "nodes": "1.0"}
    assert (first["nodes"], first["finished"], first["wait_p50_s"], first["wait_max_s"]) == (1, 8, 12.0, 24.0)
    assert (first["makespan_s"], first["error"]) == (41.0, None)
    assert failed["error"].startswith("ConfigError: scheduler.queues: ")


def test_the_table_has_its_documented_columns_and_a_task_for_each_combination(spark: SparkSession) -> None:
    table = sweep(spark, WORKLOAD, combinations())

    assert [(field.name, field.dataType) for field in table.schema] == [
        (field.name, field.dataType) for field in StructType.fromDDL(SWEEP_SCHEMA)
    ]
    assert table.rdd.getNumPartitions() == 5


def test_a_sweep_of_nothing_is_refused(spark: SparkSession) -> None:
    with pytest.raises(DispatcherError, match="at least one combination of settings"):
        sweep(spark, WORKLOAD, [])
