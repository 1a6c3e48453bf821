"""Calls of `http_service`: from the operator, from PySpark without it, and from a bare process.

Imported by Spark's Python workers.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import pandas as pd
import requests
from async_io.http_service import ADDRESS_VARIABLE, LATENCY_MS
from async_io.service import CAPACITY, TASKS
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.streaming import AsyncFunction

CONCURRENCY_LEVEL = "spark.sql.execution.pythonUDF.arrow.concurrency.level"


class HttpKey(AsyncFunction[Any, Any]):
    """Takes a row of the column `id` and returns one, or, as a column, takes and returns a key."""

    def __init__(self, latency_ms: int = LATENCY_MS, *, is_column: bool = False) -> None:
        self._latency_ms, self._is_column = latency_ms, is_column

    async def open(self) -> None:
        self._session = _session()
        self._url = f"{os.environ[ADDRESS_VARIABLE]}/price/{self._latency_ms}"

    async def close(self) -> None:
        await self._session.close()

    async def async_invoke(self, value: Any) -> Any:
        key = value if self._is_column else value[0]
        async with self._session.get(f"{self._url}/{key}") as answer:
            found = int(await answer.text())
        return found if self._is_column else [(found,)]


def bare(rows: int) -> None:
    """All rows from one asyncio loop, which keeps as many calls in flight as all tasks may."""
    asyncio.run(_bare(rows))


async def _bare(rows: int) -> None:
    keys = iter(range(rows))

    async def work() -> None:
        for key in keys:
            assert await _get(session, key) == key

    async with _session() as session:
        await asyncio.gather(*(work() for _ in range(TASKS * CAPACITY)))


def http_gather(frame: DataFrame) -> DataFrame:
    """asyncio.gather over a pandas batch, where a semaphore holds back the calls beyond the capacity."""

    async def gathered(keys: list[int]) -> list[int]:
        semaphore = asyncio.Semaphore(CAPACITY)

        async def held_back(key: int) -> int:
            async with semaphore:
                return await _get(session, key)

        async with _session() as session:
            return await asyncio.gather(*map(held_back, keys))

    def calls(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield pd.DataFrame({"id": asyncio.run(gathered(batch["id"].tolist()))})

    return frame.mapInPandas(calls, frame.schema)


def http_threads(frame: DataFrame) -> DataFrame:
    """requests on a pool of threads that a task keeps, with a pandas batch at a time."""

    def calls(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        with ThreadPoolExecutor(CAPACITY) as pool:
            for batch in batches:
                yield pd.DataFrame({"id": list(pool.map(_get_blocking, batch["id"].tolist()))})

    return frame.mapInPandas(calls, frame.schema)


def http_level(frame: DataFrame) -> DataFrame:
    """requests on Spark's own threads for an Arrow UDF; Spark reads the option when it plans the query."""
    frame.sparkSession.conf.set(CONCURRENCY_LEVEL, CAPACITY)
    return frame.select(F.udf(_get_blocking, "bigint", useArrow=True)("id").alias("id"))


HTTP_PEERS = {peer.__name__: peer for peer in (http_gather, http_threads, http_level)}

_local = threading.local()


def _get_blocking(key: int) -> int:
    """With a connection for each thread, which requests keeps open."""
    if not hasattr(_local, "session"):
        _local.session = requests.Session()
    answer = _local.session.get(f"{os.environ[ADDRESS_VARIABLE]}/price/{LATENCY_MS}/{key}")
    return int(answer.text)


async def _get(session: aiohttp.ClientSession, key: int) -> int:
    async with session.get(f"{os.environ[ADDRESS_VARIABLE]}/price/{LATENCY_MS}/{key}") as answer:
        return int(await answer.text())


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
