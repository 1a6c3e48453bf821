"""A service that counts its calls: one line with a key per call, answered with one and a half times the key."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class CountedService:
    """Its fields belong to the loop's thread; a test reads them once its query has ended."""

    port: int = 0
    keys: list[str] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0
    answers_from: int = 1
    """No call is answered before so many have been in flight at once."""

    def __post_init__(self) -> None:
        self._enough = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        key = (await reader.readline()).decode().strip()
        self.keys.append(key)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        if self.under_way >= self.answers_from:
            self._enough.set()
        await self._enough.wait()
        self.under_way -= 1
        writer.write(f"{float(key) * 1.5}\n".encode())
        await writer.drain()
        writer.close()

    def price(self) -> Callable[[int], Awaitable[float]]:
        """A function that calls the service; it pickles by value, because workers cannot import the tests."""
        port = self.port

        async def price(item: int) -> float:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{item}\n".encode())
            answer = await reader.readline()
            writer.close()
            await writer.wait_closed()
            return float(answer)

        return price


@contextmanager
def counted_service(answers_from: int = 1) -> Iterator[CountedService]:
    """A service on a thread of its own."""
    service = CountedService(answers_from=answers_from)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="counted service", daemon=True)
    thread.start()
    start = asyncio.start_server(service.serve, "127.0.0.1", 0, backlog=1000)
    server = asyncio.run_coroutine_threadsafe(start, loop).result(10)
    service.port = server.sockets[0].getsockname()[1]
    try:
        yield service
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    handlers = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for handler in handlers:
        handler.cancel()
    await asyncio.gather(*handlers, return_exceptions=True)
