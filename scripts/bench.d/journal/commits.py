"""Peers of write-ahead under `sync`: lines of the same size that are on the disk, one after the other or in batches.

They only write: no queue, no thread and no handler.

An idle core of a virtual machine may take milliseconds to wake once the disk has answered, ten times as long as the
disk itself. A dispatcher's handler thread works meanwhile; beside these rows, a process of idle priority keeps the core
awake instead.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

BATCH: Final = 32
"""Rows of a transaction: as many as there are producers in the largest row of write-ahead."""
LINE: Final = (
    b'{"event_class":"Kind","event_type":"TICK","model":"ContainerEvent","event":'
    b'{"type":1,"entity":"container_1445144423722_0020_01_000001"}}'
)


@contextmanager
def _core_awake() -> Iterator[None]:
    """Keep the cores that this process runs on from idling, by a process that yields to every other."""
    if not hasattr(os, "SCHED_IDLE"):
        yield
        return
    spin = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile os.getppid() != 1: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as spinner:
        try:
            yield
        finally:
            spinner.kill()


def write_and_sync(folder: Path, count: int) -> float:
    """Seconds to write `count` lines of a frame's size, each with an fdatasync: the limit of one producer."""
    line = bytes(64) + LINE
    file = os.open(folder / "lines", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        with _core_awake():
            started = time.perf_counter()
            for _ in range(count):
                os.write(file, line)
                os.fdatasync(file)
            return time.perf_counter() - started
    finally:
        os.close(file)


def sqlite_commits(folder: Path, count: int, rows: int) -> float:
    """Seconds to insert `count` rows into SQLite (WAL, synchronous=FULL), `rows` of them in a transaction."""
    with _core_awake(), closing(sqlite3.connect(folder / "events.db", isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE events (line BLOB)")
        started = time.perf_counter()
        for start in range(0, count, rows):
            database.execute("BEGIN")
            for _ in range(start, min(count, start + rows)):
                database.execute("INSERT INTO events VALUES (?)", (LINE,))
            database.execute("COMMIT")
        return time.perf_counter() - started
