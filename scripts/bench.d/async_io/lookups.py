"""Joins of a DataFrame with a table of SQLite: `lookup_join`, and what one writes by hand in twelve lines."""

from __future__ import annotations

import asyncio
import atexit
import gc
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from pyspark.sql import DataFrame

ITEMS = 5_000
"""Rows of the table. The DataFrame asks for each of them several times, so a cache pays off."""
SCHEMA = "id long, item long, name string, price double"
BATCH_ROWS = 10_000
"""As Spark's."""
PHASES: Final = ("keys", "query", "columns")
"""Of a batch: from Arrow to the keys, the database, and from its rows to Arrow. What remains is Spark's."""


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
        known: _Known = {}
        with closing(sqlite3.connect(path)) as connection:
            for each in frames:
                _query(connection, _keys(each, known), known)
                yield _joined(each, known)
                if not keeps:
                    known = {}

    return _with_item(frame).mapInPandas(look_up, SCHEMA)


_Known = dict[int, tuple[str, float]]


def _keys(frame: Any, known: _Known) -> list[int]:
    return [key for key in frame["item"].unique().tolist() if key not in known]


def _query(connection: sqlite3.Connection, keys: Sequence[int], known: _Known) -> None:
    marks = ",".join("?" * len(keys))
    for key, *values in connection.execute(f"SELECT * FROM items WHERE item IN ({marks})", keys):
        known[key] = tuple(values)


def _joined(frame: Any, known: _Known) -> Any:
    found = [known.get(key, (None, None)) for key in frame["item"]]
    return frame.assign(name=[name for name, _ in found], price=[price for _, price in found])


def phase_took_s(whose: str, phase: str, rows: int) -> float:
    """Seconds of one of PHASES over so many rows, without a cache. `whose`: "ours", or "by_hand"."""
    import pyarrow as pa

    ids = range(rows)
    table = pa.table({"id": ids, "item": [number * 7919 % ITEMS for number in ids]})
    batches = table.to_batches(max_chunksize=BATCH_ROWS)
    return (asyncio.run(_ours(batches)) if whose == "ours" else _times_by_hand(batches))[phase]


async def _ours(batches: Sequence[Any]) -> dict[str, float]:
    from pyspark.sql import types as T

    from pipeline.lookup import SqliteTable
    from pipeline.lookup.function import LookupFunction
    from pipeline.spark.async_io.lookup_batches import BatchLookup, RowBatch
    from pipeline.spark.async_io.results import OutputColumns

    gc.freeze()  # as in a worker, where modules are left out of garbage collection
    took = dict.fromkeys(PHASES, 0.0)
    function = LookupFunction(SqliteTable(_database(), "items"), "item", cache="none", input_columns=["id", "item"])
    rows = T.StructType().add("id", "long").add("item", "long")
    added = T.StructType().add("name", "string").add("price", "double")
    columns = OutputColumns(T.StructType([*rows.fields, *added.fields]), rows)
    answer, answered_at = function.answer, 0.0

    async def query(*arguments: Any) -> Any:
        nonlocal answered_at
        began = perf_counter()
        found = await answer(*arguments)
        answered_at = perf_counter()
        took["query"] += answered_at - began
        return found

    function.answer = query  # type: ignore[method-assign]
    lookup = BatchLookup(function, columns, added, "UTC", "fail")
    await lookup.open()
    began = perf_counter()
    for batch in batches:
        await lookup.async_invoke(RowBatch(batch, rows))
        took["columns"] += perf_counter() - answered_at
    took["keys"] = perf_counter() - began - took["query"] - took["columns"]
    await lookup.close()
    return took


def _times_by_hand(batches: Sequence[Any]) -> dict[str, float]:
    import pyarrow as pa

    took = dict.fromkeys(PHASES, 0.0)
    with closing(sqlite3.connect(str(_database()))) as connection:
        for batch in batches:
            known: _Known = {}
            marks = [perf_counter()]
            frame = batch.to_pandas()
            keys = _keys(frame, known)
            marks.append(perf_counter())
            _query(connection, keys, known)
            marks.append(perf_counter())
            pa.RecordBatch.from_pandas(_joined(frame, known), preserve_index=False)
            marks.append(perf_counter())
            for phase, begins, ends in zip(PHASES, marks, marks[1:], strict=False):
                took[phase] += ends - begins
    return took


LOOKUPS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "lookup_none": partial(_join, "none"),
    "lookup_partial": partial(_join, "partial"),
    "lookup_full": partial(_join, "full"),
    "lookup_by_hand": partial(_by_hand, False),
    "lookup_by_hand_kept": partial(_by_hand, True),
}
