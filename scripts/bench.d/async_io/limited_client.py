"""Calls of a service on the loopback that may refuse them. Imported by Spark's Python workers."""

from __future__ import annotations

import asyncio
from typing import Any

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
