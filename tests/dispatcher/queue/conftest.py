"""What tests of a journal that keeps accepted events share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    JournalConfig,
    JournalWriter,
    MultiDispatcher,
    PartitionedJournal,
)
from dispatcher.mailbox import ManualClock

from ...kit import TIMEOUT_S
from ...kit.journals import Job, Posted


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def start(journal: Path) -> Iterator[Callable[..., AsyncDispatcher]]:
    """Starts dispatchers on a journal in write-ahead mode, and stops them at the end."""
    started: list[AsyncDispatcher] = []

    def start(
        handler: Callable[[Any], Any],
        path: Path = journal,
        *,
        config: DispatcherConfig | None = None,
        events: Any = Posted,
        coalesce_by: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> AsyncDispatcher:
        writer = JournalWriter(path, JournalConfig(**{"write_ahead": True, "durability": "sync", **options}))
        dispatcher = AsyncDispatcher(config, name="central", journal=writer)
        started.append(dispatcher)
        dispatcher.register(Job, handler, events=events, coalesce_by=coalesce_by)
        dispatcher.start()
        return dispatcher

    yield start
    for dispatcher in started:
        dispatcher.stop()
        assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)


@dataclass
class OfKey:
    """An event of a partition."""

    type: Job
    number: int
    lock_key: str


@contextmanager
def running(
    journal: Path, clock: ManualClock, handle: Callable[[Any], Any] = print, events: Any = (Posted, OfKey)
) -> Iterator[AsyncDispatcher]:
    """A dispatcher on a journal in write-ahead mode, in the time of the clock."""
    writer = JournalWriter(journal, JournalConfig(write_ahead=True))
    dispatcher = AsyncDispatcher(name="jobs", journal=writer, time_service=clock)
    dispatcher.register(Job, handle, events=events)
    with dispatcher:
        yield dispatcher


@contextmanager
def partitioned(journal: Path, clock: ManualClock, handle: Any, partitions: int) -> Iterator[MultiDispatcher]:
    """The same with partitions."""
    journals = PartitionedJournal(journal, JournalConfig(write_ahead=True))
    dispatcher = MultiDispatcher(partitions=partitions, journal=journals, time_service=clock)
    dispatcher.register(Job, handle, events=OfKey)
    with dispatcher:
        yield dispatcher


def numbers(events: list[Any]) -> list[int]:
    return [event.number for event in events]
