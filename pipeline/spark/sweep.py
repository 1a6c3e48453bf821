"""A sweep on Spark: each combination is a task of its own, which replays the workload in its Python worker.

Executors need the packages, and nothing else: the workload goes to them with the tasks, once to each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from dispatcher.errors import DispatcherError
from pipeline.sweep.combinations import Combination
from pipeline.sweep.outcome import run_row
from pipeline.sweep.shipping import pack, unpack
from statemachines.simulation.workload import Workload

_SCHEMA = pa.schema(
    [
        ("number", pa.int32()),
        ("settings", pa.map_(pa.string(), pa.string())),
        ("nodes", pa.int64()),
        ("applications", pa.int64()),
        ("finished", pa.int64()),
        ("failed", pa.int64()),
        ("killed", pa.int64()),
        ("unfinished", pa.int64()),
        ("never_placed", pa.int64()),
        ("wait_mean_s", pa.float64()),
        ("wait_p50_s", pa.float64()),
        ("wait_p95_s", pa.float64()),
        ("wait_max_s", pa.float64()),
        ("makespan_s", pa.float64()),
        ("memory_used", pa.float64()),
        ("vcores_used", pa.float64()),
        ("gpus_used", pa.float64()),
        ("containers", pa.int64()),
        ("events", pa.int64()),
        ("failed_events", pa.int64()),
        ("wall_s", pa.float64()),
        ("error", pa.string()),
    ]
)
_NAMING = ("number", "settings")
SWEEP_SCHEMA = (
    "number int, settings map<string,string>, nodes long, applications long, finished long, failed long, killed long, "
    "unfinished long, never_placed long, wait_mean_s double, wait_p50_s double, wait_p95_s double, wait_max_s double, "
    "makespan_s double, memory_used double, vcores_used double, gpus_used double, containers long, events long, "
    "failed_events long, wall_s double, error string"
)


def result_schema(keys: Sequence[str]) -> pa.Schema:
    """The columns of `sweep` as they are written to files: one column for each setting, called `set KEY`."""
    settings = [pa.field(f"set {key}", pa.string()) for key in keys]
    return pa.schema([_SCHEMA.field("number"), *settings, *(each for each in _SCHEMA if each.name not in _NAMING)])


def sweep(spark: SparkSession, workload: Workload, combinations: Sequence[Combination]) -> DataFrame:
    """One row per combination: what came of replaying the workload so. Works over Spark Connect, too.

    There is a task for each combination, those that are expected to take longest first, so as many run at a time as
    there are cores. Every action on the result runs all of them again: collect it once, it is small.

    Out: number int (of the combination, unique), settings map<string,string>, nodes long (of its cluster), then what
         `pipeline.sweep.Outcome` says: applications, finished, failed, killed, unfinished, never_placed long >= 0,
         wait_mean_s, wait_p50_s, wait_p95_s, wait_max_s double (submission to first container; null if none was
         placed), makespan_s double (null if nothing ended), memory_used, vcores_used, gpus_used double (0 to 1, of the
         cluster over the makespan; null where it has none), containers, events, failed_events long, wall_s double;
         error string (null if it ran; else all between nodes and this is null). In any order.

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
