"""Calls of a service on the loopback that may refuse them. Imported by Spark's Python workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pandas as pd
from async_io.service import CAPACITY, TASKS
from pyspark.sql import DataFrame

from pipeline.streaming.calls.functions import AsyncFunction
from pipeline.streaming.errors import RetryAfter


class LimitedCalls(AsyncFunction[Any, Any]):
    """On connections that it keeps. `run`: names the run to the service."""

    def __init__(self, port: int, run: int) -> None:
        self._port = port
        self._request = f"GET /{run} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

    def open(self) -> None:
        self._idle: list[Any] = []

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()

    async def async_invoke(self, row: Any) -> list[Any]:
        connection = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = connection
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        self._idle.append(connection)
        if b" 429 " in head:
            raise RetryAfter(float(head.partition(b"Retry-After: ")[2].split()[0]))
        return [row]


def limited_by_hand(frame: DataFrame, rows: int, port: int, calls_per_s: float) -> DataFrame:
    """asyncio.gather over a pandas batch, a semaphore for the capacity, and starts that are spaced evenly."""

    async def gathered(keys: list[int], client: LimitedCalls, starts: _Starts) -> list[int]:
        semaphore = asyncio.Semaphore(CAPACITY)

        async def held_back(key: int) -> int:
            async with semaphore:
                await starts.wait_for_next()
                await client.async_invoke(key)
                return key

        return await asyncio.gather(*map(held_back, keys))

    def calls(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        client, starts = LimitedCalls(port, rows), _Starts(calls_per_s / TASKS)
        client.open()
        with asyncio.Runner() as runner:
            for batch in batches:
                yield pd.DataFrame({"id": runner.run(gathered(batch["id"].tolist(), client, starts))})
            client.close()

    return frame.mapInPandas(calls, frame.schema)


class _Starts:
    """Lets calls start at a rate. One loop."""

    def __init__(self, calls_per_s: float) -> None:
        self._every_s = 1 / calls_per_s
        self._next_s = 0.0

    async def wait_for_next(self) -> None:
        loop = asyncio.get_running_loop()
        start_s = max(self._next_s, loop.time())
        self._next_s = start_s + self._every_s
        await asyncio.sleep(start_s - loop.time())
