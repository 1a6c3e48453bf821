"""Clients of a resource manager's REST API, in a process of their own: client_worker.py OPTIONS-AS-JSON.

Each connection is one task of an asyncio loop and is kept alive. Latencies are in milliseconds; at a fixed rate they
begin when a request is due, so that a late answer also counts for the requests that wait behind it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ops.processes import Answer, serve

API = "/ws/v1/cluster"
TIMEOUT_S = 120.0
LOOK_EVERY_S = 0.01


class Connection:
    """One connection, opened by its first request. One task."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.age_ms = 0
        """Of the state that the last answer was made from."""

    async def ask(self, path: str, method: str = "GET", body: Any = None) -> tuple[int, bytes]:
        """Status and body of the answer."""
        sent = json.dumps(body).encode() if body is not None else b""
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self._port}"]
        if body is not None:
            lines += ["Content-Type: application/json"]
        if method != "GET":
            lines += [f"Content-Length: {len(sent)}"]
        async with asyncio.timeout(TIMEOUT_S):
            if self._writer is None:
                self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**22)
            self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + sent)
            return await self._answer()

    async def _answer(self) -> tuple[int, bytes]:
        assert self._reader is not None
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head[9:12])
        found = head.find(b"x-state-age-ms:")
        if found >= 0:
            self.age_ms = int(head[found + 15 : head.index(b"\r", found)])
        if b"transfer-encoding: chunked" in head:
            pieces = []
            while size := int(await self._reader.readline(), 16):
                pieces.append(await self._reader.readexactly(size))
                await self._reader.readline()
            await self._reader.readline()
            return status, b"".join(pieces)
        at = head.find(b"content-length:")
        length = int(head[at + 15 : head.index(b"\r", at)]) if at >= 0 else 0
        return status, await self._reader.readexactly(length)

    async def listen(self, path: str, events: int) -> None:
        """Open a stream of events, read some, and leave."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**22)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                if b" 200 " not in head[:16]:
                    raise RuntimeError(f"{path}: {head[:200]!r}")
                for _ in range(events):
                    await reader.readuntil(b"data:")
        finally:
            writer.transport.abort()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Clients:
    """What they can be told to do."""

    def __init__(self, core: int | None = None) -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})
        self.started: Answer = {}

    def close(self) -> None:
        pass

    def paced(self, port: int, paths: list[str], per_s: float, seconds: float, connections: int = 8) -> Answer:
        """GET the paths in turn, so many per second."""
        return asyncio.run(self._paced(port, paths, per_s, seconds, connections))

    async def _paced(self, port: int, paths: list[str], per_s: float, seconds: float, connections: int) -> Answer:
        latencies_ms: list[float] = []
        ages_ms: list[int] = []
        statuses: Counter[int] = Counter()
        begun = time.perf_counter() + 0.1
        numbers = iter(range(round(per_s * seconds)))

        async def run(connection: Connection) -> None:
            for number in numbers:
                due = begun + number / per_s
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                status, _ = await connection.ask(paths[number % len(paths)])
                latencies_ms.append((time.perf_counter() - due) * 1e3)
                ages_ms.append(connection.age_ms)
                statuses[status] += 1

        await _on_all(port, connections, run)
        took_s = time.perf_counter() - begun
        per_s = len(latencies_ms) / took_s
        return {"latencies_ms": latencies_ms, "ages_ms": ages_ms, "statuses": statuses, "per_s": per_s}

    def loop(self, port: int, path: str, seconds: float = 0.0, count: int = 0, connections: int = 1) -> Answer:
        """GET again and again, for some seconds or `count` times in all."""
        return asyncio.run(self._loop(port, path, seconds, count, connections))

    async def _loop(self, port: int, path: str, seconds: float, count: int, connections: int) -> Answer:
        latencies_ms: list[float] = []
        statuses: Counter[int] = Counter()
        sizes: set[int] = set()
        ages_ms: list[int] = []
        begun = time.perf_counter()
        numbers: Iterator[int] = iter(range(count)) if count else itertools.count()

        async def run(connection: Connection) -> None:
            for _ in numbers:
                sent = time.perf_counter()
                if not count and sent - begun > seconds:
                    return
                status, body = await connection.ask(path)
                latencies_ms.append((time.perf_counter() - sent) * 1e3)
                statuses[status] += 1
                sizes.add(len(body))
                ages_ms.append(connection.age_ms)

        await _on_all(port, connections, run)
        took_s = time.perf_counter() - begun
        per_s = len(latencies_ms) / took_s
        largest = max(sizes, default=0)
        answers = {"latencies_ms": latencies_ms, "ages_ms": ages_ms, "statuses": statuses}
        return {**answers, "per_s": per_s, "bytes": largest}

    def submit(self, port: int, count: int, connections: int) -> Answer:
        """New applications: an id, then the submission, as YARN's clients do; a latency for the two together."""
        return asyncio.run(self._submit(port, count, connections))

    async def _submit(self, port: int, count: int, connections: int) -> Answer:
        latencies_ms: list[float] = []
        statuses: Counter[int] = Counter()
        numbers = iter(range(count))

        async def run(connection: Connection) -> None:
            for number in numbers:
                sent = time.perf_counter()
                _, new = await connection.ask(f"{API}/apps/new-application?user.name=bench", "POST", {})
                submission = {
                    "application-id": json.loads(new)["application-id"],
                    "application-name": f"submitted {number}",
                    "application-type": "YARN",
                    "am-container-spec": {"commands": {"command": "true"}},
                    "resource": {"memory": 1024, "vCores": 1},
                }
                status, _ = await connection.ask(f"{API}/apps?user.name=bench", "POST", submission)
                latencies_ms.append((time.perf_counter() - sent) * 1e3)
                statuses[status] += 1

        begun = time.perf_counter()
        await _on_all(port, connections, run)
        per_s = count / (time.perf_counter() - begun)
        return {"latencies_ms": latencies_ms, "statuses": statuses, "per_s": per_s}

    def kill(self, port: int, ids: list[str]) -> Answer:
        """Kill the applications one by one; from each PUT until a GET shows it killed."""
        return asyncio.run(self._kill(port, ids))

    async def _kill(self, port: int, ids: list[str]) -> Answer:
        latencies_ms = []
        connection = Connection(port)
        for id in ids:
            path = f"{API}/apps/{id}/state"
            sent = time.perf_counter()
            status, body = await connection.ask(f"{path}?user.name=bench", "PUT", {"state": "KILLED"})
            if status not in (200, 202):
                raise RuntimeError(f"PUT {path}: {status} {body!r}")
            while json.loads((await connection.ask(path))[1])["state"] != "KILLED":
                await asyncio.sleep(LOOK_EVERY_S)
            latencies_ms.append((time.perf_counter() - sent) * 1e3)
        connection.close()
        return {"latencies_ms": latencies_ms}

    def many(self, port: int, paths: list[str], count: int, connections: int) -> Answer:
        """So many requests in all, as fast as they are answered."""
        return asyncio.run(self._many(port, paths, count, connections))

    async def _many(self, port: int, paths: list[str], count: int, connections: int) -> Answer:
        statuses: Counter[int] = Counter()
        numbers = iter(range(count))

        async def run(connection: Connection) -> None:
            for number in numbers:
                status, _ = await connection.ask(paths[number % len(paths)])
                statuses[status] += 1

        begun = time.perf_counter()
        await _on_all(port, connections, run)
        return {"statuses": statuses, "per_s": count / (time.perf_counter() - begun)}

    def streams(self, port: int, path: str, count: int, at_a_time: int, events: int = 1) -> Answer:
        """So many streams of events, each open until it has brought some, and then aborted by its client."""
        return asyncio.run(self._streams(port, path, count, at_a_time, events))

    async def _streams(self, port: int, path: str, count: int, at_a_time: int, events: int) -> Answer:
        numbers = iter(range(count))

        async def run(connection: Connection) -> None:
            for _ in numbers:
                await connection.listen(path, events)

        begun = time.perf_counter()
        await _on_all(port, at_a_time, run)
        return {"per_s": count / (time.perf_counter() - begun)}


async def _on_all(port: int, connections: int, run: Any) -> None:
    each = [Connection(port) for _ in range(connections)]
    async with asyncio.TaskGroup() as group:
        for connection in each:
            group.create_task(run(connection))
    for connection in each:
        connection.close()


if __name__ == "__main__":
    serve(lambda options: Clients(**options))
