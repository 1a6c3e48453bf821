"""Logs of Hadoop's daemons as the journal's tables, and their conformance to the transition tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dispatcher.journal.format.schema import EVENTS, TIME_UNIT, TRANSITIONS, WALL_CLOCK_COLUMNS, Table
from dispatcher.journal.format.schema import Column as JournalColumn
from dispatcher.util.functions import require_methods
from pipeline.spark.shipping import on_executors, ship_packages
from pipeline.spark.source.journal import JournalTables
from pipeline.yarnlog.clock import LogClock
from pipeline.yarnlog.files import log_files
from pipeline.yarnlog.messages import AUDIT_KEYS, MARKERS
from pipeline.yarnlog.rows import FORMATS, RECORDS, UNPARSED, LogRow, format_batches, record_batches, unparsed_batches
from pipeline.yarnlog.summary import MARKED_KINDS, TRANSITION_KINDS, is_declared, mismatch
from statemachines.conformance import arcs_of, check_release, releases_with
from statemachines.factory import StateMachineFactory
from statemachines.registry import FACTORIES
from statemachines.releases.differences import ANY, CURRENT

_OF_RECORDS = ("kind", "file", "level", "thread", "logger", "text", "line", "line_count")
_FILES = "file_number int, file string"
DECLARED = "machine string, from_state string, event_type string, to_state string"


@dataclass(frozen=True)
class YarnLogTables:
    """Logs as tables; rows in any order: sort by `seq`.

    Each line of each file belongs to one row of `events`, which counts its lines in `line_count`, or is a row of
    `unparsed`. Each job reads the logs again; `stored` reads them once.
    """

    records: DataFrame
    """The rows of `events`, with the columns from which the other tables are made."""
    unparsed: DataFrame
    """One row per line outside of records or in a record of an unknown kind: seq long (unique, also over `events`),
    file string, line long (from 1), text string."""
    formats: DataFrame
    """One row per file: file string, prefixes string (names of what other tools wrote before each line, outermost
    first; empty: nothing), layout string. The last two are null if nothing of the file was read."""

    @property
    def missed(self) -> DataFrame:
        """One row per line that looks like a transition or an audit line and was not parsed: file string, line long
        (in a record: of its first line), text string."""
        marked = F.filter(F.split("text", "\n"), _is_marked)
        # One of the lines of such a record is the transition or the audit line.
        of_record = F.when(F.col("kind").isin(*MARKED_KINDS), 1).otherwise(0)
        in_records = self.records.where(_is_marked(F.col("text"))).select(
            "file", "line", F.explode(F.slice(marked, of_record + 1, F.size(marked))).alias("text")
        )
        return self.unparsed.where(_is_marked(F.col("text"))).select("file", "line", "text").unionAll(in_records)

    @property
    def events(self) -> DataFrame:
        """One row per record: the journal's columns, then kind, file, level, thread, logger, text string, line,
        line_count long.

        event_class, event_type: for a transition the machine's event, for other records the logging class and what
        happened. event_type is empty if the log does not name the event and the machine's table allows several.
        queue_ns, handling_ns and accepted_seq are null and redelivered is false, because logs do not have them. The
        record's one time is enqueued_at, started_at and finished_at. outcome is failed if a machine refused the event
        or a request was not granted; error has the reason. text has all lines of the record.
        """
        more = [name for name in _OF_RECORDS if name not in EVENTS.names]
        return self.records.select(*_of_table(EVENTS), *more)

    @property
    def transitions(self) -> DataFrame:
        """One row per transition, made or refused: the journal's columns, then file string, line long, is_told
        boolean.

        is_told false: the log does not name the event. event_type is then the only event for which the machine's table
        has this transition, or empty if there are none or several. entity is empty if the log does not name it.
        """
        columns = {"entity": F.coalesce("entity", F.lit("")), "valid": F.col("kind") == "transition"}
        transitions = self.records.where(F.col("kind").isin(*TRANSITION_KINDS))
        return transitions.select(*_of_table(TRANSITIONS, columns), "file", "line", "is_told")

    @property
    def audit(self) -> DataFrame:
        """One row per audit line: seq, at long, file string, line long, logger string, then a string (null if absent)
        for each of `AUDIT_KEYS` in lower case: user, ip, operation, target, result, and so on."""
        return self._of_kind("audit", "logger", fields=dict.fromkeys(AUDIT_KEYS, "string"))

    @property
    def queue_sizes(self) -> DataFrame:
        """One row per line about an event queue: seq, at long, file string, line long, queue string (the dispatcher's
        name, or the logging class), event_type string (null: all types), size long (queued events), room_left long
        (remaining capacity); one of the last two is null."""
        fields = {"queue": "string", "event_type": "string", "size": "long", "room_left": "long"}
        return self._of_kind("queue_size", fields=fields)

    @property
    def registrations(self) -> DataFrame:
        """One row per handler registered with a dispatcher: seq, at long, file string, line long, event_class,
        handler_class string, both with their packages."""
        return self._of_kind("registration", fields={"event_class": "string", "handler_class": "string"})

    @property
    def journal(self) -> JournalTables:
        """The tables with the journal's columns only. The durations, which logs do not have, are 0, because the
        journal's columns are not nullable."""
        durations = {name: F.lit(0).cast("long") for name in WALL_CLOCK_COLUMNS}
        events = self.events.withColumns(durations).select(*EVENTS.names)
        return JournalTables(events, self.transitions.select(*TRANSITIONS.names))

    def stored(self, spark: SparkSession, folder: str | Path) -> YarnLogTables:
        """Read the logs once, write the tables to Parquet below `folder`, and return tables that read from there."""
        stored = []
        for name, table in (("records", self.records), ("unparsed", self.unparsed), ("formats", self.formats)):
            path = f"{folder}/{name}"
            table.write.mode("overwrite").parquet(path)
            stored.append(spark.read.schema(table.schema).parquet(path))
        return YarnLogTables(*stored)

    def _of_kind(self, kind: str, *more: str, fields: Mapping[str, str]) -> DataFrame:
        """The records of a kind, with fields of the payload in lower case; `fields`: their types by name."""
        payload = F.from_json("payload", ", ".join(f"{name} {type_}" for name, type_ in fields.items()))
        rows = self.records.where(F.col("kind") == kind).select("seq", "at", "file", "line", *more, payload.alias("of"))
        named = (F.col(f"of.{name}").alias(name.lower()) for name in fields)
        return rows.select("seq", "at", "file", "line", *more, *named)


