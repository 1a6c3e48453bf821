"""When the journal cannot be written: disk full, read-only, gone, or the disk gives an error for an fsync."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    EventRefusedError,
    JournalConfig,
    JournalError,
    JournalWriter,
    ServiceState,
    aio,
)
from dispatcher.journal import recover, verify

from ...kit import TIMEOUT_S, Gate, until
from ...kit.dispatchers import hold
from ...kit.journals import Job, Open, Posted, files, frames_of, open_segments, seqs, write_event, write_frames


def full_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The disk takes `count` more bytes, and then no more."""
    write = os.write
    left = [count]

    def write_some(file: int, data: Any) -> int:
        if not left[0]:
            raise OSError(28, "No space left on device")
        written = write(file, data[: left[0]])
        left[0] -= written
        return written

    monkeypatch.setattr(os, "write", write_some)


def fail(*_: object, **__: object) -> Any:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("room", [0, 1, 63, 64, 100])
@pytest.mark.parametrize("cut_fails", [False, True])
def test_a_frame_for_which_there_is_no_room_is_cut_off(
    open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch, room: int, cut_fails: bool
) -> None:
    writer = open_writer()
    reported: list[JournalError] = []
    writer.attach(on_failure=reported.append)
    write_frames(writer, transitions=1)
    size = open_segments(journal)[0].stat().st_size
    write_event(writer, transitions=1)
    with monkeypatch.context() as disk:
        full_after(disk, room)
        if cut_fails:
            disk.setattr(os, "ftruncate", fail)
        with pytest.raises(
            JournalError, match=r"journal: the journal cannot be written: No space left on device\. Make"
        ):
            writer.flush()

    [path] = open_segments(journal)
    assert path.stat().st_size == size + (room if cut_fails else 0)
    assert writer.is_failed
    assert reported == [writer.failure]
    # Nothing comes after what could not be written, also if there is room again.
    write_event(writer)
    with pytest.raises(JournalError, match="No space left on device"):
        writer.flush()
    with pytest.raises(JournalError, match="No space left on device"):
        writer.append_accepted(b"{}")
    writer.close()
    assert len(reported) == 1
    assert seqs(journal) == [1]
    found = verify(journal)
    assert (found.problems, len(found.torn)) == ((), int(cut_fails and room > 0))
    recover(journal)
    assert verify(journal) == (1, 1, (), (), ())


