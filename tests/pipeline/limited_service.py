"""A real HTTP service on the loopback that refuses calls beyond its limit, and a client for it.

The client pickles by value where the tests are not importable; it needs Python's own library and this project only.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any


class LimitedService:
    """Answers 200, or 429 with `Retry-After: 1` when `has_room(seconds since the first call)` is false.

    A context manager that serves on a thread of its own. `accepted_s` and `refused_s` are the service's own log: when
    each call came.
    """

    def __init__(self, has_room: Callable[[float], bool] = lambda at_s: True, latency_s: float = 0.01) -> None:
        self.accepted_s: list[float] = []  # the loop's thread appends
        self.refused_s: list[float] = []  # the loop's thread appends
        self.port = 0
        self._has_room = has_room
        self._latency_s = latency_s
        self._first_s: float | None = None
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="limited service", daemon=True)

    def __enter__(self) -> LimitedService:
        self._thread.start()
        assert self._started.wait(60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(60)

    @property
    def refused_share(self) -> float:
        return len(self.refused_s) / (len(self.refused_s) + len(self.accepted_s))

    def took_s(self) -> float:
        """From the first call to the last one."""
        return max(self.accepted_s + self.refused_s)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        async with server:
            await self._ended.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                now_s = time.monotonic()
                self._first_s = now_s if self._first_s is None else self._first_s
                at_s = now_s - self._first_s
                if self._has_room(at_s):
                    self.accepted_s.append(at_s)
                    await asyncio.sleep(self._latency_s)
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                else:
                    self.refused_s.append(at_s)
                    writer.write(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the client has left, or the service ends
        finally:
            writer.close()


def token_bucket(limits: list[tuple[float, float]], burst_s: float = 0.2) -> Callable[[float], bool]:
    """(from second, calls per second), with a bucket of `burst_s` seconds."""
    state = {"tokens": limits[0][1] * burst_s, "at_s": 0.0}

    def has_room(at_s: float) -> bool:
        calls_per_s = [limit for from_s, limit in limits if from_s <= at_s][-1]
        state["tokens"] = min(burst_s * calls_per_s, state["tokens"] + (at_s - state["at_s"]) * calls_per_s)
        state["at_s"] = at_s
        if state["tokens"] < 1:
            return False
        state["tokens"] -= 1
        return True

    return has_room


def client(port: int) -> Any:
    """An AsyncFunction that calls the service on connections that it keeps, and returns the row's id."""
    from pipeline.streaming import AsyncFunction, RetryAfter

    class Client(AsyncFunction[Any, Any]):
        def open(self) -> None:
            self.idle: list[Any] = []

        def close(self) -> None:
            for _, writer in self.idle:
                writer.close()

        async def async_invoke(self, row: Any) -> list[Any]:
            reader, writer = self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if " 200 " in head:
                await reader.readexactly(2)
            self.idle.append((reader, writer))
            if " 429 " in head:
                raise RetryAfter(float(head.partition("Retry-After: ")[2].split()[0]))
            return [(getattr(row, "id", row),)]

    return Client()
