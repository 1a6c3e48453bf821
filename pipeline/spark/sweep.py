"""A sweep on Spark: each combination is a task of its own, which replays the workload in its Python worker.

Executors need the packages, and nothing else: the workload goes to them with the tasks, once to each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from dispatcher.errors import DispatcherError
from pipeline.sweep.combinations import Combination
from pipeline.sweep.outcome import Outcome, run_row
from pipeline.sweep.shipping import pack, unpack
from statemachines.simulation.workload import Workload

_ARROW_TYPES = {
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
_OF_AN_OUTCOME = {"int": "long", "float": "double", "float | None": "double"}
_COLUMNS = {
    "number": "int",
    "settings": "map<string,string>",
    "nodes": "long",
    **{field.name: _OF_AN_OUTCOME[str(field.type)] for field in fields(Outcome)},
    "error": "string",
}
_SCHEMA = pa.schema([(name, _ARROW_TYPES[type_]) for name, type_ in _COLUMNS.items()])
SWEEP_SCHEMA = ", ".join(f"{name} {type_}" for name, type_ in _COLUMNS.items())


def result_schema(keys: Sequence[str]) -> pa.Schema:
    """The columns of `sweep` as they are written to files: one column for each setting, called `set KEY`."""
    settings = [pa.field(f"set {key}", pa.string()) for key in keys]
    figures = [each for each in _SCHEMA if each.name not in ("number", "settings")]
    return pa.schema([_SCHEMA.field("number"), *settings, *figures])


def sweep(spark: SparkSession, workload: Workload, combinations: Sequence[Combination]) -> DataFrame:
    """One row per combination: what came of replaying the workload so. Works over Spark Connect, too.

    There is a task for each combination, those that are expected to take longest first, so as many run at a time as
    there are cores. Every action on the result runs all of them again: collect it once, it is small.

    Out: number int (of the combination, unique), settings map<string,string>, nodes long (of its cluster), then the
         fields of `pipeline.sweep.Outcome`, int as long and float as double, null for None; error string (null if it
         ran; else all between nodes and this is null). In any order.

    Raises:
        DispatcherError: there is no combination.
    """
    if not combinations:
        raise DispatcherError("a sweep needs one combination of settings at least")
    in_order = sorted(combinations, key=_longest_first)
    packed = pack(workload)

    # Goes to the workers by value, and what it uses of this module too: to import this package, with all that it needs
    # for reports, would take a worker longer than many a replay.
    def run_each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for position in batch.column(0).to_pylist():
                row = run_row(unpack(packed), in_order[position])
                row["settings"] = list(row["settings"].items())
                yield pa.RecordBatch.from_pylist([row], schema=_SCHEMA)

    # A range has as many partitions as it is told to, each number in its own, and nothing shuffles them.
    return spark.range(0, len(in_order), 1, len(in_order)).mapInArrow(run_each, SWEEP_SCHEMA)


def _longest_first(combination: Combination) -> tuple[bool, float, int]:
    # The capacity scheduler decides longer; where there is less room, more has to wait, and is decided on twice.
    return combination.config.scheduler.kind != "capacity", combination.nodes / combination.load, combination.number
