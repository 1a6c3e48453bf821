"""Ten million rows on a cluster of two workers, through a service with a limit; one executor is killed on the way.

The service takes 600 requests a second of 50 keys each, after 20 ms, and refuses keys beyond 30,000 a second. One key
for each request would take 4.6 hours.

millions.py URL PORT ROWS    the driver of the job
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from async_io.processes import PROC, resident_bytes, tree_of

ROWS = 10_000_000
KEYS_PER_S = 30_000
KEYS_PER_REQUEST = 50
CALL_S = 0.02
WORKERS = 2
PARTITIONS = 40
INTERVAL_S = 0.5
KILL_AT = 0.4
PARTS_TOLD = (0.1, 0.5, 1.0)


class Service(asyncio.Protocol):
    """One connection, with one request at a time: a line with the number of keys, answered by "ok" or "busy"."""

    keys = refused = 0
    tokens = float(KEYS_PER_S)
    at_s = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(b"\n"):
            keys, self._received = int(self._received), b""
            if _try_accept(keys):
                asyncio.get_running_loop().call_later(CALL_S, self._answer, b"ok\n")
            else:
                self._answer(b"busy\n")

    def _answer(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


def _try_accept(keys: int) -> bool:
    at_s = time.monotonic()
    Service.tokens = min(KEYS_PER_S, Service.tokens + (at_s - Service.at_s) * KEYS_PER_S)
    Service.at_s = at_s
    if Service.tokens < keys:
        Service.refused += 1
        return False
    Service.tokens -= keys
    Service.keys += keys
    return True


@contextmanager
def _service() -> Iterator[int]:
    """Its port; it runs on a thread of this process, which reads its counts."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(loop.create_server(Service, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, name="service", daemon=True)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def millions(settings: Any) -> dict[str, float]:
    """Measured once."""
    from spark_cluster import environment, standalone_cluster

    rows = settings.count(ROWS)
    samples: list[tuple[float, int, int]] = []  # part of the rows, bytes of the driver, bytes of the workers
    killed = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        _service() as port,
        standalone_cluster(Path(folder) / "cluster", WORKERS) as url,
    ):
        started_s = time.perf_counter()
        command = [sys.executable, __file__, url, str(port), str(rows)]
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as driver:
            try:
                while driver.poll() is None:
                    time.sleep(INTERVAL_S)
                    part = Service.keys / rows
                    samples.append((part, _bytes_of(tree_of(driver.pid)), _bytes_of(_cluster_processes(driver.pid))))
                    if not killed and part >= KILL_AT:
                        killed = _kill_an_executor(driver.pid)
            finally:
                driver.terminate()  # only if this was interrupted, it runs
            assert driver.stdout is not None
            answer = json.loads(driver.stdout.read().splitlines()[-1])
        whole_s = time.perf_counter() - started_s
    assert answer["count"] == rows, f"{answer['count']:,} rows came out of {rows:,}"
    assert answer["sum"] == rows * (rows - 1) // 2, "the rows that came out are not those that went in"
    assert killed, "the job ended before an executor was killed"
    return _told(rows, answer["took_s"], whole_s, samples)


def _told(rows: int, took_s: float, whole_s: float, samples: list[tuple[float, int, int]]) -> dict[str, float]:
    again, refused = Service.keys - rows, Service.refused
    print(f"\n{rows:,} rows on a cluster of {WORKERS} workers, a service of {KEYS_PER_S:,} keys/s, an executor killed")
    print(f"{took_s:,.0f} s, {rows / took_s:,.0f} rows/s ({whole_s:,.0f} s with the start and the end of the driver)")
    print(f"{refused:,} requests refused; {again:,} keys asked for again ({again / rows:.2%})")
    found = {part: next(each for each in samples if each[0] >= part or each is samples[-1]) for part in PARTS_TOLD}
    for place, who in ((1, "driver"), (2, "workers")):
        told = ", ".join(f"{part:.0%}: {found[part][place] / 2**20:,.0f}" for part in PARTS_TOLD)
        print(f"RSS of the {who} in MiB at {told}")
    growth = {who: found[1.0][place] / found[0.1][place] - 1 for place, who in ((1, "driver"), (2, "workers"))}
    return {
        "async.millions.rows": float(rows),
        "async.millions.rate": rows / took_s,
        "async.millions.refused": float(refused),
        "async.millions.again": again / rows,
        **{f"async.millions.{who}-growth": value for who, value in growth.items()},
    }


def _cluster_processes(driver: int) -> list[int]:
    """What this process has started, without itself and the driver."""
    apart = {os.getpid(), *tree_of(driver)}
    return [pid for pid in tree_of(os.getpid()) if pid not in apart]


def _kill_an_executor(driver: int) -> int:
    """The process that was killed, with what it has started; 0 if none was found."""
    for pid in _cluster_processes(driver):
        try:
            if b"CoarseGrainedExecutorBackend" in PROC.joinpath(str(pid), "cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
                return pid
        except OSError:  # it has ended meanwhile
            continue
    return 0


def _bytes_of(pids: list[int]) -> int:
    return sum(map(resident_bytes, pids))


def _drive(url: str, port: int, rows: int) -> None:
    from pyspark.sql import functions as F

    from pipeline.spark import unordered_wait
    from pipeline.spark.session import spark_session
    from pipeline.streaming import AsyncFunction, RateLimit, RetryAfter

    class Keys(AsyncFunction[Any, Any]):
        """On connections that it keeps."""

        def open(self) -> None:
            self._idle: list[Any] = []

        def close(self) -> None:
            for _, writer in self._idle:
                writer.close()

        async def async_invoke_batch(self, values: list[Any]) -> list[Any]:
            connection = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", port)
            reader, writer = connection
            writer.write(f"{len(values)}\n".encode())
            answer = await reader.readline()
            self._idle.append(connection)
            if answer == b"busy\n":
                raise RetryAfter(0.1)
            return [[(value.id,)] for value in values]

    settings = {
        "spark.executor.memory": "1g",
        "spark.sql.adaptive.enabled": "false",
        "spark.cores.max": str(WORKERS),  # each task gets its share of the limit: of two, and not of 40
    }
    with spark_session(url, "millions", settings) as spark:
        called = unordered_wait(
            spark.range(0, rows, 1, PARTITIONS),
            Keys(),
            "id bigint",
            timeout=60,
            concurrency=30,
            max_batch_size=KEYS_PER_REQUEST,
            rate_limit=RateLimit(KEYS_PER_S * 0.95),
        )
        started = time.perf_counter()
        count, total = called.agg(F.count("*"), F.sum("id")).first()
        print(json.dumps({"count": count, "sum": total, "took_s": time.perf_counter() - started}), flush=True)


if __name__ == "__main__":
    _drive(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
