"""Reads the rows that the report's page shows from the tables' Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.report.digests.digest import engine
from pipeline.report.page.page_sections import APPLICATIONS_DRAWN
from pipeline.report.plots.plot_style import Rows
from pipeline.report.tables.registry import ALL, COMPARISON, TABLES, Shown
from pipeline.report.tables.writing import add_view

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_NODES_IN_HEAT_MAP: Final = 40
_QUEUES_IN_HEAT_MAP: Final = 20
_MACHINES_DRAWN: Final = 12


def rows_of_page(folder: Path) -> dict[str, Rows]:
    """For each of the report's tables in `folder`, the rows that are shown or drawn, in order; none of absent ones."""
    rows: dict[str, Rows] = {}
    with engine() as database:
        for table in (*TABLES, COMPARISON):
            add_view(database, table, folder)
        for table in (*TABLES, COMPARISON):
            if table.shown is not None:
                rows[table.name] = _first(database, table.name, table.shown)
        machines = list(dict.fromkeys(row["machine"] for row in rows["mined_graph"]))[:_MACHINES_DRAWN]
        rows["mined_graph"] = [row for row in rows["mined_graph"] if row["machine"] in machines]
        longest = [row["application"] for row in rows["critical_paths"][:APPLICATIONS_DRAWN]]
        drawn = Shown(["from_at", "seq"], ALL, "application IN (SELECT unnest(?))")
        rows["application_timeline"] = _first(database, "application_timeline", drawn, longest)
        for name, key, most in (
            ("node_utilisation", "node", _NODES_IN_HEAT_MAP),
            ("queue_utilisation", "queue", _QUEUES_IN_HEAT_MAP),
        ):
            rows[name] = _busiest(database, name, key, most)
    return rows


def _first(database: DuckDBPyConnection, name: str, shown: Shown, *parameters: Sequence[str]) -> Rows:
    keys = ", ".join(
        f'"{key.removeprefix("-")}" {"DESC" if key.startswith("-") else "ASC"} NULLS LAST' for key in shown.keys
    )
    also = f", {shown.also}" if shown.also else ""
    query = f"SELECT *{also} FROM {name} WHERE {shown.where} ORDER BY {keys} LIMIT {shown.limit}"
    return _rows(database, query, *parameters)


def _busiest(database: DuckDBPyConnection, name: str, key: str, most: int) -> Rows:
    """All rows of the `most` nodes or queues with the highest use, in descending order of use, after the cluster's.

    `key`: the column with the name of the node or queue. The table of nodes has rows of the whole cluster, without a
    name. Use is the greatest of the shares of memory, cores and GPUs in each interval, summed over all intervals.
    """
    is_cluster = "use IS NULL" if key == "node" else "false"
    query = f"""
        SELECT {name}.* FROM {name} LEFT JOIN (
            SELECT {key}, sum(coalesce(greatest(memory_share, vcores_share, gpu_share), 0)) AS use
            FROM {name} WHERE {key} IS NOT NULL GROUP BY {key} ORDER BY use DESC, {key} LIMIT {most}
        ) USING ({key})
        WHERE use IS NOT NULL OR ({key} IS NULL AND {is_cluster})
        ORDER BY use DESC NULLS FIRST, {key}, bucket
    """
    return _rows(database, query)


def _rows(database: DuckDBPyConnection, query: str, *parameters: Sequence[str]) -> Rows:
    found = database.execute(query, list(parameters))
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def row_count(table: Path) -> int:
    """Number of rows of a Parquet table, from its files' footers."""
    return sum(pq.read_metadata(file).num_rows for file in table.glob("*.parquet"))


def total(table: Path, column: str) -> int:
    """The sum of a column of whole numbers or booleans."""
    files = sorted(table.glob("*.parquet"))
    return sum(pc.sum(pq.read_table(file, columns=[column]).column(0)).as_py() or 0 for file in files)
