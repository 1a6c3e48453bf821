"""Joins of a DataFrame with a table of SQLite: `lookup_join`, and what one writes by hand in twelve lines."""

from __future__ import annotations

import atexit
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

ITEMS = 5_000
"""Rows of the table. The DataFrame asks for each of them several times, so a cache pays off."""
SCHEMA = "id long, item long, name string, price double"


@cache
def _database() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="bench-lookup-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with closing(sqlite3.connect(folder / "items.db")) as connection:
        connection.execute("CREATE TABLE items (item INTEGER PRIMARY KEY, name TEXT, price REAL)")
        rows = ((item, f"item {item}", item / 2) for item in range(ITEMS))
        connection.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
        connection.commit()
    return folder / "items.db"


def _with_item(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("id", f"(id * 7919) % {ITEMS} AS item")


def _join(kept: str, frame: DataFrame) -> DataFrame:
    from pipeline.lookup import SqliteTable
    from pipeline.spark import lookup_join

    return lookup_join(_with_item(frame), SqliteTable(_database(), "items"), "item", cache=kept)


def _by_hand(keeps: bool, frame: DataFrame) -> DataFrame:
    """A query for each batch of keys; with `keeps`, for those that no batch before it had."""
    path = str(_database())

    def look_up(frames: Iterator[Any]) -> Iterator[Any]:
        known: dict[int, tuple[str, float]] = {}
        with closing(sqlite3.connect(path)) as connection:
            for each in frames:
                keys = [key for key in each["item"].unique().tolist() if key not in known]
                marks = ",".join("?" * len(keys))
                for key, *values in connection.execute(f"SELECT * FROM items WHERE item IN ({marks})", keys):
                    known[key] = tuple(values)
                found = [known.get(key, (None, None)) for key in each["item"]]
                yield each.assign(name=[name for name, _ in found], price=[price for _, price in found])
                if not keeps:
                    known = {}

    return _with_item(frame).mapInPandas(look_up, SCHEMA)


LOOKUPS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "lookup_none": partial(_join, "none"),
    "lookup_partial": partial(_join, "partial"),
    "lookup_full": partial(_join, "full"),
    "lookup_by_hand": partial(_by_hand, False),
    "lookup_by_hand_kept": partial(_by_hand, True),
}
