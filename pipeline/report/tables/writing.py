"""Makes the report's tables and writes them as Parquet."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.report.digests.digest import copy_to, merging, parquet_files
from pipeline.report.digests.run import Run
from pipeline.report.digests.statements import AT_ONCE, Statement, needed, run_statements
from pipeline.report.tables.containers import node_capacity
from pipeline.report.tables.registry import COMPARISON, SQL_TYPES, TABLES, ReportTable

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

HELPERS: Final = {"node_capacity": node_capacity}
"""Relations that several tables are made from, and that are not in the report."""
_TABLE: Final = {table.name: table for table in TABLES}
OF_NODES: Final = (
    "containers",
    "containers_over_time",
    "node_usage",
    "gpu_device_peaks",
    "node_peaks",
    "node_utilisation",
)
"""Tables of nodes and containers: about half of the work, for a task of its own."""
SUMMARIES: Final = ("key_figures", "comparison")
"""Tables made from tables of both halves."""


def write_tables(
    database: DuckDBPyConnection,
    run: Run,
    folder: Path,
    names: Collection[str],
    *,
    given: Collection[str] = (),
    before: Path | None = None,
    at_once: int = AT_ONCE,
) -> None:
    """Write the tables named to `folder`/NAME as Parquet, from the parts of digests and `declared`.

    Other tables that these are made from are computed and not written, except the tables `given`, which are in `folder`
    already. `before`: the folder with the tables of an earlier run, to be compared with.
    """
    tables = [*TABLES]
    if before is not None:
        add_view(database, _TABLE["key_figures"], before, "before_key_figures")
        tables.append(COMPARISON)
    for name in given:
        add_view(database, _TABLE[name], folder)
    statements = [
        *merging(run),
        *(Statement.create(f"TABLE {name} AS {make(run)}") for name, make in HELPERS.items()),
        *(
            _writing(table, run, folder)
            if table.name in names
            else Statement.create(f"TABLE {table.name} AS {table.select(run)}")
            for table in tables
            if table.name not in given
        ),
    ]
    run_statements(database, needed(statements, names), at_once)


def _writing(table: ReportTable, run: Run, folder: Path) -> Statement:
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
