"""The same as ../scheduler.py, with pykka and SQLite.

.venv/bin/python examples/peers/scheduler_pykka.py runs/scheduler
"""

import logging
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pykka

ATTEMPTS = 3
DELAY_S = 0.5
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
slots = threading.Semaphore(20)


def say(line: str) -> None:
    print(f"{line}\n", end="", flush=True)


@dataclass
class Job:
    seq: int
    due: float
    queue: str
    command: str
    attempt: int = 1


class Runner(pykka.ThreadingActor):
    """Runs one command at a time."""

    use_daemon_thread = True

    def __init__(self, scheduler: "pykka.ActorProxy[Scheduler]") -> None:
        super().__init__()
        self.scheduler = scheduler

    def run(self, job: Job) -> None:
        with slots:
            code = subprocess.run(job.command, shell=True, check=False).returncode
        say(f"{job.command}: exit code {code}")
        self.scheduler.has_run(job, code, self.actor_ref.proxy()).get()


class Scheduler(pykka.ThreadingActor):
    """Keeps the times and the database, and hands the jobs that are due to the runners of their queues."""

    use_daemon_thread = True

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.waiting: dict[str, deque[Job]] = {}
        self.idle: dict[str, list[Any]] = {}
        self.timers: set[threading.Timer] = set()
        self.running = 0
        self.drained: threading.Event | None = None

    def on_start(self) -> None:
        self.database = sqlite3.connect(self.folder / "jobs.db")
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = FULL")
        self.database.executescript(TABLES)
        for row in self.database.execute("SELECT seq, due, queue, command, attempt FROM jobs ORDER BY due").fetchall():
            self.begin(Job(*row))

    def on_stop(self) -> None:
        self.database.close()

    def on_failure(self, exception_type: Any, exception_value: Any, traceback: Any) -> None:
        log.critical("the scheduler has failed", exc_info=(exception_type, exception_value, traceback))

    def post(self, line: str) -> None:
        if self.drained is not None:
            return
        seconds, queue, command = line.strip().split(maxsplit=2)
        with self.database:
            job = self.insert(time.time() + float(seconds), queue, command)
        self.begin(job)
        say(f"accepted {line.strip()}")

    def insert(self, due: float, queue: str, command: str, period: str | None = None) -> Job:
        sql = "INSERT INTO jobs (due, queue, command, period) VALUES (?, ?, ?, ?)"
        seq = self.database.execute(sql, (due, queue, command, period)).lastrowid
        assert seq is not None
        return Job(seq, due, queue, command)

    def at(self, due: float, what: str, *arguments: Any) -> None:
        """Call one of this actor's methods at a time, as a message like any other."""
        proxy = self.actor_ref.proxy()

        def send() -> None:
            try:
                getattr(proxy, what)(*arguments)
            except pykka.ActorDeadError:
                log.info("stopped before %s", what)

        timer = threading.Timer(max(0.0, due - time.time()), send)
        timer.daemon = True
        self.timers = {each for each in self.timers if each.is_alive()} | {timer}
        timer.start()

    def begin(self, job: Job) -> None:
        self.at(job.due, "is_due", job)

    def is_due(self, job: Job) -> None:
        if job.queue not in self.waiting:
            self.waiting[job.queue] = deque()
            self.idle[job.queue] = [Runner.start(self.actor_ref.proxy()).proxy() for _ in range(PER_QUEUE)]
        self.waiting[job.queue].append(job)
        self.hand_out(job.queue)

    def hand_out(self, queue: str) -> None:
        while self.waiting[queue] and self.idle[queue]:
            self.idle[queue].pop().run(self.waiting[queue].popleft())
            self.running += 1

    def has_run(self, job: Job, code: int, runner: Any) -> None:
        self.running -= 1
        self.idle[job.queue].append(runner)
        if code == 0 or job.attempt == ATTEMPTS:
            with self.database:
                if code != 0:
                    log.error("%s has failed for good: exit code %d", job.command, code)
                    self.database.execute(
                        "INSERT INTO dead_letters VALUES (?, ?, ?, ?, ?)",
                        (job.seq, job.queue, job.command, f"exit code {code}", time.time()),
                    )
                self.database.execute("DELETE FROM jobs WHERE seq = ?", (job.seq,))
        else:
            log.warning("attempt %d of %d at %s: exit code %d", job.attempt, ATTEMPTS, job.command, code)
            job.due = time.time() + DELAY_S * 2 ** (job.attempt - 1) * random.uniform(0.9, 1.1)
            job.attempt += 1
            with self.database:
                sql = "UPDATE jobs SET due = ?, attempt = ? WHERE seq = ?"
                self.database.execute(sql, (job.due, job.attempt, job.seq))
            if self.drained is None:
                self.begin(job)
        self.hand_out(job.queue)
        if self.drained is not None and not self.running:
            self.drained.set()

    def every(self, line: str) -> None:
        seconds = float(line.split(maxsplit=1)[0])
        row = self.database.execute("SELECT due FROM periods WHERE line = ?", (line,)).fetchone()
        due = row[0] if row else time.time() + seconds
        with self.database:
            self.database.execute("INSERT OR REPLACE INTO periods VALUES (?, ?)", (line, due))
        self.at(due, "period_is_due", line, due)

    def period_is_due(self, line: str, due: float) -> None:
        if self.drained is not None:
            return
        text, queue, command = line.split(maxsplit=2)
        now, seconds = time.time(), float(text)
        following = due + seconds * (1 + (now - due) // seconds)  # once for all the times that have passed
        job = None
        with self.database:  # the job and the time of the next one in one transaction
            if self.database.execute("SELECT 1 FROM jobs WHERE period = ?", (line,)).fetchone() is None:
                job = self.insert(now, queue, command, line)
            self.database.execute("UPDATE periods SET due = ? WHERE line = ?", (following, line))
        if job is not None:
            self.is_due(job)
        self.at(following, "period_is_due", line, following)

    def drain(self, drained: threading.Event) -> None:
        """Set the event once no command runs; what is not due stays in the database."""
        for timer in self.timers:
            timer.cancel()
        self.drained = drained
        if not self.running:
            drained.set()


def main(folder: Path) -> int:
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    ref = Scheduler.start(folder)
    scheduler = ref.proxy()
    for line in (folder / "jobs").read_text(encoding="utf-8").splitlines():
        scheduler.every(line).get()

    def read_jobs() -> None:
        with open(0) as lines:
            for line in lines:
                scheduler.post(line)

    threading.Thread(target=read_jobs, daemon=True).start()
    while signal.sigtimedwait(signals, 1) is None:
        if not ref.is_alive():
            return 1
    drained = threading.Event()
    scheduler.drain(drained).get()
    drained.wait(DRAIN_TIMEOUT_S)
    pykka.ActorRegistry.stop_all(timeout=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
