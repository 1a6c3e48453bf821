"""The clients of a measured daemon, in a process of their own: asking_worker.py OPTIONS-AS-JSON.

A `where` is the path of a Unix socket, or a port on this machine. Times are in seconds, latencies in milliseconds.
"""

from __future__ import annotations

import collections
import itertools
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

from ops.processes import Answer, serve

API = "/ops/v1"
TIMEOUT_S = 60.0
NAME = "central"
TOP = (
    f"{API}/process",
    f"{API}/dispatchers?limit=1000",
    f"{API}/dispatchers/{NAME}/types?sort=queued&limit=100",
    f"{API}/dispatchers/{NAME}/running",
    f"{API}/dispatchers/{NAME}/failures?limit=20",
)
"""What `dispatcher top` asks for each frame."""
TOP_EVERY_S = 1.0
Where = str | int


class Connection(HTTPConnection):
    """Kept open from request to request."""

    def __init__(self, where: Where) -> None:
        super().__init__("localhost", where if isinstance(where, int) else None, timeout=TIMEOUT_S)
        self._where = where

    def connect(self) -> None:
        if isinstance(self._where, int):
            self.sock = socket.create_connection(("127.0.0.1", self._where), TIMEOUT_S)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(TIMEOUT_S)
            self.sock.connect(self._where)

    def ask(self, path: str, method: str = "GET") -> tuple[int, int]:
        """The status of an answer, and its length."""
        self.request(method, path)
        with self.getresponse() as answer:
            return answer.status, len(answer.read())


class Clients:
    """For one thread: it answers when all that was asked for is done."""

    def __init__(self, options: Answer) -> None:
        self.started: Answer = {}

    def poll(self, where: Where, path: str, per_s: float, seconds: float, method: str = "GET") -> Answer:
        """One client that asks at fixed times, and leaves out those that it missed while it waited for an answer."""
        latencies_ms, statuses = [], collections.Counter[int]()
        connection = Connection(where)
        connection.ask(path, method)  # connects, and imports what the first answer needs
        begun = time.perf_counter()
        for number in range(max(5, round(per_s * seconds))):
            wait_s = begun + number / per_s - time.perf_counter()
            if wait_s < 0 and latencies_ms:
                continue
            time.sleep(max(0.0, wait_s))
            asked = time.perf_counter()
            status, _ = connection.ask(path, method)
            latencies_ms.append((time.perf_counter() - asked) * 1e3)
            statuses[status] += 1
        connection.close()
        return {"latencies_ms": latencies_ms, "statuses": statuses}

    def scrape(self, where: Where, path: str, times: int, every_s: float) -> Answer:
        """A client that asks so often, with a pause in between; with the monotonic time of each request and answer."""
        connection, windows, length = Connection(where), [], 0
        connection.ask(path)
        for _ in range(times):
            time.sleep(every_s)
            begun = time.monotonic()
            status, length = connection.ask(path)
            windows.append((begun, time.monotonic()))
            assert status == 200, status
        connection.close()
        return {"windows": windows, "bytes": length}

    def watch(self, socket: str, metrics: int, seconds: float, scrape_every_s: float) -> Answer:
        """`dispatcher top`, a scraper and a client with a stream of events, at a time."""
        until = time.monotonic() + seconds
        with ThreadPoolExecutor(3) as pool:
            frames = pool.submit(_top, socket, until)
            scrapes = pool.submit(_scrape, metrics, until, scrape_every_s)
            events = pool.submit(_stream, socket, until)
            return {"frames": frames.result(), "scrapes": scrapes.result(), "events": events.result()}

    def storm(self, where: Where, path: str, per_s: float, seconds: float, clients: int) -> Answer:
        """Clients that ask at a fixed rate together, each for its share. A client that is late asks at once."""
        count = max(clients, round(per_s * seconds))
        return self._by(clients, where, [path] * count, per_s)

    def many(self, where: Where, paths: Sequence[str], count: int, clients: int) -> Answer:
        """Clients that ask for these paths in turn, as fast as they get answers."""
        return self._by(clients, where, list(itertools.islice(itertools.cycle(paths), count)), None)

    def _by(self, clients: int, where: Where, paths: Sequence[str], per_s: float | None) -> Answer:
        barrier = threading.Barrier(clients)

        def work(place: int) -> tuple[collections.Counter[int], list[float]]:
            statuses, latencies_ms = collections.Counter[int](), []
            connection = Connection(where)
            connection.connect()
            barrier.wait()
            begun = time.perf_counter()
            for number in range(place, len(paths), clients):
                if per_s is not None:
                    time.sleep(max(0.0, begun + number / per_s - time.perf_counter()))
                asked = time.perf_counter()
                status, _ = connection.ask(paths[number])
                latencies_ms.append((time.perf_counter() - asked) * 1e3)
                statuses[status] += 1
            connection.close()
            return statuses, latencies_ms

        begun = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            results = list(pool.map(work, range(clients)))
        took_s = time.perf_counter() - begun
        statuses: collections.Counter[int] = sum((each for each, _ in results), collections.Counter())
        latencies_ms = [each for _, some in results for each in some] if per_s is not None else []
        return {"statuses": statuses, "latencies_ms": latencies_ms, "per_s": len(paths) / took_s}

    def close(self) -> None: ...


def _top(where: Where, until: float) -> int:
    """The number of frames."""
    connection, frames = Connection(where), 0
    due = time.monotonic()
    while due < until:
        time.sleep(max(0.0, due - time.monotonic()))
        for path in TOP:
            status, _ = connection.ask(path)
            assert status == 200, (path, status)
        frames += 1
        due += TOP_EVERY_S
    connection.close()
    return frames


def _scrape(where: Where, until: float, every_s: float) -> int:
    scrapes, due = 0, time.monotonic() + every_s / 2
    while due < until:
        time.sleep(max(0.0, due - time.monotonic()))
        connection = Connection(where)  # as Prometheus may: it need not keep its connection so long
        status, _ = connection.ask("/metrics")
        assert status == 200, status
        connection.close()
        scrapes += 1
        due += every_s
    return scrapes


def _stream(where: Where, until: float) -> int:
    """The number of events. Leaves when the time is over."""
    connection, events = Connection(where), 0
    connection.request("GET", f"{API}/stream")
    sock: Any = connection.sock
    answer = connection.getresponse()
    assert answer.status == 200, answer.status
    try:
        while (left := until - time.monotonic()) > 0:
            sock.settimeout(left)
            events += answer.readline().startswith(b"event:")
    except TimeoutError:
        pass
    answer.close()
    connection.close()
    return events


if __name__ == "__main__":
    serve(Clients)
