"""`on_error="exit"` beside a journal: the event that ends the process is recorded before, so it does not come again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter
from dispatcher.journal import EVENTS, read_rows, recover

from ...kit import TIMEOUT_S, Other
from ...kit.coroutines import running_loop
from ...kit.journals import Job, Posted, after_a_crash, no_room


@dataclass
class Yielding:
    type: Other
    number: int


class Exit:
    """An exit action that keeps what is on the disk at that moment, and how much of it was synced."""

    def __init__(self, journal: JournalWriter, copy: Path) -> None:
        self.journal = journal
        self.copy = copy
        self.was_synced = False
        self.called = threading.Event()

    def __call__(self, code: int) -> None:
        log = self.journal.log
        with log._sync_lock:  # meanwhile, the dispatcher stops and closes the journal
            self.was_synced = log._synced_frames == log.frames
            after_a_crash(self.journal.path, self.copy)
        self.called.set()

    def accepted(self) -> list[int]:
        assert self.called.wait(TIMEOUT_S)
        return [accepted.seq for accepted in recover(self.copy).accepted]

    def outcomes(self) -> list[tuple[Any, ...]]:
        return [(row.get("accepted_seq"), row["outcome"]) for row in read_rows(self.copy, EVENTS)]


def dispatcher_of(journal: JournalWriter, copy: Path, **options: Any) -> tuple[AsyncDispatcher, Exit]:
    exit_action = Exit(journal, copy)
    return AsyncDispatcher(journal=journal, exit_action=exit_action, **options), exit_action


def fail(event: Any) -> None:
    if event.number == 2:
        raise ValueError("poison")


async def fail_later(event: Any) -> None:
    fail(event)


@pytest.mark.parametrize("durability", ["none", "interval", "sync"])
@pytest.mark.parametrize("handler", [fail, fail_later])
def test_the_row_of_the_event_is_on_the_disk_before_the_exit(
    journal: Path, tmp_path: Path, durability: Any, handler: Callable[[Any], Any]
) -> None:
    """Its event came first again with each start, and ended it."""
    writer = JournalWriter(journal, JournalConfig(write_ahead=True, durability=durability))
    with running_loop() as loop:
        dispatcher, exiting = dispatcher_of(writer, tmp_path / "copy", loop=loop)
        dispatcher.register(Job, handler, on_error="exit", events=Posted)
        for number in (1, 2):
            assert dispatcher.event_handler.handle(Posted(Job.STARTED, number))
        with dispatcher:
            assert exiting.accepted() == []

    assert sorted(exiting.outcomes()) == [(1, "handled"), (2, "failed")]
    assert exiting.was_synced or durability == "none"


def test_an_exit_amid_another_handler_does_not_wait_for_it(journal: Path, tmp_path: Path) -> None:
    writer = JournalWriter(journal, JournalConfig(write_ahead=True, durability="sync"))
    left: list[list[int]] = []
    with running_loop() as loop:
        dispatcher, exiting = dispatcher_of(writer, tmp_path / "copy", loop=loop)

        def yield_until_exit(event: Any) -> None:
            while not exiting.called.is_set():
                dispatcher.mailbox_executor.try_yield()
            left.append(exiting.accepted())

        dispatcher.register(Job, fail_later, on_error="exit", events=Posted)
        dispatcher.register(Other, yield_until_exit, events=Yielding)
        dispatcher.event_handler.handle(Posted(Job.STARTED, 2))
        dispatcher.event_handler.handle(Yielding(Other.DO, 1))
        with dispatcher:
            dispatcher.wait_for_service_to_stop(TIMEOUT_S)

    assert left == [[2]]


@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_the_process_exits_although_the_journal_fails(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    writer = JournalWriter(journal, JournalConfig(write_ahead=True, failure_policy=policy))
    dispatcher, exiting = dispatcher_of(writer, tmp_path / "copy")
    dispatcher.register(Job, fail, on_error="exit", events=Posted)
    assert dispatcher.event_handler.handle(Posted(Job.STARTED, 2))

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", no_room)
        dispatcher.start()
        assert exiting.called.wait(TIMEOUT_S)
    dispatcher.stop()

    assert writer.is_failed
