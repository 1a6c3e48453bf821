"""The report's tables over relations that a test gives; a table is computed when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from dispatcher.journal import EVENTS, TRANSITIONS
from pipeline.report.digests.buckets import TimeBuckets
from pipeline.report.digests.digest import KINDS, add_ends, merge
from pipeline.report.digests.event_digest import EventDigest
from pipeline.report.digests.run import ReportRun
from pipeline.report.digests.transition_digest import Ends, TransitionDigest
from pipeline.report.tables.registry import COMPARISON, TABLES, ReportTable
from pipeline.report.tables.sql import add_declared
from pipeline.report.tables.writing import HELPERS

from ...journal_builder import JournalBuilder

Rows = list[tuple[Any, ...]]
Declared = Sequence[tuple[str, ...]]
Digest = Mapping[str, pa.Table]
NONE = slice(0, 0)

_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "array<int>": pa.list_(pa.int32()),
}


class Tables:
    """The tables by name, as sorted rows."""

    def __init__(self, database: duckdb.DuckDBPyConnection, run: ReportRun, given: Iterable[str] = ()) -> None:
        self._database = database
        for name, make in HELPERS.items():
            if name not in given:
                database.execute(f"CREATE VIEW {name} AS {make(run)}")
        for table in TABLES:
            if table.name not in given:
                database.execute(f"CREATE VIEW {table.name} AS {table.select(run)}")
        if "before_key_figures" in given:
            database.execute(f"CREATE VIEW comparison AS {COMPARISON.select(run)}")

    def __getitem__(self, name: str) -> Rows:
        return in_order(self._database.execute(f"FROM {name}").fetchall())

    def dicts(self, name: str) -> list[dict[str, Any]]:
        found = self._database.execute(f"FROM {name}")
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def in_order(rows: Iterable[tuple[Any, ...]]) -> Rows:
    return sorted(rows, key=repr)


def of_journal(journal: JournalBuilder, declared: Declared = ()) -> Tables:
    """Of a whole journal, digested in one part."""
    return of_parts([(journal.rows(EVENTS), journal.rows(TRANSITIONS))], declared)


def of_parts(parts: Sequence[tuple[pa.Table, pa.Table]], declared: Declared = (), *, merged: slice = NONE) -> Tables:
    """Of the events and transitions of a journal's parts, each digested apart; `merged`: those merged before."""
    ends = Ends.of(declared)
    digests = [_digest_of(events, transitions, ends) for events, transitions in parts]
    if some := digests[merged]:
        digests[merged] = [_merged(some, ends)]
    database = _opened(digests, ends)
    add_declared(database, declared)
    return Tables(database, merge(database))


def _digest_of(events: pa.Table, transitions: pa.Table, ends: Ends) -> Digest:
    """The digest's rows by kind."""
    found: dict[str, list[pa.RecordBatch]] = {kind: [] for kind in KINDS}
    for kind, batch in (
        *EventDigest().rows(events.to_batches()),
        *TransitionDigest(ends).rows(transitions.to_batches()),
    ):
        found[kind].append(batch)
    return {kind: pa.Table.from_batches(batches, KINDS[kind]) for kind, batches in found.items()}


def _merged(digests: Sequence[Digest], ends: Ends) -> Digest:
    database = _opened(digests, ends)
    merge(database)
    columns = {kind: ", ".join(f'"{name}"' for name in schema.names) for kind, schema in KINDS.items()}
    return {kind: database.sql(f"SELECT {columns[kind]} FROM {kind}").to_arrow_table() for kind in KINDS}


def _opened(digests: Sequence[Digest], ends: Ends) -> duckdb.DuckDBPyConnection:
    database = duckdb.connect(":memory:")
    for kind in KINDS:
        database.from_arrow(pa.concat_tables([digest[kind] for digest in digests])).create(f"part_{kind}")
    add_ends(database, ends)
    return database


def of_relations(
    *,
    times: TimeBuckets | None = None,
    fine_times: TimeBuckets | None = None,
    declared: Declared = (),
    end_at: int | None = None,
    **given: list[Any],
) -> Tables:
    """Of rows of the digest's kinds and of tables, each a dict, whose other columns are null. The rest is empty."""
    times = times or TimeBuckets(0, 1, 1)
    database = duckdb.connect(":memory:")
    for kind, schema in KINDS.items():
        database.from_arrow(pa.Table.from_pylist(given.get(kind, []), schema)).create(kind)
    tables: Mapping[str, ReportTable] = {table.name: table for table in TABLES}
    for name in given.keys() - KINDS.keys():
        rows = given[name]
        known = "key_figures" if name == "before_key_figures" else name
        schema = _CAPACITY if name in HELPERS else _schema_of(tables[known])
        database.from_arrow(pa.Table.from_pylist(rows, schema)).create(name)
    add_ends(database, Ends.of(declared))
    add_declared(database, declared)
    end = times.start_at + times.width_ns * times.number if end_at is None else end_at
    return Tables(database, ReportRun(times.start_at, end, times, times, fine_times or times), given)


_CAPACITY = pa.schema(
    [
        *((name, pa.string()) for name in ("node", "host", "rack", "gpu_model")),
        *((name, pa.int64()) for name in ("memory_mb", "vcores_milli", "gpus")),
    ]
)


def _schema_of(table: ReportTable) -> pa.Schema:
    return pa.schema([(column.name, _TYPES[column.type]) for column in table.columns])
