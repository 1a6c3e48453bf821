"""An HTTP service in a process of its own, which counts its calls, and what calls it.

    GET /price/MS/ID     ID, after MS milliseconds
    GET /counts          {"calls": n}, since the last /reset
    GET /reset

Run as a script it prints its port and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ADDRESS_VARIABLE = "BENCH_HTTP_SERVICE"
LATENCY_MS = 100


class HttpService(asyncio.Protocol):
    """One connection, with one request at a time. The counts are those of all connections."""

    calls = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            self._handle(head.split(b" ", 2)[1].decode().strip("/").split("/"))

    def _handle(self, path: list[str]) -> None:
        match path:
            case ["price", ms, key]:
                self._answer_later(int(ms) / 1000, key)
            case ["counts"]:
                self._write(json.dumps({"calls": HttpService.calls}))
            case ["reset"]:
                HttpService.calls = 0
                self._write("")
            case _:
                self._write("", "404 Not Found")

    def _answer_later(self, seconds: float, key: str) -> None:
        HttpService.calls += 1
        asyncio.get_running_loop().call_later(seconds, self._answer, key)

    def _answer(self, key: str) -> None:
        self._write(key)

    def _write(self, body: str, status: str = "200 OK") -> None:
        if not self._transport.is_closing():
            self._transport.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


@contextmanager
def http_service() -> Iterator[None]:
    """Starts the service; its address is in the environment of the processes that are started meanwhile."""
    process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        os.environ[ADDRESS_VARIABLE] = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        try:
            yield
        finally:
            del os.environ[ADDRESS_VARIABLE]
            process.stdin.close()


def ask(path: str) -> Any:
    """A question of the benchmark itself."""
    with urllib.request.urlopen(f"{os.environ[ADDRESS_VARIABLE]}/{path}", timeout=10) as answer:
        body = answer.read()
    return json.loads(body) if body else None


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(HttpService, "127.0.0.1", 0, backlog=2000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve())
