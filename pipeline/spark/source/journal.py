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
from dispatcher.journal.snapshot import check_journal, look_at
from pipeline.journal.arrow import UnknownColumnError
from pipeline.journal.damage import quick_check
from pipeline.spark.source.journal_source import DAMAGE, FORMAT, local_path, register_journal, table_schema

__all__ = [
    "PAYLOADS",
    "JournalTables",
    "journal_damage",
    "journal_failure",
    "read_journal",
    "stream_journal",
    "table_schema",
]

_LINES: Final = 200
_FAILURE: Final = re.compile(
    rf"(?:{re.escape(JournalError.__module__)}\.{JournalError.__qualname__}"
    rf"|{re.escape(UnknownColumnError.__module__)}\.{UnknownColumnError.__qualname__}): (.+)"
)

PAYLOADS = {
    ("RMAppEventType", "START"): "name string, user string, queue string",
    ("RMContainerEventType", "START"): (
        "application string, attempt string, node string, kind string, memory_mb long, vcores_milli long, "
        "gpus long, gpu_milli long, gpu_devices array<int>"
    ),
    ("RMNodeEventType", "STARTED"): (
        "host string, rack string, memory_mb long, vcores_milli long, gpus long, gpu_model string"
    ),
}
"""The fields of the payloads that the jobs read, in DDL, by event class and type; a payload may lack any of them."""


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
    """The closed segments of the journal in the folder `path`, which may be a file: URI.

    Registers the format `dispatcher_journal` in the session. Segments are listed when a job runs.
    `columns`: the columns to decode, by table name; a table that is not named has all.
    `since` (inclusive) and `until` (exclusive): Unix ns; only events started and transitions made in that time.
    Segments outside of it are not read.
    `mode`: under `PERMISSIVE` a job returns the rows of intact frames, and `journal_damage` lists the damage; under
    `FAILFAST` damage fails the job, and `journal_failure` finds the reason.

    Raises:
        JournalError: `path` is not a journal folder. With Spark Connect, where the folder is on another machine, the
            job raises it. UnknownColumnError: a table has no such column.
    """
    folder = local_path(str(path)).absolute()
    if not is_remote(spark):
        check_journal(folder)
    options = {"mode": mode}
    if since is None and until is None:
        return load_tables(spark, folder, columns, options)
    options |= {name: str(time) for name, time in (("since", since), ("until", until)) if time is not None}
    return JournalTables(*(_load_between(spark, folder, table, columns, options, since, until) for table in TABLES))


def load_tables(
    spark: SparkSession,
    folder: Path,
    columns: Mapping[str, Sequence[str]] | None = None,
    options: Mapping[str, str] | None = None,
) -> JournalTables:
    """As `read_journal`, for a folder that is known to hold a journal."""
    return JournalTables(*(_load(spark, spark.read, folder, table, columns, options or {}) for table in TABLES))


def _load_between(
    spark: SparkSession,
    folder: Path,
    table: Table,
    columns: Mapping[str, Sequence[str]] | None,
    options: Mapping[str, str],
    since: int | None,
    until: int | None,
) -> DataFrame:
    asked = list((columns or {}).get(table.name, table.names))
    rows = _load(spark, spark.read, folder, table, {table.name: list(dict.fromkeys([*asked, table.time]))}, options)
    if since is not None:
        rows = rows.where(F.col(table.time) >= since)
    if until is not None:
        rows = rows.where(F.col(table.time) < until)
    return rows.select(*asked)


def stream_journal(
    spark: SparkSession,
    path: str | Path,
    *,
    columns: Mapping[str, Sequence[str]] | None = None,
    mode: str = "PERMISSIVE",
    max_segments_per_trigger: int | None = None,
    fail_on_data_loss: bool = True,
) -> JournalTables:
    """As `read_journal`, as streams: each segment once it is closed. They wait if the journal does not exist yet.

    `max_segments_per_trigger`: per batch, from Spark 4.2 on; None: unlimited. `fail_on_data_loss`: a segment that was
    removed before the stream read it fails the query; otherwise the driver's worker logs it.

    Raises:
        UnknownColumnError: a table has no such column.
    """
    options = {"mode": mode, "failOnDataLoss": str(fail_on_data_loss).lower()}
    if max_segments_per_trigger is not None:
        options["maxSegmentsPerTrigger"] = str(max_segments_per_trigger)
    folder = local_path(str(path)).absolute()
    return JournalTables(*(_load(spark, spark.readStream, folder, table, columns, options) for table in TABLES))


def _load(
    spark: SparkSession,
    reader: DataFrameReader | DataStreamReader,
    folder: Path,
    table: Table,
    columns: Mapping[str, Sequence[str]] | None,
    options: Mapping[str, str],
) -> DataFrame:
    register_journal(spark)
    schema = table_schema(table, (columns or {}).get(table.name))
    return reader.format(FORMAT).option("table", table.name).options(**options).schema(schema).load(str(folder))


def journal_damage(path: str | Path, *, spark: SparkSession | None = None) -> list[str]:
    """One line for each damaged stretch and each missing closed segment of a journal; empty for a sound one.

    Checks the folder and the segments' ends. With `spark`, a job with a task for each segment checks all bytes; it
    returns at most 200 lines and a count of the rest.

    Raises:
        JournalError: `path` is not a journal folder, or a file cannot be read.
    """
    folder = local_path(str(path)).absolute()
    if spark is None:
        return [problem.problem for problem in quick_check(look_at(folder))]
    if not is_remote(spark):
        check_journal(folder)
    register_journal(spark)
    found = spark.read.format(FORMAT).option("table", DAMAGE).load(str(folder))
    lines = [row["problem"] for row in found.orderBy("segment", "offset").limit(_LINES + 1).collect()]
    if len(lines) <= _LINES:
        return lines
    return [*lines[:_LINES], f"{found.count() - _LINES:,} more; see: dispatcher journal verify {folder}"]


def journal_failure(error: BaseException | None) -> str | None:
    """The journal reader's message inside an error from Spark; None: the error has another cause.

    For errors of actions, of streaming queries and of Spark Connect.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, JournalError):
            return str(error)
        found = _FAILURE.search(str(error))
        if found is not None:
            return found[1]
        error = error.__cause__ or error.__context__
    return None


def is_remote(spark: SparkSession) -> bool:
    """Whether the session is a Spark Connect session, whose server may not share this machine's folders."""
    return type(spark).__module__.startswith("pyspark.sql.connect")