def test_under_continue_the_failure_is_reported_once_and_later_calls_do_nothing(
    open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = open_writer(failure_policy="continue")
    reported: list[JournalError] = []
    writer.attach(on_failure=reported.append)
    write_frames(writer)
    with monkeypatch.context() as disk:
        full_after(disk, 10)
        write_frames(writer)

    for _ in range(3):
        before_ns = writer.flush_due_ns
        write_frames(writer)
        assert writer.rows == []
        assert writer.flush_due_ns > before_ns  # otherwise each event would be followed by a flush
    writer.roll()
    writer.close()

    assert reported == [writer.failure]
    [message] = caplog.messages
    assert "No space left on device" in message
    assert message.endswith("What is journaled so far stays; the dispatcher continues without it")
    recover(journal)
    assert seqs(journal) == [1]
    assert verify(journal).problems == ()


def roll_and_write(writer: JournalWriter) -> None:
    writer.roll()
    write_frames(writer, transitions=9)


@pytest.mark.parametrize("step", ["END", "rename", "next segment", "manifest"])
def test_a_segment_that_cannot_be_closed_loses_nothing(
    open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    writer = open_writer()
    write_frames(writer, transitions=1)
    with monkeypatch.context() as disk:
        if step == "END":
            full_after(disk, 40)
        elif step == "rename":
            disk.setattr(Path, "rename", fail)
        elif step == "next segment":
            full_after(disk, 600)
        else:
            disk.setattr(Path, "replace", fail)
        with pytest.raises(JournalError, match="the journal cannot be written: "):
            roll_and_write(writer)

    writer.close()
    assert seqs(journal)[:1] == [1]
    assert verify(journal).problems == ()
    recover(journal)
    assert seqs(journal)[:1] == [1]
    assert verify(journal)[2:] == ((), (), ())


def test_an_event_is_not_accepted_if_the_journal_fails_before_it_is_on_the_disk(
    open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread's failure closed the journal between the append and the fsync, which was taken for done."""
    writer = open_writer(durability="sync", write_ahead=True)
    commit = writer.log.commit

    def fail_and_commit() -> None:
        monkeypatch.undo()
        writer.log.fail(OSError(28, "No space left on device"))
        commit()

    monkeypatch.setattr(writer.log, "commit", fail_and_commit)

    with pytest.raises(JournalError, match="No space left on device"):
        writer.append_accepted(b"{}")


def test_an_event_that_is_in_the_log_is_accepted_though_its_segment_cannot_be_closed(
    open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused, and handled by the next start all the same."""
    writer = open_writer(write_ahead=True, segment_bytes=1024)
    monkeypatch.setattr(Path, "rename", fail)

    assert writer.append_accepted(b"x" * 2000) == 1

    assert writer.is_failed
    monkeypatch.undo()
    writer.close()
    assert [accepted.seq for accepted in recover(journal).accepted] == [1]


@pytest.mark.parametrize("moved", [True, False])
def test_a_folder_that_vanishes_is_noticed_with_the_next_frame(
    open_writer: Open, journal: Path, tmp_path: Path, moved: bool
) -> None:
    writer = open_writer()
    write_frames(writer)
    if moved:
        journal.rename(tmp_path / "elsewhere")
        journal.mkdir()
    else:
        for path in (*journal.iterdir(),):
            path.unlink()
        journal.rmdir()
    write_event(writer)

    with pytest.raises(JournalError, match="the journal cannot be written: No such file or directory"):
        writer.flush()

    writer.close()
    if moved:
        assert files(journal) == []
        assert seqs(tmp_path / "elsewhere") == [1]


def test_another_file_under_the_segments_name_is_noticed(open_writer: Open, journal: Path) -> None:
    writer = open_writer()
    [path] = open_segments(journal)
    path.rename(journal / "moved")
    path.write_bytes(b"")
    write_event(writer)

    with pytest.raises(JournalError, match="cannot be written: the segment that was being written is gone"):
        writer.flush()

    writer.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused(open_writer: Open, journal: Path) -> None:
    journal.mkdir(mode=0o500)

    with pytest.raises(JournalError, match="journal: the journal cannot be written: Permission denied"):
        open_writer()


FILL = """
import resource, signal, sys
from dispatcher import JournalConfig, JournalError, JournalWriter

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = JournalWriter(sys.argv[1], JournalConfig(write_ahead=True))
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
accepted = 0
try:
    while True:
        writer.append_accepted(b"x" * 700)
        accepted += 1
except JournalError as error:
    print(accepted, error)
"""


@pytest.mark.long
def test_a_file_that_may_not_grow_holds_all_that_was_accepted(journal: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(journal)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )

    # 158 bytes of start, and each time a header of 64 with 700 of payload.
    assert done.stdout.startswith("12 "), done
    assert "the journal cannot be written: File too large" in done.stdout
    assert len(frames_of(open_segments(journal)[0])) == 13
    assert len(recover(journal).accepted) == 12
    assert verify(journal).problems == ()


# -- the dispatcher --------------------------------------------------------------------------------------------------


def started(
    journal: Path,
    handler: Callable[[Any], object],
    *,
    capacity: int | None = None,
    key: Callable[[Any], Any] | None = None,
    **options: Any,
) -> AsyncDispatcher:
    config = DispatcherConfig(queue_capacity=capacity)
    dispatcher = AsyncDispatcher(config, journal=JournalWriter(journal, JournalConfig(**options)))
    dispatcher.register(Job, handler, events=Posted, coalesce_by=key)
    dispatcher.start()
    return dispatcher


@pytest.mark.parametrize("call", ["write", "fdatasync"])
def test_a_producer_is_refused_when_the_log_fails_and_the_dispatcher_stops(
    journal: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    dispatcher = started(journal, gate.handle, write_ahead=True, durability="sync")
    hold(dispatcher, gate, Posted(Job.STARTED, 1))
    with monkeypatch.context() as disk:
        disk.setattr(os, call, fail)
        accepted = dispatcher.event_handler.handle(Posted(Job.STARTED, 2))
    gate.opened.set()
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)

    assert not accepted
    assert dispatcher.stats().rejected == {"journal": 1}
    assert dispatcher.state is ServiceState.STOPPED
    assert isinstance(dispatcher.failure_cause, JournalError)
    assert "the journal cannot be written: Input/output error" in str(dispatcher.failure_cause)
    assert [event.number for event in gate.events] == [1]
    assert verify(journal).problems == ()
    # Its row could not be written, so it comes again; the second is in the log if only the wait for the disk failed.
    assert [accepted.seq for accepted in recover(journal).accepted] == ([1] if call == "write" else [1, 2])


@pytest.mark.parametrize(
    ("durability", "keyed"), [("none", False), ("interval", True), ("sync", False), ("sync", True)]
)
def test_under_continue_what_is_accepted_is_handled_and_all_else_refused(
    journal: Path,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    durability: Any,
    keyed: bool,
) -> None:
    """`handle` and `post_later` answered True although no event was journaled any more."""
    answers: list[bool] = []

    def handle(event: Any) -> None:
        gate.handle(event)
        answers.append(dispatcher.event_handler.handle(Posted(Job.ENDED, 9)))

    key = (lambda event: event.number) if keyed else None
    options = {"write_ahead": True, "durability": durability, "failure_policy": "continue"}
    dispatcher = started(journal, handle, capacity=1, key=key, **options)
    hold(dispatcher, gate, Posted(Job.STARTED, 1))
    assert dispatcher.event_handler.handle(Posted(Job.STARTED, 2))
    waiting = Future[bool]()
    thread = threading.Thread(
        target=lambda: waiting.set_result(dispatcher.event_handler.handle(Posted(Job.STARTED, 3))), daemon=True
    )
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", fail)
        later = dispatcher.post_later(Posted(Job.STARTED, 2)) if keyed else None
        thread.start()
        if not keyed:
            until(lambda: dispatcher.core.queue.room.waiters, "the post that waits for room")
        gate.opened.set()
        assert waiting.result(TIMEOUT_S) is False
    assert dispatcher.await_drained(TIMEOUT_S)

    assert dispatcher.event_handler.handle(Posted(Job.STARTED, 4)) is False
    assert dispatcher.post_nowait(Posted(Job.STARTED, 4)) is False
    refused = dispatcher.post_later(Posted(Job.STARTED, 5)).exception(TIMEOUT_S)
    assert isinstance(refused, EventRefusedError)
    assert refused.reason == "journal"
    assert asyncio.run(aio.post(dispatcher, Posted(Job.STARTED, 6))) is False
    assert [event.number for event in gate.events] == [1, 2]
    assert answers == [False, False]
    if later is not None:
        assert isinstance(later.exception(TIMEOUT_S), EventRefusedError)
    assert dispatcher.stats().rejected == {"journal": 7 + keyed}
    assert dispatcher.failure_cause is None
    dispatcher.stop()
    assert len([message for message in caplog.messages if "and accepts no more events" in message]) == 1


@pytest.mark.parametrize("durability", ["none", "sync"])
def test_refused_posts_keep_nothing_alive(journal: Path, monkeypatch: pytest.MonkeyPatch, durability: Any) -> None:
    """Each grew the traceback of the one error that is raised for all, and a daemon posts on under `continue`."""
    config = JournalConfig(write_ahead=True, durability=durability, failure_policy="continue")
    writer = JournalWriter(journal, config)
    with AsyncDispatcher(journal=writer) as dispatcher:
        dispatcher.register(Job, lambda event: None, events=Posted)
        monkeypatch.setattr(os, "write", fail)
        for number in range(100):
            assert not dispatcher.post(Posted(Job.STARTED, number))
            assert dispatcher.post_later(Posted(Job.STARTED, number)).exception(TIMEOUT_S) is not None

    assert writer.failure is not None
    assert len(list(traceback.walk_tb(writer.failure.__traceback__))) < 20


def test_a_handler_that_posts_while_draining_without_a_journal_is_refused_for_the_journal(
    journal: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[bool] = []

    def handle(event: Any) -> None:
        gate.handle(event)
        answers.append(dispatcher.event_handler.handle(Posted(Job.ENDED, 9)))

    dispatcher = started(journal, handle, write_ahead=True, failure_policy="continue")
    hold(dispatcher, gate, Posted(Job.STARTED, 1))
    stopping = threading.Thread(target=dispatcher.stop, daemon=True)
    stopping.start()
    until(lambda: dispatcher.core.queue.phase, "the drain")
    monkeypatch.setattr(os, "write", fail)
    gate.opened.set()
    stopping.join(TIMEOUT_S)

    assert answers == [False]
    assert dispatcher.stats().rejected == {"journal": 1}


def test_a_journal_that_fails_while_nothing_is_posted_stops_the_dispatcher(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: list[Posted] = []
    dispatcher = started(journal, handled.append, durability="interval", sync_interval_ms=1)
    monkeypatch.setattr(os, "fdatasync", fail)
    dispatcher.event_handler.handle(Posted(Job.STARTED, 1))

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)

    assert "Input/output error" in str(dispatcher.failure_cause)
    assert [event.number for event in handled] == [1]
