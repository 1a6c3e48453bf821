"""Makes the report's tables from digests, and writes them as Parquet; in any process that can read the digests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from pipeline.report.digests.digest import add_ends, add_parts, copy_to, engine, merging, parquet_files
from pipeline.report.digests.run import ReportRun
from pipeline.report.digests.statements import AT_ONCE, Statement, needed, run_statements
from pipeline.report.digests.transition_digest import Ends
from pipeline.report.tables.containers import node_capacity
from pipeline.report.tables.registry import COMPARISON, SQL_TYPES, TABLES, ReportTable
from pipeline.report.tables.sql import add_declared

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_TABLE: Final = {table.name: table for table in TABLES}
_HALVES: Final = ("nodes", "entities")
SHARES: Final = len(_HALVES)
"""Into how many shares of about equal work the tables of a large journal are divided."""
_OF_ENTITIES = ("kept_event", "move", "stretch")


@dataclass(frozen=True, slots=True)
class Finish:
    """Writes the tables of the digests in `parts`, in order of seq, to new folders below `folder`. Picklable.

    `declared`: rows of machine, from_state, event_type, to_state. `before`: the folder with the tables of an earlier
    run, to be compared with.
    """

    parts: Sequence[Path]
    folder: Path
    declared: Sequence[tuple[str, ...]]
    before: Path | None = None

    def run(self) -> None:
        self._write(self._names("nodes", "entities", "both"))

    def run_share(self, number: int) -> None:
        """Write one of `SHARES` shares, which several processes may do at the same time. `run_rest` follows."""
        self._write(self._names(_HALVES[number]), threads=max(1, (os.cpu_count() or 1) // SHARES))

    def run_rest(self) -> None:
        """Write the tables that are made from those of all shares."""
        self._write(self._names("both"), given=self._names(*_HALVES))

    def _names(self, *halves: str) -> list[str]:
        tables = TABLES if self.before is None else (*TABLES, COMPARISON)
        return [table.name for table in tables if table.half in halves]

    def _write(self, names: list[str], *, given: Sequence[str] = (), threads: int | None = None) -> None:
        """Write the tables named to `folder`/NAME as Parquet.

        Other tables that these are made from are computed and not written, except the tables `given`, which are in
        `folder` already.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        tables = [table for table in TABLES if table.name not in given]
        with engine(self.folder, threads) as database:
            add_parts(database, self.parts)
            add_ends(database, Ends.of(self.declared))
            add_declared(database, self.declared)
            if self.before is not None:
                add_view(database, _TABLE["key_figures"], self.before, "before_key_figures")
                tables.append(COMPARISON)
            for name in given:
                add_view(database, _TABLE[name], self.folder)
            run = ReportRun.of(database)
            statements = [
                *merging(run),
                Statement.create(f"TABLE node_capacity AS {node_capacity(run)}"),
                *(
                    _writing(table, run, self.folder)
                    if table.name in names
                    else Statement.create(f"TABLE {table.name} AS {table.select(run)}")
                    for table in tables
                ),
            ]
            run_statements(database, needed(statements, names), AT_ONCE if threads is None else min(AT_ONCE, threads))


def rows_of_entities(parts: Sequence[Path]) -> int:
    """Number of rows of the kinds that grow with the entities of a run, from the files' footers."""
    files = (file for part in parts for kind in _OF_ENTITIES for file in (part / kind).glob("*.parquet"))
    return sum(pq.read_metadata(file).num_rows for file in files)


def _writing(table: ReportTable, run: ReportRun, folder: Path) -> Statement:
    """Each table is computed once, when it is written; later ones read it back."""
    sql = table.select(run)

    def write(database: DuckDBPyConnection) -> None:
        copy_to(database, sql, folder / table.name)
        add_view(database, table, folder)

    return Statement(table.name, sql, write)


def add_view(database: DuckDBPyConnection, table: ReportTable, folder: Path, name: str | None = None) -> None:
    """Make a view of a table in `folder`, by default with the table's name; an absent one is empty."""
    if files := parquet_files(folder / table.name):
        database.from_parquet(files).create_view(name or table.name)
        return
    columns = ", ".join(f'NULL::{SQL_TYPES[column.type]} AS "{column.name}"' for column in table.columns)
    database.execute(f"CREATE VIEW {name or table.name} AS SELECT {columns} WHERE false")