def read_yarn_log(
    spark: SparkSession, path: str | Path | Sequence[str | Path], *, time_zone: str = "UTC"
) -> YarnLogTables:
    """Read the logs at `path`: files, which can be compressed, or folders, which `log_files` searches.

    Lists the files immediately, on the driver. A job reads each file in one task, line by line, in Python, so the
    workers need the files under the same paths. `time_zone` applies to times that name none. If a file can't be read,
    the job fails.

    Raises:
        YarnLogError: a path has no logs, or the time zone doesn't exist.
    """
    require_methods(spark, "spark", "a SparkSession", "createDataFrame")
    LogClock(time_zone)
    ship_packages(spark)
    files = log_files([path] if isinstance(path, (str, Path)) else path)
    names = spark.createDataFrame([(number, str(file)) for number, file in enumerate(files)], _FILES)
    return YarnLogTables(
        names.mapInArrow(on_executors(partial(record_batches, time_zone)), RECORDS),
        names.mapInArrow(on_executors(partial(unparsed_batches, time_zone)), UNPARSED),
        names.mapInArrow(on_executors(partial(format_batches, time_zone)), FORMATS),
    )


def _is_marked(text: Column) -> Column:
    return reduce(Column.__or__, (text.contains(marker) for marker in MARKERS))


