"""A daemon whose jobs a user has added, and that a test kills. Its wall clock goes 1,000 times as fast as the system's.

It is given FOLDER ADDS: the first one adds the jobs of RULES, a later one adds none. It says `ready` once it runs.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter
from dispatcher.queue import schedule

from ..kit.killed import say, serve

RULES: Final[dict[str, dict[str, Any]]] = {
    "all": {"cron": "* * * * *", "tz": "Europe/Berlin", "misfire": "all"},
    "once": {"cron": "*/2 * * * *", "misfire": "once"},
    "period": {"seconds": 90, "misfire": "all"},
}
SPEED: Final = 1000

JobType = Enum("JobType", ["DUE"])


@dataclass
class Job:
    type: JobType
    key: str


def main(*given: str) -> None:
    folder, adds = Path(given[0]), given[1] == "adds"
    logging.disable(logging.CRITICAL)
    real = time.time_ns
    began_ns = real() if adds else int((folder / "began").read_text())
    (folder / "began").write_text(str(began_ns))
    time.time_ns = lambda: began_ns + (real() - began_ns) * SPEED
    schedule._WALL_LOOK_NS = 1_000_000  # type: ignore[misc]
    # A kill loses nothing of what was written, synced or not.
    journal = JournalWriter(folder / "journal", JournalConfig(write_ahead=True, segment_bytes=20_000))
    jobs = AsyncDispatcher(name="jobs", journal=journal)
    jobs.register(JobType, lambda event: None, events=Job)
    jobs.start()
    if adds:
        for key, rule in RULES.items():
            jobs.post_every(event=Job(JobType.DUE, key), key=key, **rule)
    assert jobs.scheduled().keys() == RULES.keys()
    say("ready")
    threading.Event().wait()


if __name__ == "__main__":
    serve(main)
