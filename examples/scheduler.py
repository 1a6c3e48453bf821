"""A scheduler of shell commands: periods, delays, retries, and up to two commands of a queue at a time.

    .venv/bin/python examples/scheduler.py runs/scheduler

Each line of `jobs` in that folder is a job for every so many seconds, such as `3600 backup pg_dump shop -f shop.sql`:
the seconds, the queue, the command. A line that you type is a job for once, in so many seconds. A command that fails
three times ends in the folder `dead-letters`. After `kill -9`, the next start runs what was accepted, at its time.
Ctrl-C or SIGTERM ends it once the running commands have ended.
"""

import asyncio
import signal
import sys
import threading
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    DispatcherError,
    JournalConfig,
    JournalError,
    JournalWriter,
    Retry,
    aio,
)

JobType = Enum("JobType", ["DUE"])


def say(line: str) -> None:
    print(f"{line}\n", end="", flush=True)  # in one piece: two threads talk


class CommandFailedError(Exception):
    pass


@dataclass
class Job:
    type: JobType
    lock_key: str  # the queue
    command: str

    @classmethod
    def read(cls, line: str) -> tuple[float, "Job"]:
        seconds, queue, command = line.strip().split(maxsplit=2)
        return float(seconds), cls(JobType.DUE, queue, command)


async def run(job: Job) -> None:
    process = await asyncio.create_subprocess_shell(job.command)
    try:
        code = await process.wait()
    except asyncio.CancelledError:  # the stop's time is over; the next start runs it again
        process.kill()
        await process.wait()
        raise
    say(f"{job.command}: exit code {code}")
    if code:
        raise CommandFailedError(f"{job.command}: exit code {code}")


async def main(folder: Path) -> None:
    journal = JournalWriter(folder / "journal", JournalConfig(durability="sync", write_ahead=True))
    loop, config = asyncio.get_running_loop(), DispatcherConfig(drain_timeout_s=10)
    scheduler = AsyncDispatcher(
        config, name="scheduler", journal=journal, dead_letters=folder / "dead-letters", loop=loop
    )
    retry = Retry(attempts=3, delay_s=0.5, on=CommandFailedError)
    handler = aio.AsyncioHandler(run, capacity=20, per_key=2)
    scheduler.register(JobType, handler, events=Job, on_error=retry)

    def read_jobs() -> None:
        with open(0) as lines:  # not sys.stdin, whose lock Python needs at its end
            for line in lines:
                try:
                    scheduler.post_after(*Job.read(line))
                    say(f"accepted {line.strip()}")  # from here on, nothing loses it
                except (ValueError, DispatcherError) as error:
                    say(f"{line.strip()}: {error}")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: threading.Thread(target=scheduler.stop).start())
    async with scheduler:
        jobs = folder / "jobs"
        lines = jobs.read_text(encoding="utf-8").splitlines() if jobs.exists() else []
        for gone in scheduler.scheduled().keys() - lines:
            scheduler.cancel(gone)
        for line in lines:
            scheduler.post_every(*Job.read(line), key=line)
        threading.Thread(target=read_jobs, daemon=True).start()
        await asyncio.to_thread(scheduler.wait_for_service_to_stop)  # a disk that is full stops it, too
    if scheduler.failure_cause is not None:
        raise scheduler.failure_cause


try:
    asyncio.run(main(Path(sys.argv[1])))
except JournalError as error:  # such as: another process has the folder
    sys.exit(f"scheduler: {error}")
