"""Rows that the journal's own thread writes while the handler thread is in a handler, or waits."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, Event, JournalConfig, JournalError, JournalWriter, aio
from dispatcher.journal import EVENTS, TRANSITIONS, read_rows, verify
from dispatcher.journal import keeper as keeper_module
from dispatcher.journal import writer as writer_module
from dispatcher.mailbox import MailboxExecutor

from ...journal_rows import begin
from ...kit import TIMEOUT_S, until
from ...kit.coroutines import running_loop
from ...kit.journals import Job, Open, State, frames_of, no_room, segments, seqs, write_event, write_frames


class Step(Enum):
    QUICK = 1
    AWAITED = 2
    LONG = 3


class Awaited(Enum):
    DONE = 1


@pytest.fixture(autouse=True)
def only_flushes_write_rows() -> None:
    """Not in this module."""


@pytest.fixture
def released() -> Iterator[threading.Event]:
    released = threading.Event()
    yield released
    released.set()


def test_rows_are_written_without_the_transitions_of_the_event_in_hand(open_writer: Open, journal: Path) -> None:
    writer = open_writer()
    write_frames(writer)
    write_event(writer, transitions=1)
    begin(writer, 3000)
    writer.transition("Job", "job_1", State.NEW, Job.STARTED, State.RUNNING, valid=True)

    until(lambda: seqs(journal) == [1, 2], "the row of the second event")

    assert seqs(journal, TRANSITIONS) == [2]
    writer.seq -= 1
    write_event(writer)
    writer.close()
    assert (seqs(journal), seqs(journal, TRANSITIONS)) == ([1, 2, 3], [2, 3])
    assert verify(journal).problems == ()


def test_rows_of_a_dispatcher_that_is_idle_from_its_start_are_written(open_writer: Open, journal: Path) -> None:
    """Rows that came within the delay of a flush without rows waited for the next event, or for the stop."""
    writer = open_writer()
    writer.idle()
    write_event(writer)
    writer.idle()

    until(lambda: seqs(journal) == [1], "the row")


@pytest.mark.parametrize(
    ("busy", "config"),
    [
        ("handler", JournalConfig()),
        ("mail", JournalConfig()),
        ("handler that yields", JournalConfig()),
        ("handler behind coroutines", JournalConfig()),
        ("handler", JournalConfig(durability="sync")),
        ("handler", JournalConfig(durability="interval")),
        ("handler", JournalConfig(segment_bytes=1024)),
    ],
)
def test_rows_of_the_events_before_a_long_run_are_written(
    journal: Path, released: threading.Event, busy: str, config: JournalConfig
) -> None:
    """They stayed in memory as long as the handler ran."""
    dispatcher = AsyncDispatcher(name="jobs", journal=JournalWriter(journal, config))
    executor: MailboxExecutor = dispatcher.mailbox_executor

    def wait(yields: bool = False) -> None:
        while yields and not released.is_set():
            executor.try_yield()
        assert released.wait(TIMEOUT_S)

    def handle(event: Event[Step]) -> None:
        if event.type is Step.LONG:
            wait(yields=busy == "handler that yields")

    async def end(event: object) -> None: ...

    dispatcher.register(Step, handle)
    post = dispatcher.event_handler.handle
    with running_loop() as loop, dispatcher:
        dispatcher.register(Awaited, aio.AsyncioHandler(end, loop=loop, key=lambda event: object()))
        for _ in range(50):
            post(Event(Awaited.DONE if busy == "handler behind coroutines" else Step.QUICK))
        if busy in ("mail", "handler behind coroutines"):  # otherwise it would come before the events that wait
            until(lambda: dispatcher.stats().handled == 50)
        if busy == "mail":
            executor.execute(wait, "long mail")
        else:
            post(Event(Step.LONG))

        until(lambda: seqs(journal) == list(range(1, 51)), "the rows of the 50 events")
        released.set()

    assert verify(journal).problems == ()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")  # Python 3.12: there are threads
def test_a_kill_amid_a_handler_leaves_the_rows_of_the_events_before_it(journal: Path) -> None:
    def handle(event: Event[Step]) -> None:
        if event.type is Step.LONG:
            until(lambda: seqs(journal) == [1, 2, 3])
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        try:
            dispatcher = AsyncDispatcher(journal=JournalWriter(journal))
            dispatcher.register(Step, handle)
            for step in (Step.QUICK, Step.QUICK, Step.QUICK, Step.LONG):
                dispatcher.event_handler.handle(Event(step))
            with dispatcher:
                dispatcher.await_drained(TIMEOUT_S)
        finally:
            os._exit(1)

    _, status = os.waitpid(child, 0)

    assert os.WTERMSIG(status) == signal.SIGKILL
    assert seqs(journal) == [1, 2, 3]


@pytest.mark.long
def test_no_row_is_lost_or_doubled_or_parted_from_its_transitions(
    open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal's own thread writes as often as it can, and changes to it come between any two steps."""
    monkeypatch.setattr(keeper_module, "LATE_MS", 0)
    monkeypatch.setattr(keeper_module, "FLUSH_DELAY_MS", 0)
    writer = open_writer(segment_bytes=1 << 16)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    count = 0
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while writer.log.frames < 50:
            assert time.monotonic() < deadline
            write_event(writer, transitions=count % 3)
            if count % 7 == 0:
                writer.settle(count)
            if count % 500 == 0:
                writer.flush()
            count += 1
    finally:
        sys.setswitchinterval(interval)
    writer.close()

    assert seqs(journal) == list(range(1, count + 1))
    assert seqs(journal, TRANSITIONS) == [number + 1 for number in range(count) for _ in range(number % 3)]
    assert verify(journal).problems == ()
    for path in segments(journal):
        for header in (frame.header for frame in frames_of(path, "ROWS")):
            numbers = range(header.first_seq - 1, header.first_seq - 1 + header.events)
            assert header.transitions == sum(number % 3 for number in numbers)


