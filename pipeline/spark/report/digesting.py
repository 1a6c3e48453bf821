"""Spark jobs that make the digest of a journal, and one that makes tables of a large one.

A journal that tasks can read passes no row through the JVM: a task reads its part of the segments and writes its part
of the digest. Moving a row through Spark, from a Python data source to a Python function and on to a file, costs
several times as much as reading and digesting it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from dispatcher.journal.format.schema import EVENTS, TRANSITIONS
from dispatcher.journal.snapshot import ClosedSegment
from pipeline.journal.scan import divide
from pipeline.report.digests import event_digest, transition_digest
from pipeline.report.digests.digest import DigestedPart, PartWriter
from pipeline.report.digests.event_digest import EventDigest
from pipeline.report.digests.transition_digest import Ends, TransitionDigest
from pipeline.report.tables.writing import SHARES, Finish, rows_of_entities
from pipeline.spark.shipping import on_executors
from pipeline.spark.source.journal import JournalTables

_TASK_BYTES: Final = 64 << 20
"""About the maximum that a task reads, so that the cores end at about the same time."""
_SMALL_BYTES: Final = 24 << 20
"""A smaller journal is one task's: starting a second Python takes longer than reading half of it."""
_TASKS_PER_PARTITION: Final = 8
"""Maximum tasks per shuffle partition, of which there are as many as cores: each task adds groups of its own."""
_SMALL: Final = 300_000
"""Up to this many rows about entities, as of a million events, this process makes the tables itself, in less time than
Spark takes to start a task. The tables of a larger journal would take too much of this process's memory."""
_READS: Final = {EVENTS.name: event_digest.READS, TRANSITIONS.name: transition_digest.READS}


def digest_segments(
    spark: SparkSession,
    journal: Path,
    closed: Sequence[ClosedSegment],
    folder: Path,
    ends: Ends,
    *,
    fails_on_loss: bool = False,
) -> None:
    """Write the digest of these segments to `folder`; tasks must see both. One job; blocks.

    `fails_on_loss`: a segment that no longer exists fails the job; otherwise it is damage.
    """
    tasks = divide(closed, _number_of_tasks(spark, sum(segment.size for segment in closed)))
    known = [segment.summary for segment in closed if segment.summary is not None]
    times = [time for one in known if one.events or one.transitions for time in (one.min_at, one.max_at)]
    span = (min(times), max(times)) if times else None
    work = [
        DigestedPart(journal, parts, folder, number, ends, span, fails_on_loss) for number, parts in enumerate(tasks)
    ]

    if work:
        _run_numbered(spark, len(work), lambda number: work[number].write())


def _number_of_tasks(spark: SparkSession, size: int) -> int:
    """For a journal of `size` bytes: one, or a multiple of the cores, so that all are busy to the end."""
    if size < _SMALL_BYTES:
        return 1
    cores = int(spark.conf.get("spark.sql.shuffle.partitions", "200") or 200)
    return cores * min(_TASKS_PER_PARTITION, -(-size // (cores * _TASK_BYTES)))


def digest_tables(tables: JournalTables, folder: Path, ends: Ends) -> None:
    """Write the digest of DataFrames with a journal's columns to `folder`, which tasks must see. Two jobs; blocks.

    Each partition of transitions holds, for each entity, rows that are consecutive in seq, as a journal's do.
    """
    for first, (table, frame) in enumerate(zip((EVENTS, TRANSITIONS), tables, strict=True)):
        write = partial(_write_partition, table.name, first, folder, ends)
        _run(frame.select(*_READS[table.name]), write)


def _write_partition(
    table: str, first: int, folder: Path, ends: Ends, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None, "runs in a task"
    number = 2 * context.partitionId() + first
    digest = EventDigest() if table == EVENTS.name else TransitionDigest(ends)
    with PartWriter(folder, number) as writer:
        writer.write(digest.rows(batches))
    yield pa.RecordBatch.from_arrays([pa.array([number])], ["number"])


def finish(spark: SparkSession, work: Finish) -> None:
    """Write the tables: in this process if there are few rows about entities, else most in two tasks. Blocks."""
    if rows_of_entities(work.parts) <= _SMALL:
        work.run()
        return
    _run_numbered(spark, SHARES, work.run_share)
    work.run_rest()


def _run_numbered(spark: SparkSession, tasks: int, do: Callable[[int], None]) -> None:
    """Run a job of `tasks` tasks. Each calls `do` with its number."""

    def run(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                do(number)
            yield pa.RecordBatch.from_arrays([batch.column(0)], ["number"])

    _run(spark.range(0, tasks, 1, tasks), run)


def _run(rows: DataFrame, function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> None:
    """Run a job for what its tasks write."""
    rows.mapInArrow(on_executors(function), "number long").collect()
