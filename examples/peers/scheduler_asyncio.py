"""The same as ../scheduler.py, with asyncio and SQLite.

.venv/bin/python examples/peers/scheduler_asyncio.py runs/scheduler
"""

import asyncio
import logging
import random
import signal
import sqlite3
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

ATTEMPTS = 3
DELAY_S = 0.5
AT_THE_SAME_TIME = 20
PER_QUEUE = 2
DRAIN_TIMEOUT_S = 10.0
TABLES = """
CREATE TABLE IF NOT EXISTS jobs (seq INTEGER PRIMARY KEY AUTOINCREMENT, due REAL NOT NULL, queue TEXT NOT NULL,
                                 command TEXT NOT NULL, attempt INTEGER NOT NULL DEFAULT 1, period TEXT);
CREATE TABLE IF NOT EXISTS periods (line TEXT PRIMARY KEY, due REAL NOT NULL);
CREATE TABLE IF NOT EXISTS dead_letters (seq INTEGER PRIMARY KEY, queue TEXT NOT NULL, command TEXT NOT NULL,
                                         error TEXT NOT NULL, failed REAL NOT NULL);
"""

log = logging.getLogger("scheduler")


def say(line: str) -> None:
    print(f"{line}\n", end="", flush=True)


def parts_of(line: str) -> tuple[float, str, str]:
    seconds, queue, command = line.strip().split(maxsplit=2)
    return float(seconds), queue, command


class Scheduler:
    """The loop's thread. It writes to the database itself, for a row or two at a time."""

    def __init__(self, folder: Path) -> None:
        self.database = sqlite3.connect(folder / "jobs.db")
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = FULL")
        self.database.executescript(TABLES)
        self.slots = asyncio.Semaphore(AT_THE_SAME_TIME)
        self.queues: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(PER_QUEUE))
        self.sleeping: set[asyncio.Task[None]] = set()
        self.running: set[asyncio.Task[None]] = set()
        self.is_stopping = False

    def restore(self) -> None:
        for row in self.database.execute("SELECT seq, due, queue, command, attempt FROM jobs ORDER BY due").fetchall():
            self.begin(*row)

    def post_after(self, seconds: float, queue: str, command: str) -> bool:
        if self.is_stopping:
            return False
        due = time.time() + seconds
        with self.database:
            sql = "INSERT INTO jobs (due, queue, command) VALUES (?, ?, ?)"
            seq = self.database.execute(sql, (due, queue, command)).lastrowid
        assert seq is not None
        self.begin(seq, due, queue, command, 1)
        return True

    def begin(self, seq: int, due: float, queue: str, command: str, attempt: int) -> None:
        task = asyncio.create_task(self.keep(seq, due, queue, command, attempt))
        self.sleeping.add(task)
        task.add_done_callback(self.ended)

    def ended(self, task: asyncio.Task[None]) -> None:
        self.sleeping.discard(task)
        self.running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a job has failed", exc_info=task.exception())

    async def keep(self, seq: int, due: float, queue: str, command: str, attempt: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        while True:
            await asyncio.sleep(max(0.0, due - time.time()))
            self.sleeping.discard(task)
            self.running.add(task)  # a stop waits for it from now on
            async with self.queues[queue], self.slots:
                code = await self.run(command)
            if code == 0 or attempt == ATTEMPTS:
                with self.database:
                    if code != 0:
                        log.error("%s has failed for good: exit code %d", command, code)
                        self.database.execute(
                            "INSERT INTO dead_letters VALUES (?, ?, ?, ?, ?)",
                            (seq, queue, command, f"exit code {code}", time.time()),
                        )
                    self.database.execute("DELETE FROM jobs WHERE seq = ?", (seq,))
                return
            log.warning("attempt %d of %d at %s: exit code %d", attempt, ATTEMPTS, command, code)
            due = time.time() + DELAY_S * 2 ** (attempt - 1) * random.uniform(0.9, 1.1)
            attempt += 1
            with self.database:
                self.database.execute("UPDATE jobs SET due = ?, attempt = ? WHERE seq = ?", (due, attempt, seq))
            self.running.discard(task)
            if self.is_stopping:
                return
            self.sleeping.add(task)

    async def run(self, command: str) -> int:
        process = await asyncio.create_subprocess_shell(command)
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        say(f"{command}: exit code {code}")
        return code

    async def every(self, line: str) -> None:
        seconds, queue, command = parts_of(line)
        row = self.database.execute("SELECT due FROM periods WHERE line = ?", (line,)).fetchone()
        due = row[0] if row else time.time() + seconds
        while True:
            with self.database:
                self.database.execute("INSERT OR REPLACE INTO periods VALUES (?, ?)", (line, due))
            await asyncio.sleep(max(0.0, due - time.time()))
            now = time.time()
            following = due + seconds * (1 + (now - due) // seconds)  # once for all the times that have passed
            seq = None
            with self.database:  # the job and the time of the next one in one transaction
                sql = "SELECT 1 FROM jobs WHERE period = ?"
                if self.database.execute(sql, (line,)).fetchone() is None:
                    sql = "INSERT INTO jobs (due, queue, command, period) VALUES (?, ?, ?, ?)"
                    seq = self.database.execute(sql, (now, queue, command, line)).lastrowid
                self.database.execute("UPDATE periods SET due = ? WHERE line = ?", (following, line))
            if seq is not None:
                self.begin(seq, now, queue, command, 1)
            due = following

    async def stop(self) -> None:
        self.is_stopping = True
        for task in self.sleeping:
            task.cancel()
        if self.running:
            _, late = await asyncio.wait(self.running, timeout=DRAIN_TIMEOUT_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self.database.close()


async def main(folder: Path) -> None:
    loop, stopped, scheduler = asyncio.get_running_loop(), asyncio.Event(), Scheduler(folder)

    def post(line: str) -> None:
        if scheduler.post_after(*parts_of(line)):
            say(f"accepted {line.strip()}")

    def read_jobs() -> None:
        with open(0) as lines:
            for line in lines:
                loop.call_soon_threadsafe(post, line)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    scheduler.restore()
    lines = (folder / "jobs").read_text(encoding="utf-8").splitlines()
    periods = [asyncio.create_task(scheduler.every(line)) for line in lines]
    threading.Thread(target=read_jobs, daemon=True).start()
    await stopped.wait()
    for period in periods:
        period.cancel()
    await scheduler.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
