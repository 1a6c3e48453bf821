"""A daemon that may open few files: journals events while another process, or its own files, take its descriptors.

Prints the port of its metrics, reads a line, posts EVENTS events, and prints how many were handled and why it failed.
With `--take-all` it opens files until none can be opened before it posts.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from enum import Enum
from pathlib import Path

from prometheus_client import CollectorRegistry

from dispatcher import AsyncDispatcher, Event, JournalConfig, JournalWriter, MetricsServer

LIMIT = 128
EVENTS = 2000


class Kind(Enum):
    TICK = 1


def main(folder: Path, take_all: bool) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, hard))
    journal = JournalWriter(folder, JournalConfig(segment_bytes=1024, buffer_rows=64, durability="sync"))
    dispatcher = AsyncDispatcher(journal=journal)
    dispatcher.register(Kind, lambda event: None)
    server = MetricsServer(registry=CollectorRegistry())
    with server, dispatcher:
        print(server.port, flush=True)
        sys.stdin.readline()
        if take_all:
            threading.Thread(target=lambda: None).start()  # what a first thread opens is open
            take_all_descriptors()
        for _ in range(EVENTS):
            dispatcher.event_handler.handle(Event(Kind.TICK))
        dispatcher.await_drained(60)
    print(dispatcher.stats().handled, dispatcher.failure_cause, flush=True)


def take_all_descriptors() -> None:
    while True:
        try:
            os.open(os.devnull, os.O_RDONLY)
        except OSError:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--take-all" in sys.argv)
