"""A service on the loopback that tests of Spark's tasks call, and that counts the calls itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from pipeline.streaming import AsyncFunction

TIMEOUT_S = 60.0


class CountingService:
    """Answers each connection's line, a number, with one and a half times of it, after `delay_s`; None: never.

    Counts; any thread reads the counts. `answers_from`: no call is answered before so many have been in flight at once.
    """

    def __init__(self, delay_s: float | None = 0.0, *, answers_from: int = 1) -> None:
        self.keys: list[str] = []  # the loop's thread writes these
        self.under_way = 0
        self.most_under_way = 0
        self.cut_off = 0  # calls whose caller left before the answer
        self.port = 0
        self._delay_s = delay_s
        self._answers_from = answers_from
        self._answers = asyncio.Event()
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._transports: list[asyncio.WriteTransport] = []  # the loop's thread
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> CountingService:
        self._thread.start()
        assert self._started.wait(TIMEOUT_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    @property
    def calls(self) -> int:
        return len(self.keys)

    def price(self) -> Callable[[int], Awaitable[float]]:
        """A function that calls the service; it pickles by value, because workers cannot import the tests."""
        port = self.port

        async def price(item: int) -> float:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"{item}\n".encode())
                return float(await reader.readline())
            finally:
                writer.close()

        return price

    def wait_for_calls(self, number: int) -> None:
        """Wait until `number` calls have come."""
        self._wait(lambda: self.calls >= number, f"{number} calls")

    def wait_until_quiet(self, within_s: float = TIMEOUT_S) -> None:
        """Wait until no call is in flight."""
        self._wait(lambda: self.under_way == 0, "the end of all calls", within_s)

    def _wait(self, condition: Any, what: str, within_s: float = TIMEOUT_S) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, within_s), f"{what} did not come in {within_s} s: {vars(self)}"

    def _serve(self) -> None:
        self._loop.run_until_complete(self._run())

    async def _run(self) -> None:
        async with await asyncio.start_server(self._answer, "127.0.0.1", 0, backlog=1000) as server:
            self.port = server.sockets[0].getsockname()[1]
            self._started.set()
            await self._stop.wait()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        for transport in self._transports:
            transport.abort()  # the loop's next turn then closes its socket, whatever was still to be sent
        await asyncio.sleep(0)

    def _count(self, under_way: int, *, key: bytes = b"", is_cut_off: bool = False) -> None:
        with self._changed:
            if key:
                self.keys.append(key.decode().strip())
            self.under_way += under_way
            self.most_under_way = max(self.most_under_way, self.under_way)
            self.cut_off += is_cut_off
            self._changed.notify_all()
        if self.most_under_way >= self._answers_from:
            self._answers.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._transports.append(writer.transport)
        key = await reader.readline()
        if not key:  # the caller left before it asked
            writer.close()
            return
        self._count(+1, key=key)
        left = True
        try:
            # The caller sends nothing more: what comes is the end of its connection.
            await asyncio.wait_for(reader.read(), self._delay_s)
        except TimeoutError:
            left = False
            await self._answers.wait()
            writer.write(f"{float(key) * 1.5}\n".encode())
        finally:
            self._count(-1, is_cut_off=left)
            writer.close()


class AskService(AsyncFunction[Any, tuple[int]]):
    """Asks the service for each row, over a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def async_invoke(self, row: Any) -> list[tuple[int]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(b"%d\n" % row.id)
            await reader.readline()
            return [(row.id,)]
        finally:
            writer.close()
