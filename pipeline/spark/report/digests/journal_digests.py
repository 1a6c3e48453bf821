"""The report's digests of a journal, computed by the tasks that read its segments, so that no row passes the JVM.

Moving a row through Spark, from a Python data source to a Python function and on to a file, costs several times as much
as reading and digesting it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from dispatcher.journal.format.schema import EVENTS, TRANSITIONS, Table, table_named
from dispatcher.journal.snapshot import ClosedSegment, JournalSnapshot
from pipeline.journal.arrow import arrow_schema
from pipeline.journal.conditions import Conditions
from pipeline.journal.scan import Part, logged, plan, scan
from pipeline.spark.report.digests import event_digest, transition_digest
from pipeline.spark.report.digests.arrow_rows import ddl_of
from pipeline.spark.report.digests.event_digest import EventDigest
from pipeline.spark.report.digests.transition_digest import Ends, TransitionDigest
from pipeline.spark.shipping import on_executors

_TASK_BYTES = 64 << 20
"""Least input of a task, more than a query's: each task adds its own groups to the digest."""
_TASKS_PER_PARTITION = 8
"""Most tasks per shuffle partition; there are as many partitions as cores."""

Digest = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Kinds = Mapping[str, DataFrame]
"""A digest's rows by kind."""


class JournalDigests(NamedTuple):
    """A snapshot of a journal's closed segments, to be digested by tasks that see them under the same path."""

    path: Path
    closed: Sequence[ClosedSegment]
    start_at: int
    """The earliest time of any row; Unix ns in the clock of the run."""
    end_at: int

    def events(self, spark: SparkSession, folder: Path) -> Kinds:
        """As `event_digest.digest_events`, for all events. Blocks until the digest is written to `folder`."""
        start_at, end_at = self.start_at, self.end_at
        self._write(spark, EVENTS, event_digest.READS, lambda rows: EventDigest(start_at, end_at).rows(rows), folder)
        return _read(spark, folder, event_digest.KINDS, event_digest.SCHEMA)

    def transitions(self, spark: SparkSession, folder: Path, ends: Ends) -> Kinds:
        """As `transition_digest.digest_transitions`, for all transitions. Blocks until it is written to `folder`."""
        self._write(spark, TRANSITIONS, transition_digest.READS, lambda rows: TransitionDigest(ends).rows(rows), folder)
        return _read(spark, folder, transition_digest.KINDS, transition_digest.SCHEMA)

    def _write(self, spark: SparkSession, table: Table, columns: Sequence[str], digest: Digest, folder: Path) -> None:
        tasks = _TASKS_PER_PARTITION * int(spark.conf.get("spark.sql.shuffle.partitions", "200") or 200)
        size = sum(segment.size for segment in self.closed)
        parts: list[list[Part]] = plan(self.closed, table, Conditions(), task_bytes=max(_TASK_BYTES, size // tasks))
        path, name = self.path, table.name

        def write(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    _write_part(digest(_rows(path, parts[number], name, columns)), folder, number)
                yield pa.RecordBatch.from_arrays([batch.column(0)], ["number"])

        numbers = spark.range(0, len(parts), 1, max(1, len(parts)))
        done = numbers.mapInArrow(on_executors(write), "number long").count()
        assert done == len(parts)


def _rows(path: Path, parts: Sequence[Part], table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Runs in a task. The table is passed by name: an unpickled copy would be a different object."""
    found = table_named(table)
    return scan(parts, found, arrow_schema(found, columns), Conditions(), logged(path))


def _write_part(batches: Iterable[pa.RecordBatch], folder: Path, number: int) -> None:
    """Write a task's rows to one file per kind. A repeated task writes the same files."""
    written: dict[str, tuple[Path, pq.ParquetWriter]] = {}
    with ExitStack() as stack:
        for batch in batches:
            if not batch.num_rows:
                continue
            kind = batch.column("kind")[0].as_py()  # a digest's batch has rows of one kind
            narrow = batch.drop_columns(["kind"])
            if kind not in written:
                (folder / kind).mkdir(parents=True, exist_ok=True)
                # Hidden until complete: Spark ignores names that start with a dot.
                new = folder / kind / f".{number}-{uuid4().hex}"
                written[kind] = new, stack.enter_context(pq.ParquetWriter(new, narrow.schema))
            written[kind][1].write_batch(narrow)
    for new, _ in written.values():
        new.replace(new.with_name(f"part-{number:05d}.parquet"))


def _read(spark: SparkSession, folder: Path, kinds: Sequence[str], schema: pa.Schema) -> Kinds:
    narrow = schema.remove(schema.get_field_index("kind"))
    for kind in kinds:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        pq.write_table(narrow.empty_table(), folder / kind / "none.parquet")  # or Spark refuses a kind without rows
    reader = spark.read.schema(ddl_of(narrow))
    return {kind: reader.parquet(str(folder / kind)) for kind in kinds}


def journal_digests(journal: JournalSnapshot) -> JournalDigests | None:
    """The digests to compute; None if a segment lacks its summary, because it is damaged."""
    summaries = [segment.summary for segment in journal.summarized]
    known = [summary for summary in summaries if summary is not None]
    if len(known) < len(summaries):
        return None
    times = [time for one in known if one.events or one.transitions for time in (one.min_at, one.max_at)]
    return JournalDigests(journal.path, journal.summarized, min(times, default=0), max(times, default=0))
