"""The event journal as Spark tables with the journal's columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader

from dispatcher.errors import JournalError
from dispatcher.journal.format.schema import TABLES, Table
from dispatcher.journal.snapshot import check_journal
from dispatcher.util.functions import require_kind, require_methods
from pipeline.journal.arrow import UnknownColumnError
from pipeline.journal.conditions import comparisons_in
from pipeline.journal.damage import Problem, all_problems, in_order
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
    where: Mapping[str, str] | None = None,
) -> JournalTables:
    """Read the closed segments of the journal in the folder `path`, which can be a file: URI.

    Registers the format `dispatcher_journal` in the session. Segments are listed when a job runs. The seqs of partition
    n of a partitioned journal begin after n * 10^12, so that all are unique.

    `columns`: the columns to decode, by table name. A table not named has all.
    `since`, `until`: read only events started and transitions made from `since` until before `until`, in Unix ns. Other
        segments aren't read.
    `where`: by table name, the rows to read, as comparisons in SQL, joined by AND, such as `{"events": "seq = 17 and
        event_type = 'PLACED'"}`. Segments that can't hold such a row aren't read.
    `mode`: with `PERMISSIVE` a job returns the rows of intact frames, and `journal_damage` lists the damage. With
        `FAILFAST` damage fails the job, and `journal_failure` finds the reason.

    Raises:
        JournalError: `path` isn't a journal folder. With Spark Connect, where the folder is on another machine, the job
            raises it.
        UnknownColumnError: a table has no such column.
        ConditionError: `where` has something other than comparisons.
    """
    require_methods(spark, "spark", "a SparkSession", "createDataFrame")
    require_kind(path, "path", str, Path)
    folder = local_path(str(path)).absolute()
    if not is_remote(spark):
        check_journal(folder)
    span = {name: str(time) for name, time in (("since", since), ("until", until)) if time is not None}
    made = []
    for table in TABLES:
        asked = list((columns or {}).get(table.name, table.names))
        only = (where or {}).get(table.name)
        named = [] if only is None else [comparison.column for comparison in comparisons_in(only)]
        read = dict.fromkeys([*asked, *([table.time] if span else []), *named])
        options = {"mode": mode} | span | ({} if only is None else {"where": only})
        rows = _load(spark, spark.read, folder, table, list(read), options)
        if only is not None:
            rows = rows.where(only)
        if since is not None:
            rows = rows.where(F.col(table.time) >= since)
        if until is not None:
            rows = rows.where(F.col(table.time) < until)
        made.append(rows.select(*asked))
    return JournalTables(*made)


def load_tables(spark: SparkSession, folder: Path) -> JournalTables:
    """The whole tables of a folder that is known to hold a journal."""
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
    require_methods(spark, "spark", "a SparkSession", "createDataFrame")
    require_kind(path, "path", str, Path)
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

    Checks all bytes: with `spark` in a job with a task for each segment, otherwise in this process. You get up to 200
    lines and a count of the rest.

    Raises:
        JournalError: `path` isn't a journal folder, or a file can't be read.
    """
    require_kind(path, "path", str, Path)
    folder = local_path(str(path)).absolute()
    found = in_order(all_problems(look_at_whole(folder))) if spark is None else list_damage(spark, folder)
    lines = [str(problem) for problem in found[:_LINES]]
    if len(found) <= _LINES:
        return lines
    return [*lines, f"{len(found) - _LINES:,} more; see: dispatcher journal verify {folder}"]


def list_damage(spark: SparkSession, folder: Path) -> list[Problem]:
    """All problems of a journal, found by a job that checks all bytes. Raises as `journal_damage`."""
    if not is_remote(spark):
        check_journal(folder)
    register_journal(spark)
    found = spark.read.format(FORMAT).option("table", DAMAGE).load(str(folder))
    return in_order(Problem(**row.asDict()) for row in found.collect())


def journal_failure(error: BaseException | None) -> str | None:
    """Return the journal reader's message inside an error from Spark, or None if the error has another cause.

    For errors of actions, of streaming queries and of Spark Connect.
    """
    require_kind(error, "error", BaseException, NoneType)
    for each in causes(error):
        if isinstance(each, JournalError):
            return str(each)
        if found := _FAILURE.search(str(each)):
            return found[1]
    return None
