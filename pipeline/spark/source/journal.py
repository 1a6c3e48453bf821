"""The event journal as Spark tables with the journal's columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader

from dispatcher.errors import JournalError
from dispatcher.journal.format.schema import TABLES, Table
from dispatcher.journal.snapshot import check_journal
from pipeline.journal.arrow import UnknownColumnError
from pipeline.journal.damage import quick_check
from pipeline.journal.whole import look_at_whole
from pipeline.spark.failures import causes
from pipeline.spark.shipping import is_remote
from pipeline.spark.source.journal_source import DAMAGE, FORMAT, SEGMENTS, local_path, register_journal, table_schema

__all__ = [
    "JournalTables",
    "journal_damage",
    "journal_failure",
    "read_journal",
    "stream_journal",
    "stream_segments",
    "table_schema",
]

_LINES: Final = 200
_FAILURE: Final = re.compile(
    rf"(?:{re.escape(JournalError.__module__)}\.{JournalError.__qualname__}"
    rf"|{re.escape(UnknownColumnError.__module__)}\.{UnknownColumnError.__qualname__}): (.+)"
)


class JournalTables(NamedTuple):
    """A journal's two tables; columns as in `dispatcher.journal.format.schema`, rows in any order: sort by `seq`."""

    events: DataFrame
    transitions: DataFrame


def read_journal(
    spark: SparkSession,
    path: str | Path,
    *,
    columns: Mapping[str, Sequence[str]] | None = None,
    mode: str = "PERMISSIVE",
    since: int | None = None,
    until: int | None = None,
) -> JournalTables:
    """Read the closed segments of the journal in the folder `path`, which can be a file: URI.

    Registers the format `dispatcher_journal` in the session. Segments are listed when a job runs. The seqs of partition
    n of a partitioned journal begin after n * 10^12, so that all are unique.

    `columns`: the columns to decode, by table name. A table not named has all.
    `since`, `until`: read only events started and transitions made from `since` until before `until`, in Unix ns. Other
        segments aren't read.
    `mode`: with `PERMISSIVE` a job returns the rows of intact frames, and `journal_damage` lists the damage. With
        `FAILFAST` damage fails the job, and `journal_failure` finds the reason.

    Raises:
        JournalError: `path` isn't a journal folder. With Spark Connect, where the folder is on another machine, the job
            raises it.
        UnknownColumnError: a table has no such column.
    """
    folder = local_path(str(path)).absolute()
    if not is_remote(spark):
        check_journal(folder)
    span = {name: str(time) for name, time in (("since", since), ("until", until)) if time is not None}
    made = []
    for table in TABLES:
        asked = list((columns or {}).get(table.name, table.names))
        read = dict.fromkeys([*asked, table.time]) if span else asked
        rows = _load(spark, spark.read, folder, table, list(read), {"mode": mode} | span)
        if since is not None:
            rows = rows.where(F.col(table.time) >= since)
        if until is not None:
            rows = rows.where(F.col(table.time) < until)
        made.append(rows.select(*asked))
    return JournalTables(*made)


def load_tables(spark: SparkSession, folder: Path) -> JournalTables:
    """As `read_journal`, for a folder that is known to hold a journal."""
    return JournalTables(*(_load(spark, spark.read, folder, table) for table in TABLES))


def stream_journal(
    spark: SparkSession,
    path: str | Path,
    *,
    columns: Mapping[str, Sequence[str]] | None = None,
    mode: str = "PERMISSIVE",
    max_segments_per_trigger: int | None = None,
    fail_on_data_loss: bool = True,
) -> JournalTables:
    """Read as `read_journal` does, as streams: each segment once it's closed.

    They wait if the journal doesn\'t exist yet. The streams of a partitioned journal read all its partitions.

    `max_segments_per_trigger`: maximum per batch, from Spark 4.2 on. By default, unlimited.
    `fail_on_data_loss`: the query fails if a segment was removed before the stream read it. Otherwise the driver's
        worker logs it.

    Raises:
        UnknownColumnError: a table has no such column.
    """
    options = {"mode": mode, "failOnDataLoss": str(fail_on_data_loss).lower()}
    if max_segments_per_trigger is not None:
        options["maxSegmentsPerTrigger"] = str(max_segments_per_trigger)
    folder = local_path(str(path)).absolute()
    named = columns or {}
    return JournalTables(
        *(_load(spark, spark.readStream, folder, table, named.get(table.name), options) for table in TABLES)
    )


def stream_segments(spark: SparkSession, path: str | Path, *, max_segments_per_trigger: int | None = None) -> DataFrame:
    """The numbers of a journal's segments as a stream, each once it is closed: segment long. Options as above."""
    register_journal(spark)
    options = {} if max_segments_per_trigger is None else {"maxSegmentsPerTrigger": str(max_segments_per_trigger)}
    folder = local_path(str(path)).absolute()
    return spark.readStream.format(FORMAT).option("table", SEGMENTS).options(**options).load(str(folder))


def _load(
    spark: SparkSession,
    reader: DataFrameReader | DataStreamReader,
    folder: Path,
    table: Table,
    columns: Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    register_journal(spark)
    schema = table_schema(table.name, columns)
    return reader.format(FORMAT).option("table", table.name).options(**(options or {})).schema(schema).load(str(folder))


def journal_damage(path: str | Path, *, spark: SparkSession | None = None) -> list[str]:
    """List the damage to a journal: one line for each damaged stretch and each missing closed segment.

    Without `spark`, this checks the folder and the segments' ends. With `spark`, a job with a task for each segment
    checks all bytes, and you get up to 200 lines and a count of the rest.

    Raises:
        JournalError: `path` isn't a journal folder, or a file can't be read.
    """
    folder = local_path(str(path)).absolute()
    if spark is None:
        return [problem.problem for problem in quick_check(look_at_whole(folder))]
    if not is_remote(spark):
        check_journal(folder)
    register_journal(spark)
    found = spark.read.format(FORMAT).option("table", DAMAGE).load(str(folder))
    lines = [row["problem"] for row in found.orderBy("segment", "offset").limit(_LINES + 1).collect()]
    if len(lines) <= _LINES:
        return lines
    return [*lines[:_LINES], f"{found.count() - _LINES:,} more; see: dispatcher journal verify {folder}"]


def journal_failure(error: BaseException | None) -> str | None:
    """Return the journal reader's message inside an error from Spark, or None if the error has another cause.

    For errors of actions, of streaming queries and of Spark Connect.
    """
    for each in causes(error):
        if isinstance(each, JournalError):
            return str(each)
        if found := _FAILURE.search(str(each)):
            return found[1]
    return None
