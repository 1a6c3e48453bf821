"""The journal's rows of events that coroutines handle, and posts from a loop in write-ahead mode."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, Event, JournalConfig, JournalWriter, aio
from dispatcher.journal import EVENTS, TRANSITIONS, read_rows, verify

from ..kit import TIMEOUT_S, Gate, Other, Work, until
from ..kit.coroutines import Keyed, Latched


@dataclass
class Job:
    type: Work
    number: int
    lock_key: int | None = None
    entity: str = "job"


@pytest.fixture
def handler(loop: asyncio.AbstractEventLoop) -> Latched:
    return Latched(loop)


def write_ahead(path: Path, handler: Latched, **options: Any) -> AsyncDispatcher:
    journal = JournalWriter(path, JournalConfig(write_ahead=True))
    dispatcher = AsyncDispatcher(DispatcherConfig(**options), journal=journal, loop=handler.loop)
    dispatcher.register(Work, handler, events=Job)
    return dispatcher


def test_a_row_is_written_once_the_coroutine_has_ended(tmp_path: Path, handler: Latched) -> None:
    dispatcher = AsyncDispatcher(name="jobs", journal=JournalWriter(tmp_path), loop=handler.loop)
    dispatcher.register(Work, handler)
    with dispatcher:
        for number in range(3):
            dispatcher.post(Keyed(number, key=number))
        handler.await_begun(0, 1, 2)
        handler.end(1, error=LookupError("lost"))
        until(lambda: dispatcher.stats().failed == 1)
        handler.end(2)
        until(lambda: dispatcher.stats().handled == 1)
        handler.end(0)

    rows = list(read_rows(tmp_path, EVENTS))
    assert [(row["seq"], row["entity"], row["outcome"]) for row in rows] == [
        (1, "job_1", "failed"),
        (2, "job_2", "handled"),
        (3, "job_0", "handled"),
    ]
    assert rows[0]["error"] == "LookupError: lost"
    assert rows[2]["finished_at"] >= rows[1]["finished_at"] > rows[2]["started_at"] >= rows[2]["enqueued_at"]
    assert verify(tmp_path).problems == ()


def test_a_coroutine_that_ends_while_a_handler_yields_gets_a_row_after_that_handlers(
    tmp_path: Path, handler: Latched
) -> None:
    journal = JournalWriter(tmp_path)
    dispatcher = AsyncDispatcher(journal=journal, loop=handler.loop)

    def yield_to_mail(event: Any) -> None:
        handler.end(0)
        while not dispatcher.stats().handled:
            dispatcher.mailbox_executor.yield_()
        journal.transition("Machine", "plain", Work.DO, Other.DO, Work.MORE, valid=True)

    dispatcher.register(Work, handler)
    dispatcher.register(Other, yield_to_mail)
    with dispatcher:
        dispatcher.post(Keyed(0))
        dispatcher.post(Event(Other.DO))
        assert dispatcher.await_drained(TIMEOUT_S)

    assert [row["event_class"] for row in read_rows(tmp_path, EVENTS)] == ["Other", "Work"]
    [transition] = read_rows(tmp_path, TRANSITIONS)
    assert transition["seq"] == 1
    assert verify(tmp_path).problems == ()


def test_rows_are_flushed_while_the_dispatcher_is_at_its_capacity(tmp_path: Path, handler: Latched) -> None:
    journal = JournalWriter(tmp_path)
    dispatcher = AsyncDispatcher(journal=journal)
    dispatcher.register(Work, aio.AsyncioHandler(handler, loop=handler.loop, capacity=1))
    with dispatcher:
        for number in range(4):
            dispatcher.post(Keyed(number, key=number))
        handler.end(0, 1)
        handler.await_begun(2)
        until(lambda: journal.log.frames and not journal.rows)
        handler.end(2, 3)

    assert len(list(read_rows(tmp_path, EVENTS))) == 4


def test_events_that_a_stop_gave_up_on_are_redelivered(tmp_path: Path, handler: Latched) -> None:
    dispatcher = write_ahead(tmp_path, handler, drain_timeout_s=0.02)
    dispatcher.start()
    for number, key in enumerate("aba"):
        assert dispatcher.post(Job(Work.DO, number, lock_key=ord(key)))
    handler.await_begun(0, 1)
    dispatcher.stop()
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert dispatcher.stats().discarded == 3

    again = Latched(handler.loop)
    redelivered: list[bool] = []
    again.then = lambda event: redelivered.append(dispatcher.is_redelivering())
    with write_ahead(tmp_path, again) as dispatcher:
        again.end(0, 1, 2)
        assert dispatcher.await_drained(TIMEOUT_S)
    assert redelivered == [True] * 3
    assert [row["redelivered"] for row in read_rows(tmp_path, EVENTS)] == [True] * 3
    assert verify(tmp_path).problems == ()


def test_a_post_that_waits_for_the_disk_does_not_block_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    journal = JournalWriter(tmp_path, JournalConfig(write_ahead=True, durability="sync"))
    dispatcher = AsyncDispatcher(journal=journal)
    got: list[int] = []
    dispatcher.register(Work, lambda event: got.append(event.number), events=Job)

    async def main() -> list[bool]:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", gate.handle)
            patch.setattr(os, "fsync", gate.handle)
            posting = asyncio.ensure_future(aio.post(dispatcher, Job(Work.DO, 1)))
            while not gate.entered.is_set():
                await asyncio.sleep(0)  # with a blocked loop, nothing would run here
            assert not posting.done()
            gate.opened.set()
            return [await posting, await aio.post(dispatcher, Job(Work.DO, 2))]

    with dispatcher:
        assert asyncio.run(asyncio.wait_for(main(), TIMEOUT_S)) == [True, True]
        assert dispatcher.await_drained(TIMEOUT_S)
    assert got == [1, 2]
