"""What costs a row whose function hardly waits: the operator with several kinds of results, and PySpark without it.

Imported by Spark's Python workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from async_io.service import CAPACITY, TIMEOUT_S
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SCHEMA = "price double, currency string"


async def as_tuple(row: Any) -> Any:
    return (row.amount * 1.5, row.name)


async def as_dict(row: Any) -> Any:
    return {"price": row.amount * 1.5, "currency": row.name}


def as_tuple_on_threads(row: Any) -> Any:
    return (row.amount * 1.5, row.name)


def _waiting(mode: str, function: Any, **options: Any) -> Callable[[DataFrame], DataFrame]:
    def wait(frame: DataFrame) -> DataFrame:
        from pipeline.spark import ordered_wait, unordered_wait

        called = ordered_wait if mode == "ordered" else unordered_wait
        return called(_rows(frame), function, SCHEMA, timeout=TIMEOUT_S, concurrency=CAPACITY, **options)

    return wait


def _gathered(frame: DataFrame) -> DataFrame:
    """asyncio.gather over the rows of a batch, as many at a time as calls may be in flight."""

    async def priced(name: str, amount: float) -> tuple[float, str]:
        return amount * 1.5, name

    async def gathered(rows: list[tuple[str, float]]) -> list[tuple[float, str]]:
        answers: list[tuple[float, str]] = []
        for start in range(0, len(rows), CAPACITY):
            answers += await asyncio.gather(*(priced(*row) for row in rows[start : start + CAPACITY]))
        return answers

    def calls(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with asyncio.Runner() as runner:
            for batch in batches:
                rows = list(zip(batch.column("name").to_pylist(), batch.column("amount").to_pylist(), strict=True))
                prices, currencies = zip(*runner.run(gathered(rows)), strict=True)
                arrays = [pa.array(prices, pa.float64()), pa.array(currencies, pa.string())]
                yield pa.RecordBatch.from_arrays(arrays, ["price", "currency"])

    return _rows(frame).mapInArrow(calls, SCHEMA)


def _identity(frame: DataFrame) -> DataFrame:
    rows = _rows(frame)
    return rows.mapInPandas(lambda batches: batches, rows.schema)


def _rows(frame: DataFrame) -> DataFrame:
    """The rows that are called for: id bigint, name string, amount double."""
    return frame.select("id", F.col("id").cast("string").alias("name"), (F.col("id") * 0.25).alias("amount"))


ROW_COSTS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "row_tuple": _waiting("ordered", as_tuple),
    "row_tuple_unordered": _waiting("unordered", as_tuple),
    "row_dict": _waiting("ordered", as_dict),
    "row_dict_unordered": _waiting("unordered", as_dict),
    "row_keep_input": _waiting("ordered", as_tuple, keep_input=True),
    "row_threads": _waiting("ordered", as_tuple_on_threads, pool_size=CAPACITY),
    "row_gather": _gathered,
    "row_identity": _identity,
}
