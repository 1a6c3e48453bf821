"""The report's tables over relations that a test gives, computed when they are asked for, and written to a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from dispatcher.journal import EVENTS, TRANSITIONS
from pipeline.report.digests.buckets import TimeBuckets
from pipeline.report.digests.digest import KINDS, PartWriter, add_ends, merge, write_merged
from pipeline.report.digests.event_digest import EventDigest
from pipeline.report.digests.run import ReportRun
from pipeline.report.digests.transition_digest import Ends, TransitionDigest
from pipeline.report.tables.registry import COMPARISON, TABLES, ReportColumn, ReportTable  # noqa: F401
from pipeline.report.tables.sql import add_declared
from pipeline.report.tables.writing import Finish, node_capacity, rows_of_entities  # noqa: F401

from ...journal_builder import SECOND, JournalBuilder, table_of

NAMES = tuple(table.name for table in TABLES)

Rows = list[tuple[Any, ...]]
Move = dict[str, Any]
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
        if "node_capacity" not in given:
            database.execute(f"CREATE VIEW node_capacity AS {node_capacity(run)}")
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


def move(seq: int, entity: str, what: str, at: int = 0, *, machine: str = "M", valid: bool = True) -> Move:
    """A transition. `what`: from_state, event_type and to_state; `at` in seconds."""
    from_state, event_type, to_state = what.split()
    named = {"machine": machine, "from_state": from_state, "event_type": event_type, "to_state": to_state}
    return named | {"seq": seq, "entity": entity, "at": at * SECOND, "valid": valid}


def in_order(rows: Iterable[tuple[Any, ...]]) -> Rows:
    return sorted(rows, key=repr)


def of_journal(journal: JournalBuilder, declared: Declared = ()) -> Tables:
    """The tables of a whole journal, digested in one part."""
    return of_parts([(journal.rows(EVENTS), journal.rows(TRANSITIONS))], declared)


def of_parts(parts: Sequence[tuple[pa.Table, pa.Table]], declared: Declared = (), *, merged: slice = NONE) -> Tables:
    """The tables of a journal's parts, each digested separately. `merged`: the parts to merge first."""
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
    for kind, batch in _batches_of(events, transitions, ends):
        found[kind].append(batch)
    return {kind: pa.Table.from_batches(batches, KINDS[kind]) for kind, batches in found.items()}


def _batches_of(events: pa.Table, transitions: pa.Table, ends: Ends) -> Iterator[tuple[str, pa.RecordBatch]]:
    yield from EventDigest().rows(events.to_batches(max_chunksize=1))
    yield from TransitionDigest(ends).rows(transitions.to_batches(max_chunksize=1))


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
    times: tuple[int, int, int] = (0, 1, 1),
    parts: int = 1,
    declared: Declared = (),
    end_at: int | None = None,
    **given: list[Any],
) -> Tables:
    """The tables over given rows of digests and tables. A row is a dict; columns that it lacks are null.

    `times`: the begin of the run's intervals, their width and their number. `parts`: of an interval, for the queue.
    """
    intervals = TimeBuckets(*times)
    database = duckdb.connect(":memory:")
    for kind, schema in KINDS.items():
        database.from_arrow(pa.Table.from_pylist(given.get(kind, []), schema)).create(kind)
    tables: Mapping[str, ReportTable] = {table.name: table for table in TABLES}
    for name in given.keys() - KINDS.keys():
        rows = given[name]
        known = "key_figures" if name == "before_key_figures" else name
        schema = _CAPACITY if name == "node_capacity" else _schema_of(tables[known])
        database.from_arrow(pa.Table.from_pylist(rows, schema)).create(name)
    add_ends(database, Ends.of(declared))
    add_declared(database, declared)
    end = intervals.start_at + intervals.width_ns * intervals.number if end_at is None else end_at
    run = ReportRun(intervals.start_at, end, intervals, intervals, intervals.divided(parts))
    return Tables(database, run, given)


# -- in folders --------------------------------------------------------------------------------------------------------


def write_parts(journal: JournalBuilder, folder: Path, declared: Declared, *, at_once: int) -> list[Path]:
    """The digests of a journal's parts, each of which has this many seqs."""
    tables = [(table, journal.rows(table).to_pylist()) for table in (EVENTS, TRANSITIONS)]
    last = max(row["seq"] for _, rows in tables for row in rows)
    parts = []
    for number, first in enumerate(range(1, last + 1, at_once)):
        of_part = [
            table_of(table, [row for row in rows if first <= row["seq"] < first + at_once]) for table, rows in tables
        ]
        parts.append(folder / f"part{number}")
        with PartWriter(parts[-1], number) as writer:
            writer.write(_batches_of(*of_part, Ends.of(declared)))
    return parts


def merge_parts(parts: Sequence[Path], folder: Path, declared: Declared) -> None:
    write_merged(parts, folder, Ends.of(declared))


def written(parts: Sequence[Path], folder: Path, declared: Declared) -> dict[str, Rows]:
    """The tables of parts, written to a folder and read back."""
    folder.mkdir()
    Finish(parts, folder, declared).run()
    return {table.name: rounded(row.values() for row in pq.read_table(table).to_pylist()) for table in folder.iterdir()}


def rounded(rows: Iterable[Iterable[Any]]) -> Rows:
    """Sums of doubles differ in their last digits with the order of the rows."""
    return in_order(tuple(round(value, 9) if isinstance(value, float) else value for value in row) for row in rows)


_CAPACITY = pa.schema(
    [
        *((name, pa.string()) for name in ("node", "host", "rack", "gpu_model")),
        *((name, pa.int64()) for name in ("memory_mb", "vcores_milli", "gpus")),
    ]
)


def _schema_of(table: ReportTable) -> pa.Schema:
    return pa.schema([(column.name, _TYPES[column.type]) for column in table.columns])
