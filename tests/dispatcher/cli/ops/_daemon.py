"""A daemon with a door, as a process of its own: `_daemon.py NAME`. It does what the lines on its input say."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from enum import Enum

from dispatcher import AsyncDispatcher, CompositeService, DispatcherConfig
from dispatcher.ops import OpsDoor


class Job(Enum):
    START = 1
    HANG = 2
    FAIL = 3


@dataclass
class JobEvent:
    type: Job
    entity: str


class Jobs:
    def __init__(self) -> None:
        self.release = threading.Event()
        self.hangs = threading.Event()

    def handle(self, event: JobEvent) -> None:
        if event.type is Job.HANG:
            self.wait_for_a_database()
        elif event.type is Job.FAIL:
            raise ValueError(f"{event.entity} cannot be \x1b[2J done")

    def wait_for_a_database(self) -> None:
        self.hangs.set()
        self.release.wait(60)


def main(name: str) -> None:
    jobs, daemon = Jobs(), CompositeService(name)
    config = DispatcherConfig(handler_warn_after_s=0.5)
    central, other = AsyncDispatcher(config, name="central"), AsyncDispatcher(config, name="other")
    for service in (OpsDoor(name=name), central, other):
        daemon.add_service(service)
    for dispatcher in (central, other):
        dispatcher.register(Job, jobs)
    daemon.init()
    daemon.start()
    print("started", flush=True)
    for line in sys.stdin:
        match line.strip():
            case "hang":
                other.event_handler.handle(JobEvent(Job.HANG, "job_77"))
                jobs.hangs.wait(60)
                for number in range(100):
                    other.event_handler.handle(JobEvent(Job.START, f"job_{number}"))
            case "fail":
                central.event_handler.handle(JobEvent(Job.FAIL, "job_5"))
                central.await_drained(60)
        print(line.strip(), flush=True)
    jobs.release.set()
    daemon.stop()


if __name__ == "__main__":
    main(sys.argv[1])
