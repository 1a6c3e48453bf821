"""A hundred million events through one dispatcher: does its memory stay flat, and its speed?

It runs in a process of its own, because memory freed by earlier measurements would hide a growth. Each chunk of events
is drained before the next is posted, so that queued events do not count as a growth.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from core.dispatchers import config
from load import Counting, Kind
from measure import Figures, Settings
from ops.processes import resident_bytes
from prometheus_client import CollectorRegistry

from dispatcher import AsyncDispatcher, Event, register_metrics

CHUNK = 100_000


class Endurance:
    """Measured in its report: once."""

    def __init__(self, settings: Settings) -> None:
        self._events = max(10 * CHUNK, settings.endurance_events // (10 * CHUNK) * (10 * CHUNK))

    def warm_up(self) -> None: ...

    def round(self) -> None: ...

    def report(self) -> Figures:
        if not Path("/proc/self/statm").exists():
            print("\nEndurance is skipped: there is no /proc/self/statm to read the resident size from.")
            return {}
        command = [sys.executable, __file__, str(self._events)]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        early_bytes, late_bytes, took_s = (float(word) for word in answer.split())
        growth = late_bytes / early_bytes - 1
        print(f"\nEndurance: {self._events:,} events through one AsyncDispatcher, metrics on")
        print(
            f"RSS at 10 %: {early_bytes / 2**20:,.1f} MiB, at 100 %: {late_bytes / 2**20:,.1f} MiB ({growth:+.1%}); "
            f"{took_s:,.1f} s, {self._events / took_s:,.0f} events/s"
        )
        return {"endurance.growth": growth, "endurance.events": self._events}


def endure(events: int) -> tuple[int, int, float]:
    """Resident bytes after a tenth of the events and after all of them, and the seconds taken."""
    handler, chunk = Counting(), [Event(Kind.TICK, 0.0) for _ in range(CHUNK)]
    early_bytes = 0
    with AsyncDispatcher(config()) as dispatcher:
        dispatcher.register(Kind, handler)
        register_metrics(dispatcher, CollectorRegistry())
        post = dispatcher.event_handler.handle
        started = time.perf_counter()
        while handler.handled < events:
            for event in chunk:
                post(event)
            dispatcher.await_drained()
            if handler.handled == events // 10:
                early_bytes = resident_bytes()
        took = time.perf_counter() - started
        late_bytes = resident_bytes()
    assert handler.handled == events
    return early_bytes, late_bytes, took


if __name__ == "__main__":
    print(*endure(int(sys.argv[1])))
