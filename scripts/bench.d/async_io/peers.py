"""The same calls from PySpark without the operator: all on the column `id`, all in order.

These ways have no timeouts, retries or unordered mode, and wait for all calls at the end of each Arrow batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from async_io.service import CAPACITY, call, call_blocking, call_with_tail, call_without_latency
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

Call = Callable[[int], Awaitable[int]]
Batches = Iterator[pa.RecordBatch]
CONCURRENCY_LEVEL = "spark.sql.execution.pythonUDF.arrow.concurrency.level"


def blocking(frame: DataFrame) -> DataFrame:
    """One call after the other, in each task."""

    def calls(batches: Batches) -> Batches:
        for batch in batches:
            yield _like(batch, [call_blocking(key) for key in _keys(batch)])

    return frame.mapInArrow(calls, frame.schema)


def threads(frame: DataFrame) -> DataFrame:
    """A pool of threads that a task keeps, with an Arrow batch at a time."""

    def calls(batches: Batches) -> Batches:
        with ThreadPoolExecutor(CAPACITY) as pool:
            for batch in batches:
                yield _like(batch, list(pool.map(call_blocking, _keys(batch))))

    return frame.mapInArrow(calls, frame.schema)


def concurrency_level(frame: DataFrame) -> DataFrame:
    """Spark's own threads for an Arrow UDF; read by Spark when the query is planned, so it is set for the session."""
    frame.sparkSession.conf.set(CONCURRENCY_LEVEL, CAPACITY)
    return frame.select(F.udf(call_blocking, "bigint", useArrow=True)("id").alias("id"))


def gather_chunks(frame: DataFrame, function: Call = call) -> DataFrame:
    """asyncio.gather over as many rows as calls may be in flight, then over the next ones: the usual way."""

    async def gathered(keys: list[int]) -> list[int]:
        answers: list[int] = []
        for start in range(0, len(keys), CAPACITY):
            answers += await asyncio.gather(*map(function, keys[start : start + CAPACITY]))
        return answers

    return _on_a_loop(frame, gathered)


def gather_semaphore(frame: DataFrame, function: Call = call) -> DataFrame:
    """asyncio.gather over an Arrow batch, where a semaphore holds back the calls beyond the capacity."""

    async def gathered(keys: list[int]) -> list[int]:
        semaphore = asyncio.Semaphore(CAPACITY)

        async def held_back(key: int) -> int:
            async with semaphore:
                return await function(key)

        return await asyncio.gather(*map(held_back, keys))

    return _on_a_loop(frame, gathered)


def gather_semaphore_tail(frame: DataFrame) -> DataFrame:
    return gather_semaphore(frame, call_with_tail)


def gather_chunks_none(frame: DataFrame) -> DataFrame:
    return gather_chunks(frame, call_without_latency)


def pandas(frame: DataFrame) -> DataFrame:
    """The least that a task of Python does: nothing is called."""
    return frame.mapInPandas(lambda batches: batches, frame.schema)


PEERS: dict[str, Callable[[DataFrame], DataFrame]] = {
    peer.__name__: peer
    for peer in (
        blocking,
        threads,
        concurrency_level,
        gather_chunks,
        gather_semaphore,
        gather_semaphore_tail,
        gather_chunks_none,
        pandas,
    )
}


def _on_a_loop(frame: DataFrame, gathered: Callable[[list[int]], Awaitable[list[int]]]) -> DataFrame:
    """One asyncio loop for the whole task: what comes in a batch is handed to `gathered` before the next is read."""

    def calls(batches: Batches) -> Batches:
        with asyncio.Runner() as runner:
            for batch in batches:
                yield _like(batch, runner.run(gathered(_keys(batch))))  # type: ignore[arg-type]

    return frame.mapInArrow(calls, frame.schema)


def _keys(batch: pa.RecordBatch) -> list[int]:
    keys: list[int] = batch.column(0).to_pylist()
    return keys


def _like(batch: pa.RecordBatch, keys: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(keys, batch.schema.field(0).type)], schema=batch.schema)
