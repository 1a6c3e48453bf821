"""Events per second through a dispatcher that keeps a journal, all on one core, beside other ways to write such rows.

The peers only write: their rows exist beforehand, and they have no queue, thread or handler.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from journal.commits import BATCH, sqlite_commits, write_and_sync
from load import Counting, Kind
from measure import Figures, RateTable, Row, Settings

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter
from dispatcher.util.garbage import tune_garbage_collection

ENTITIES = 5000
COMMIT_EVERY = 4096  # rows of an SQLite transaction: as many as the journal writes at once
COLUMNS = (
    "seq, dispatcher, event_class, event_type, entity, enqueued_at, started_at, finished_at, queue_ns, handling_ns, "
    "outcome"
)


@dataclass(slots=True)
class ContainerEvent:
    """An event with an entity; a dataclass, as write-ahead mode wants it."""

    type: Kind
    entity: str


class PeerRow(NamedTuple):
    """What the journal has of an event, for the peers."""

    seq: int
    dispatcher: str
    event_class: str
    event_type: str
    entity: str
    enqueued_at: int
    started_at: int
    finished_at: int
    queue_ns: int
    handling_ns: int
    outcome: str


class JournalRates:
    """Where the rows of the table write to, and how many bytes each has written there."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self.bytes_per_event: dict[str, float] = {}
        count = settings.count(500_000)
        entities = [f"container_1445144423722_0020_01_{number:06d}" for number in range(ENTITIES)]
        self._events = [ContainerEvent(Kind.TICK, entities[number % ENTITIES]) for number in range(count)]
        now = time.time_ns()
        self._rows = [
            PeerRow(
                seq, "central", "Kind", "TICK", entities[seq % ENTITIES], now + seq, now + seq + 9000, now + seq + 9900,
                9000, 900, "handled",
            )
            for seq in range(count)
        ]  # fmt: skip

    def table(self) -> RateTable:
        count = self._settings.count
        journaled: list[tuple[str, str, int, Callable[[int], float]]] = [
            ("interval", "journal, fsync every second", 500_000, self._dispatched(durability="interval")),
            ("none", "journal, no fsync", 500_000, self._dispatched()),
            ("sync", "journal, fsync with each write", 500_000, self._dispatched(durability="sync")),
            ("off", "no journal", 500_000, self._dispatched(journal=False)),
            ("ahead-none", "write-ahead, no fsync", 50_000, self._dispatched(write_ahead=True)),
            ("ahead-interval", "write-ahead, fsync every second", 50_000, self._ahead("interval")),
            ("ahead-sync", "write-ahead, fsync before True", 2_000, self._ahead("sync")),
            ("ahead-sync-8", "  the same, 8 producers", 8_000, self._ahead("sync", 8)),
            ("ahead-sync-32", "  the same, 32 producers", 16_000, self._ahead("sync", 32)),
            ("ahead-later", "  the same, one producer, post_later", 50_000, self._ahead("sync", later=True)),
        ]
        peers: list[tuple[str, str, int, Callable[[int], float]]] = [
            ("logging", "logging to a file, the rows alone", 100_000, self._logging),
            ("json", "json.dumps lines, the rows alone", 100_000, self._json_lines),
            ("sqlite", f"SQLite, commits of {COMMIT_EVERY}, the rows alone", 200_000, self._sqlite),
            ("write-sync", "write and fdatasync, the lines alone", 2_000, self._write_and_sync),
            ("sqlite-full", "SQLite WAL, FULL, a row a commit", 2_000, self._sqlite_commits(1)),
            ("sqlite-full-32", f"SQLite WAL, FULL, commits of {BATCH}", 16_000, self._sqlite_commits(BATCH)),
            ("sqlite-full-4096", f"SQLite WAL, FULL, commits of {COMMIT_EVERY}", 100_000, self._sqlite_commits(4096)),
        ]
        rows = [Row(key, f"dispatcher, {name}", count(number), run) for key, name, number, run in journaled]
        rows += [Row(key, name, count(number), run) for key, name, number, run in peers]
        return RateTable("journal", "Journaled events per second, on one core", rows)

    def _ahead(self, durability: str, producers: int = 1, *, later: bool = False) -> Callable[[int], float]:
        return self._dispatched(durability=durability, write_ahead=True, producers=producers, later=later)

    def _dispatched(
        self, *, journal: bool = True, producers: int = 1, later: bool = False, **config: Any
    ) -> Callable[[int], float]:
        return partial(self._dispatch, journal, producers, later, JournalConfig(**config))

    def _dispatch(self, journal: bool, producers: int, later: bool, config: JournalConfig, count: int) -> float:
        """Seconds to post the events and to have them handled, and their rows written and closed."""
        path, handler = self._new_folder(), Counting()
        writer = JournalWriter(path, config) if journal else None
        dispatcher = AsyncDispatcher(name="central", journal=writer)
        dispatcher.register(Kind, handler, events=ContainerEvent)
        dispatcher.init()
        dispatcher.start()
        events = self._events[:count]
        shares = [events[start::producers] for start in range(producers)]
        post = dispatcher.post_later if later else dispatcher.event_handler.handle
        threads = [threading.Thread(target=_post, args=(post, share)) for share in shares[1:]]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        _post(post, shares[0])
        for thread in threads:
            thread.join()
        dispatcher.stop()
        took = time.perf_counter() - started
        assert handler.handled == count
        if journal:
            mode = f"{'write-ahead, ' if config.write_ahead else ''}{config.durability}"
            self.bytes_per_event[f"journal, {mode}"] = _size(path) / count
        return took

    def _logging(self, count: int) -> float:
        path = self._new_folder() / "events.log"
        logger = logging.Logger("events")
        handler = logging.FileHandler(path)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        message = " ".join(["%s"] * len(PeerRow._fields))
        rows = self._rows[:count]
        started = time.perf_counter()
        for row in rows:
            logger.info(message, *row)
        handler.close()
        took = time.perf_counter() - started
        self.bytes_per_event["logging"] = path.stat().st_size / count
        return took

    def _json_lines(self, count: int) -> float:
        path = self._new_folder() / "events.jsonl"
        rows = self._rows[:count]
        started = time.perf_counter()
        with path.open("w") as file:
            for row in rows:
                file.write(json.dumps(row._asdict()) + "\n")
        took = time.perf_counter() - started
        self.bytes_per_event["json.dumps lines"] = path.stat().st_size / count
        return took

    def _sqlite(self, count: int) -> float:
        path = self._new_folder() / "events.db"
        insert = f"INSERT INTO events ({COLUMNS}) VALUES ({', '.join('?' * len(PeerRow._fields))})"
        rows = self._rows[:count]
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = OFF")
            database.execute(f"CREATE TABLE events ({COLUMNS})")
            started = time.perf_counter()
            for number, row in enumerate(rows, start=1):
                database.execute(insert, row)
                if number % COMMIT_EVERY == 0:
                    database.commit()
            database.commit()
            took = time.perf_counter() - started
        self.bytes_per_event["SQLite"] = path.stat().st_size / count
        return took

    def _write_and_sync(self, count: int) -> float:
        return write_and_sync(self._new_folder(), count)

    def _sqlite_commits(self, rows: int) -> Callable[[int], float]:
        return lambda count: sqlite_commits(self._new_folder(), count, rows)

    def _new_folder(self) -> Path:
        """The folder of the run before goes: they would fill the disk."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        return self._folder


def rates(settings: Settings) -> Figures:
    """Measure all rows on one core, with the garbage collector as `dispatcher run` has it."""
    with tempfile.TemporaryDirectory() as folder, _one_core(), _tuned_collector():
        made = JournalRates(settings, Path(folder) / "journal")
        table = made.table()
        tune_garbage_collection()
        for row in table.rows:
            row.warm_up()
        for _ in range(settings.repeats):
            for row in table.rows:
                row.measure()
    figures = table.report()
    print(f"\n{'Bytes per event':46}")
    for name, size in made.bytes_per_event.items():
        print(f"{name:46} {size:13.1f}")
    return figures


def _post(post: Callable[[ContainerEvent], object], events: list[ContainerEvent]) -> None:
    for event in events:
        post(event)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@contextmanager
def _one_core() -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def _tuned_collector() -> Iterator[None]:
    before = gc.get_threshold()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
