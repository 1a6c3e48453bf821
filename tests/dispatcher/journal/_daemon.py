"""A daemon in write-ahead mode with four producers, which a test kills.

Its words: JOURNAL FOLDER SEGMENT_BYTES RETENTION_BYTES RUN EVENTS PARTITIONS, with a MultiDispatcher unless PARTITIONS
is 0. It says `ready` when the first event was accepted, and `stopped` and why once all is handled.

Each producer writes the number of an event to FOLDER/accepted-PRODUCER once its handle() has returned True or, if it is
one of LATER, which use post_later(), once its future is done, and the handler the number of each event that it gets to
FOLDER/handled. Each producer posts EVENTS events; 0: without end. RUN
counts the runs on one journal; the numbers of each run are greater than all numbers of the run before.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter, MultiDispatcher, PartitionedJournal

from ...kit.killed import say, serve

PRODUCERS = 4
LATER = (2, 3)
MOST_UNDER_WAY = 50
EACH_RUN = 1_000_000


class Job(Enum):
    POSTED = 1


@dataclass
class Posted:
    type: Job
    producer: int
    number: int

    @property
    def lock_key(self) -> str:
        return f"producer {self.producer}"


def append_to(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)


def main(journal: str, given: str, *numbers: str) -> None:
    logging.disable(logging.WARNING)
    folder = Path(given)
    segment_bytes, retention_bytes, run, events, partitions = map(int, numbers)
    config = JournalConfig(
        durability="sync",
        write_ahead=True,
        segment_bytes=segment_bytes,
        retention_bytes=retention_bytes or None,
    )
    dispatcher: AsyncDispatcher | MultiDispatcher
    if partitions:
        dispatcher = MultiDispatcher(partitions=partitions, journal=PartitionedJournal(journal, config))
    else:
        dispatcher = AsyncDispatcher(journal=JournalWriter(journal, config))
    handled = append_to(folder / "handled")

    def handle(event: Posted) -> None:
        os.write(handled, b"%d %d %d\n" % (event.producer, event.number, dispatcher.is_redelivering()))

    def produce(producer: int) -> None:
        accepted = append_to(folder / f"accepted-{producer}")
        # Each run has its own numbers: the last event of an earlier run may be in the log although its post failed.
        number = run * EACH_RUN
        while not events or number < run * EACH_RUN + events:
            number += 1
            if not dispatcher.event_handler.handle(Posted(Job.POSTED, producer, number)):
                break
            os.write(accepted, b"%d\n" % number)
            if number == run * EACH_RUN + 1 and producer == 0:
                say("ready")

    def produce_later(producer: int) -> None:
        accepted = append_to(folder / f"accepted-{producer}")
        under_way: deque[Future[bool]] = deque()

        def post(number: int) -> None:
            future = dispatcher.post_later(Posted(Job.POSTED, producer, number))
            future.add_done_callback(lambda done: done.exception() or os.write(accepted, b"%d\n" % number))
            under_way.append(future)

        number = run * EACH_RUN
        while not events or number < run * EACH_RUN + events:
            number += 1
            post(number)
            if len(under_way) >= MOST_UNDER_WAY and under_way.popleft().exception() is not None:
                break

    dispatcher.register(Job, handle, events=Posted)
    dispatcher.start()
    producers = [
        threading.Thread(target=produce_later if producer in LATER else produce, args=(producer,), daemon=True)
        for producer in range(PRODUCERS)
    ]
    for thread in producers:
        thread.start()
    for thread in producers:
        thread.join()
    dispatcher.stop()
    say(f"stopped {dispatcher.failure_cause}")


if __name__ == "__main__":
    serve(main)
