"""A writer that is dropped without `close` gives up its folder, its descriptors and its threads, as a crash would."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter
from dispatcher.journal import recover, verify

from ...kit import TIMEOUT_S, no_thread_is_left, until
from ...kit.journals import Job, Later, Posted, after_a_crash, is_locked, write_event, write_frames, write_segments

pytestmark = pytest.mark.long

AHEAD = JournalConfig(write_ahead=True, durability="interval")


def leave(_: JournalWriter) -> None: ...


def leave_rows(writer: JournalWriter) -> None:
    write_frames(writer)
    write_event(writer)
    writer.idle()


def close_a_segment(writer: JournalWriter) -> None:
    write_segments(writer)
    write_frames(writer)


def append(writer: JournalWriter) -> None:
    writer.append_accepted(b"{}")


def append_later(writer: JournalWriter) -> None:
    later = Later(b"{}")
    writer.append_later(later, wait=True)
    assert later.told.wait(TIMEOUT_S)


def give_to_a_dispatcher(writer: JournalWriter) -> None:
    dispatcher = AsyncDispatcher(journal=writer)
    dispatcher.register(Job, lambda _: None, events=Posted)
    assert dispatcher.event_handler.handle(Posted(Job.STARTED, 1))


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


USES = (leave, write_frames, leave_rows, close_a_segment, append, append_later, give_to_a_dispatcher)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts the descriptors in /proc")
@pytest.mark.parametrize("use", USES)
def test_a_dropped_writer_releases_its_descriptors_and_lock_at_once(
    journal: Path, tmp_path: Path, use: Callable[[JournalWriter], None]
) -> None:
    """Six descriptors and the lock stayed until the process ended."""
    gc.collect()
    before = open_descriptors()
    with no_thread_is_left():
        writer = JournalWriter(journal, AHEAD)
        use(writer)
        as_left = after_a_crash(journal, tmp_path / "copy")

        del writer
        if use is give_to_a_dispatcher:
            gc.collect()  # a dispatcher refers to itself

        another = JournalWriter(journal, AHEAD)
        recovered = len(another.recovered)
        another.close()
        del another

    assert recovered == len(recover(as_left).accepted)
    assert open_descriptors() == before
    assert verify(journal).problems == ()


def test_a_started_dispatcher_keeps_its_journal(journal: Path) -> None:
    dispatcher = AsyncDispatcher(journal=JournalWriter(journal, AHEAD))
    handled = threading.Event()
    dispatcher.register(Job, lambda _: handled.set(), events=Posted)
    dispatcher.start()
    post, wait, stop = dispatcher.event_handler.handle, dispatcher.wait_for_service_to_stop, dispatcher.stop
    del dispatcher
    gc.collect()

    assert post(Posted(Job.STARTED, 1))
    assert handled.wait(TIMEOUT_S)
    stop()
    assert wait(TIMEOUT_S)
    assert verify(journal).events == 1


@pytest.mark.parametrize("lock", ["_sync_lock", "_file_lock"])
def test_a_collector_that_drops_the_writer_amid_the_logs_work_leaves_the_release_to_the_journals_thread(
    journal: Path, lock: str
) -> None:
    """A file must not be closed between two steps of the thread that writes it, and no lock is taken out of order."""
    writer = JournalWriter(journal, AHEAD)
    write_frames(writer)
    log = writer.log
    with no_thread_is_left(), getattr(log, lock):
        del writer
        was_closed_amid = log.is_closed

    until(lambda: not is_locked(journal), "the release")
    assert not was_closed_amid
    assert log.is_closed


@pytest.mark.parametrize("last", ["pass", "del writer", "writer.flush()", "writer = [writer]; writer.append(writer)"])
def test_a_program_that_ends_without_a_close_says_nothing(tmp_path: Path, last: str) -> None:
    program = f"""
from dispatcher import JournalConfig, JournalWriter
from dispatcher.journal.turns import LaterAppend
writer = JournalWriter({str(tmp_path / "journal")!r}, JournalConfig(write_ahead=True))
writer.append_accepted(b"{{}}")
writer.append_later(LaterAppend(b"{{}}"), wait=True)
{last}
"""
    ended: Any = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", program],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (0, "")