def test_a_flush_waits_for_rows_that_are_being_written(
    open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch, released: threading.Event
) -> None:
    """Under `sync`, they are on the disk on return."""
    writer = open_writer(durability="sync")
    write_frames(writer)
    encoding = threading.Event()
    encode_rows = writer_module.encode_rows

    def encode_slowly(*args: Any, **options: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            encoding.set()
            assert released.wait(TIMEOUT_S)
        return encode_rows(*args, **options)

    monkeypatch.setattr(writer_module, "encode_rows", encode_slowly)
    write_event(writer)
    assert encoding.wait(TIMEOUT_S)
    flushing = threading.Thread(target=writer.flush, daemon=True)
    flushing.start()
    flushing.join(0.05)

    assert flushing.is_alive()

    released.set()
    flushing.join(TIMEOUT_S)
    assert seqs(journal) == [1, 2]


def test_a_disk_that_fails_amid_a_handler_ends_the_journal(open_writer: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_writer()
    reported: list[JournalError] = []
    writer.attach(on_failure=reported.append)
    write_frames(writer)

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", no_room)
        write_event(writer)
        until(lambda: reported, "the failure")

    assert reported == [writer.failure]
    write_event(writer)
    with pytest.raises(JournalError, match="No space left"):
        writer.flush()


def test_rows_that_cannot_be_encoded_are_left_to_the_handler_thread(
    open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer()
    write_frames(writer)
    tried = threading.Event()

    def fail(*_: object, **options: object) -> None:
        tried.set()
        raise MemoryError

    with monkeypatch.context() as encoding:
        encoding.setattr(writer_module, "encode_rows", fail)
        write_event(writer)
        assert tried.wait(TIMEOUT_S)
        with pytest.raises(MemoryError):
            writer.flush()

    write_event(writer)
    until(lambda: [row["seq"] for row in read_rows(journal, EVENTS)] == [1, 2], "the next row")