def conformance(transitions: DataFrame, release: str = ANY) -> DataFrame:
    """Check each transition against its machine's table.

    `release`: the release of Hadoop whose tables apply, "2.4", "2.7" or "3". By default, as for logs, it's enough if
        one release allows the transition. The machines of this package, and so its journals, have the tables of "3".

    In:  journal transitions, from a log or a journal. An empty event_type stands for any event.
    Out: its columns, then is_declared boolean (false if this machine's table is unknown), releases array<string> (the
         releases that declare the transition, from the oldest to the newest, where "2.0" stands for those before 2.3,
         whose arcs aren't all known, empty if none does or the table is unknown, null if the machine rejected the
         event), violation string (null if the table allows the transition, rejects the event as the machine did, or is
         unknown).

    Raises:
        UnknownReleaseError: the tables of this release aren't known.
    """
    require_methods(transitions, "transitions", "a DataFrame", "select")
    check_release(release)
    ship_packages(transitions.sparkSession)
    why = F.udf(partial(mismatch, release=release), "string", useArrow=False)
    having = F.udf(_releases, "array<string>", useArrow=False)
    kind = [F.col(name) for name in ("machine", "from_state", "event_type", "to_state")]
    return transitions.select(
        *transitions.columns,
        F.col("machine").isin(*FACTORIES).alias("is_declared"),
        F.when(F.col("valid"), having(*kind)).alias("releases"),
        why(*kind, F.col("valid")).alias("violation"),
    )


def _releases(machine: str, from_state: str, event_type: str, to_state: str) -> list[str]:
    return list(releases_with(machine, from_state, to_state, event_type or None)) if is_declared(machine) else []


def not_in_table(transitions: DataFrame, release: str = ANY) -> DataFrame:
    """The transitions that violate their machines' tables, in the order of the logs.

    In:  `YarnLogTables.transitions`. `release`: as for `conformance`.
    Out: file string, line long, machine, entity, from_state, event_type, to_state, violation string, at long.
    """
    found = conformance(transitions, release).where(F.col("violation").isNotNull()).orderBy("seq")
    return found.select("file", "line", "machine", "entity", "from_state", "event_type", "to_state", "violation", "at")


def declared_for(spark: SparkSession, transitions: DataFrame, release: str = ANY) -> DataFrame:
    """The `declared` argument of `transition_counts` for a log.

    It has the tables of the log's machines in `release`, by default in Hadoop 3; the log's transitions that `release`
    allows, as for `conformance`; and all transitions of machines without a table. Runs two jobs over the transitions.

    Out: machine, from_state, event_type, to_state string; a row may occur twice.
    """
    machines = [row.machine for row in transitions.select("machine").distinct().collect()]
    declared = [
        (machine, from_state, event, to_state)
        for machine in filter(is_declared, machines)
        for from_state, leaving in arcs_of(machine, CURRENT if release == ANY else release).items()
        for event, to_states in leaving.items()
        for to_state in sorted(to_states)
    ]
    kind = ["machine", "from_state", "event_type", "to_state"]
    made = conformance(transitions.where("valid").select(*kind, "valid").distinct(), release)
    allowed = made.where(F.col("violation").isNull()).select(*kind).collect()
    return spark.createDataFrame([*declared, *map(tuple, allowed)], DECLARED)


def transitions_of(factories: Mapping[str, StateMachineFactory[Any, Any]]) -> list[tuple[str, ...]]:
    """The transitions that machines declare, as rows of `DECLARED`; each once, sorted."""
    kinds = {
        (machine, row.from_state.name, row.event.name, state.name)
        for machine, factory in factories.items()
        for row in factory.transitions()
        for state in row.to_states
    }
    return sorted(kinds)


def _of_table(table: Table, columns: Mapping[str, Column] | None = None) -> list[Column]:
    """The table's columns: the given `columns`, the others from the records."""
    made = {column.name: _of_record(column) for column in table.columns} | dict(columns or {})
    return [made[name].alias(name) for name in table.names]


def _of_record(column: JournalColumn) -> Column:
    """A record's column. Each time is the record's one time; a column that records lack is false or null."""
    if column.name in LogRow._fields:
        return F.col(column.name)
    if column.unit == TIME_UNIT:
        return F.col("at")
    return F.lit(False if column.type == "boolean" else None).cast(column.type)
