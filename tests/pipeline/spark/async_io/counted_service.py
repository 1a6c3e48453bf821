"""A service that counts its calls: one line with a key per call, answered with one and a half times the key."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


class Call(asyncio.Protocol):
    def __init__(self, service: CountedService) -> None:
        self._service = service
        self._received = b""

    @property
    def key(self) -> str:
        return self._received.decode().strip()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._service.connections.add(transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if data.endswith(b"\n"):
            self._service.receive(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._service.connections.discard(self._transport)

    def answer(self) -> None:
        self._transport.write(f"{float(self.key) * 1.5}\n".encode())
        self._transport.close()


@dataclass
class CountedService:
    """Its fields belong to the loop's thread; a test reads them once its query has ended."""

    port: int = 0
    keys: list[str] = field(default_factory=list)
    most_under_way: int = 0
    answers_from: int = 1
    """No call is answered before so many have been in flight at once."""
    connections: set[asyncio.Transport] = field(default_factory=set)
    _unanswered: list[Call] = field(default_factory=list)

    def receive(self, call: Call) -> None:
        self.keys.append(call.key)
        self._unanswered.append(call)
        self.most_under_way = max(self.most_under_way, len(self._unanswered))
        if self.most_under_way >= self.answers_from:
            for each in self._unanswered:
                each.answer()
            self._unanswered.clear()

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
    """A service on a thread of its own. Calls that nobody waits for any longer are cut off at its end."""
    service = CountedService(answers_from=answers_from)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="counted service", daemon=True)
    thread.start()
    start = loop.create_server(lambda: Call(service), "127.0.0.1", 0, backlog=1000)
    server = asyncio.run_coroutine_threadsafe(start, loop).result(10)
    service.port = server.sockets[0].getsockname()[1]
    try:
        yield service
    finally:
        asyncio.run_coroutine_threadsafe(_end(server, service), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _end(server: asyncio.Server, service: CountedService) -> None:
    server.close()
    await asyncio.sleep(0)  # what has just been accepted is known
    for connection in service.connections:
        connection.abort()
    while service.connections:  # the loop tells each connection of its end
        await asyncio.sleep(0)
