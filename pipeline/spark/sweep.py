"""A sweep on Spark: one task per combination replays the workload in its Python worker.

The workload is pickled with the function that the tasks run, so executors read no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from dispatcher.errors import DispatcherError
from pipeline.spark.shipping import on_executors, ship_packages
from pipeline.sweep.combinations import Combination
from pipeline.sweep.outcome import SweepOutcome, run_row
from pipeline.sweep.workloads import pack, unpack
from statemachines.simulation.workload import Workload

_ARROW_TYPES = {
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
_OUTCOME_TYPES = {"int": "long", "float": "double", "float | None": "double"}
_COLUMNS = {
    "number": "int",
    "settings": "map<string,string>",
    "nodes": "long",
    **{field.name: _OUTCOME_TYPES[str(field.type)] for field in fields(SweepOutcome)},
    "error": "string",
}
_SCHEMA = pa.schema([(name, _ARROW_TYPES[type_]) for name, type_ in _COLUMNS.items()])
SWEEP_SCHEMA = ", ".join(f"{name} {type_}" for name, type_ in _COLUMNS.items())


def result_schema(keys: Sequence[str]) -> pa.Schema:
    """The columns of `sweep` in result files: each setting becomes a column `set KEY`."""
    settings = [pa.field(f"set {key}", pa.string()) for key in keys]
    figures = [each for each in _SCHEMA if each.name not in ("number", "settings")]
    return pa.schema([_SCHEMA.field("number"), *settings, *figures])


def sweep(spark: SparkSession, workload: Workload, combinations: Sequence[Combination]) -> DataFrame:
    """One row per combination: the outcome of replaying the workload with its settings. Also runs over Spark Connect.

    Each combination is a task. As many run at a time as there are cores, and the longest expected start first. Every
    action on the result repeats all of them: collect it once, it is small.

    Out: number int (the combination's, unique), settings map<string,string>, nodes long (of its cluster), then the
         fields of `pipeline.sweep.outcome.SweepOutcome`, int as long and float as double, null for None; error string,
         null after a successful run, otherwise all columns between nodes and error are null. In any order.

    Raises:
        DispatcherError: `combinations` is empty.
    """
    if not combinations:
        raise DispatcherError("a sweep needs at least one combination of settings")
    in_order = sorted(combinations, key=_longest_first)
    packed = pack(workload)

    # Pickled by value, together with the globals that it uses: importing this package with all that reports need would
    # take a worker longer than many replays.
    def run_each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for position in batch.column(0).to_pylist():
                row = run_row(unpack(packed), in_order[position])
                row["settings"] = list(row["settings"].items())
                yield pa.RecordBatch.from_pylist([row], schema=_SCHEMA)

    ship_packages(spark)
    # One partition per number, in this order; no step shuffles them.
    return spark.range(0, len(in_order), 1, len(in_order)).mapInArrow(on_executors(run_each), SWEEP_SCHEMA)


def _longest_first(combination: Combination) -> tuple[bool, float, int]:
    # The capacity scheduler takes longer per decision; on a fuller cluster, more requests wait and are decided on
    # again.
    return combination.config.scheduler.kind != "capacity", combination.nodes / combination.load, combination.number
