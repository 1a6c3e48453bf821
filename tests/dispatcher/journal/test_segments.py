"""The journal's files: when segments are rolled and renamed, the manifest, retention, and which folders are refused."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher import JournalError, JournalWriter, PartitionedJournal
from dispatcher.journal import TRANSITIONS, verify
from dispatcher.journal.format.frames import ACCEPTED, END, ROWS, START
from dispatcher.journal.format.segments import (
    Manifest,
    open_segments,
    read_manifest,
    read_summary,
    segment_path,
    segments,
)
from dispatcher.util import threads

from ...kit import until
from .conftest import JobEvent, files, flip, frames_of, seqs, write_event

Open = Callable[..., JournalWriter]

OPEN_1 = ".segment-00000001.journal.open"
OPEN_2 = ".segment-00000002.journal.open"
CLOSED_1 = "segment-00000001.journal"
CLOSED_2 = "segment-00000002.journal"


def manifest_of(journal: Path) -> Manifest | None:
    manifest, problem = read_manifest(journal)
    assert problem is None
    return manifest


def test_an_open_segment_is_hidden_and_gets_its_name_when_it_is_closed(writer: JournalWriter, journal: Path) -> None:
    write_event(writer, transitions=1)
    writer.flush()
    while_open = files(journal)

    writer.close()

    assert while_open == [OPEN_1, "journal.json"]
    assert files(journal) == ["journal.json", CLOSED_1]
    assert seqs(journal) == [1]


def test_a_segment_begins_with_its_start_and_ends_with_what_it_holds(writer: JournalWriter, journal: Path) -> None:
    write_event(writer, transitions=2)
    writer.flush()
    write_event(writer)
    writer.close()

    frames = frames_of(segment_path(journal, 1))
    assert [frame.header.kind for frame in frames] == [START, ROWS, ROWS, END]
    assert [frame.header.number for frame in frames] == [0, 1, 2, 3]
    manifest = manifest_of(journal)
    assert manifest is not None
    start = {"format": 1, "segment": 1, "first_seq": 1, "first_accepted": 1, "journal": manifest.journal}
    assert json.loads(frames[0].payload) == start
    summary = read_summary(segment_path(journal, 1))
    assert summary is not None
    assert (summary.first_seq, summary.events, summary.transitions, summary.frames) == (1, 2, 2, 4)
    assert (summary.next_seq, summary.next_accepted, summary.recover_from) == (3, 1, 2)
    assert (summary.min_at, summary.max_at) == (990, 2020)
    assert abs(summary.closed_at - time.time_ns()) < 60_000_000_000
    header = frames[1].header
    assert (header.first_seq, header.events, header.transitions, header.min_at, header.max_at) == (1, 1, 2, 990, 1020)


def test_the_times_of_a_frame_are_those_of_its_rows_in_virtual_time(writer: JournalWriter, journal: Path) -> None:
    writer.attach(virtual=True)
    write_event(writer, transitions=1)
    write_event(writer)
    writer.close()

    header = frames_of(segment_path(journal, 1))[1].header
    assert (header.min_at, header.max_at) == (1000, 2000)


def test_accepted_events_are_counted_in_the_summary_and_say_what_recovery_needs(
    open_writer: Open, journal: Path
) -> None:
    writer = open_writer(write_ahead=True)
    writer.append_accepted(b'{"number":1}')
    writer.append_accepted(b'{"number":2}')
    write_event(writer, accepted_seq=1)
    writer.flush()
    writer.roll()
    write_event(writer, accepted_seq=2)
    writer.close()

    first, second = map(read_summary, segments(journal))
    assert first is not None
    assert second is not None
    assert (first.first_accepted, first.accepted, first.recover_from, first.outstanding_from) == (1, 2, 1, 2)
    assert (second.first_accepted, second.accepted, second.recover_from, second.outstanding_from) == (3, 0, 3, 3)
    assert (second.first_seq, second.events) == (2, 1)
    frame = frames_of(segment_path(journal, 1))[1]
    assert (frame.header.kind, frame.header.first_seq, frame.payload) == (ACCEPTED, 1, b'{"number":1}')


def test_a_segment_has_the_times_of_its_own_rows(writer: JournalWriter, journal: Path) -> None:
    write_event(writer, transitions=1)
    writer.flush()
    writer.roll()
    for _ in range(2):
        write_event(writer)
        writer.flush()
    writer.close()

    times = [(summary.min_at, summary.max_at) for summary in map(read_summary, segments(journal)) if summary]
    assert times == [(990, 1020), (1990, 3020)]


def test_rows_are_kept_in_memory_until_there_are_enough_of_them(open_writer: Open, journal: Path) -> None:
    writer = open_writer(buffer_rows=2)

    write_event(writer)
    after_one = seqs(journal)
    write_event(writer)

    assert after_one == []
    assert seqs(journal) == [1, 2]


def test_segments_are_rolled_by_size(open_writer: Open, journal: Path) -> None:
    writer = open_writer(segment_bytes=1024, buffer_rows=1)

    for _ in range(20):
        write_event(writer, transitions=2)
    writer.close()

    count = len(segments(journal))
    assert 3 < count < 20
    assert files(journal) == ["journal.json", *(f"segment-{number:08d}.journal" for number in range(1, count + 1))]
    for path in segments(journal)[:-1]:
        assert path.stat().st_size >= 1024
        # The frame that came to the size is the last: header, 300 bytes of rows or so, and the end.
        assert path.stat().st_size < 3072
    assert seqs(journal) == list(range(1, 21))
    assert verify(journal) == (20, 40, (), (), ())
    assert writer.log.segments_closed == count
    assert writer.log.bytes_written == sum(path.stat().st_size for path in segments(journal))


def test_an_event_and_its_transitions_are_in_one_segment(open_writer: Open, journal: Path) -> None:
    writer = open_writer(segment_bytes=1024, buffer_rows=3)
    for _ in range(20):
        write_event(writer, transitions=2)
    writer.close()

    for path in segments(journal):
        for frame in frames_of(path):
            assert frame.header.transitions == 2 * frame.header.events


def test_a_segment_is_rolled_by_age_with_the_next_flush(open_writer: Open, journal: Path) -> None:
    writer = open_writer(segment_age_s=3600.0)
    write_event(writer)
    writer.flush()
    young = files(journal)
    writer.log._segment.opened_s -= 3600.0

    writer.flush()

    assert young == [OPEN_1, "journal.json"]
    assert files(journal) == [OPEN_2, "journal.json", CLOSED_1]
    assert manifest_of(journal) == Manifest(1, 1, False)


def test_an_old_segment_is_closed_while_nothing_happens(open_writer: Open, journal: Path) -> None:
    writer = open_writer(segment_age_s=0.01)
    write_event(writer)
    writer.flush()

    until(lambda: seqs(journal) == [1], "the segment's end")

    until(lambda: manifest_of(journal) == Manifest(1, 1, False), "its number in the manifest")
    assert files(journal) == [OPEN_2, "journal.json", CLOSED_1]


def test_an_age_may_be_longer_than_any_wait(open_writer: Open) -> None:
    """It ended the journal's own thread."""
    writer = open_writer(segment_age_s=1e9, durability="interval", sync_interval_ms=10**12)
    write_event(writer)
    writer.flush()
    keeper = writer._keeper._thread.thread
    assert keeper is not None

    keeper.join(0.02)

    assert keeper.is_alive()


def test_an_empty_segment_is_not_rolled(open_writer: Open, journal: Path) -> None:
    writer = open_writer(segment_bytes=1024)
    writer.log._segment.opened_s -= 3600.0

    writer.flush()
    writer.roll()

    assert files(journal) == [OPEN_1, "journal.json"]


def test_under_interval_the_disk_has_it_soon_while_nothing_happens(open_writer: Open) -> None:
    writer = open_writer(durability="interval", sync_interval_ms=1)
    write_event(writer)
    writer.flush()

    until(lambda: writer.log.syncs == 1, "the fsync")
    write_event(writer)
    writer.flush()
    until(lambda: writer.log.syncs == 2, "the second fsync")


def test_the_journals_thread_starts_after_a_start_that_has_raised(
    open_writer: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as started, so nothing was synced at intervals any more."""
    writer = open_writer(durability="interval", sync_interval_ms=1)

    def raise_once(thread: threading.Thread) -> bool:
        monkeypatch.undo()
        raise RecursionError

    monkeypatch.setattr(threads, "try_to_start", raise_once)
    write_event(writer)
    with pytest.raises(RecursionError):
        writer.flush()

    write_event(writer)
    writer.flush()

    until(lambda: writer.log.syncs == 1, "the fsync")


@pytest.mark.parametrize(("durability", "syncs"), [("none", 0), ("sync", 2)])
def test_each_flush_waits_for_the_disk_under_sync_alone(open_writer: Open, durability: str, syncs: int) -> None:
    writer = open_writer(durability=durability)
    write_event(writer)
    writer.flush()
    write_event(writer)
    writer.flush()
    writer.flush()

    assert writer.log.syncs == syncs


def test_a_journal_without_events_has_no_segments(writer: JournalWriter, journal: Path) -> None:
    writer.close()

    assert files(journal) == ["journal.json"]
    assert manifest_of(journal) == Manifest(1, 0, True)
    assert verify(journal) == (0, 0, (), (), ())


def test_closing_can_be_repeated_and_flushing_after_it_does_nothing(writer: JournalWriter, journal: Path) -> None:
    write_event(writer)

    writer.close()
    writer.close()
    writer.flush()
    writer.roll()

    assert files(journal) == ["journal.json", CLOSED_1]
    assert manifest_of(journal) == Manifest(1, 1, True)


def test_an_event_after_the_close_is_refused(writer: JournalWriter, journal: Path) -> None:
    writer.close()
    write_event(writer)

    with pytest.raises(JournalError, match="journal: the journal is closed"):
        writer.flush()
    with pytest.raises(JournalError, match="journal: the journal is closed"):
        writer.append_accepted(b"{}")

    assert files(journal) == ["journal.json"]


def test_segments_are_ordered_by_number_and_not_by_name(tmp_path: Path) -> None:
    for name in ("segment-100000000.journal", "segment-00000002.journal", "segment-x.journal", ".segment-3.journal"):
        (tmp_path / name).touch()

    assert [path.name for path in segments(tmp_path)] == ["segment-00000002.journal", "segment-100000000.journal"]
    assert open_segments(tmp_path) == []


# -- the manifest ----------------------------------------------------------------------------------------------------


def test_a_change_of_any_byte_of_the_manifest_is_found(writer: JournalWriter, journal: Path) -> None:
    write_event(writer)
    writer.close()
    path = journal / "journal.json"
    data = path.read_bytes()

    for offset in range(len(data)):
        flip(path, offset, 1 << offset % 8)
        assert verify(journal).problems == ("journal.json: is damaged",), offset
        path.write_bytes(data)
    for size in range(0, len(data), 7):
        path.write_bytes(data[:size])
        assert verify(journal).problems == ("journal.json: is damaged",), size
    path.write_bytes(data + b" ")
    assert verify(journal).problems == ("journal.json: is damaged",)


def test_a_journal_of_another_format_is_refused(
    writer: JournalWriter, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr("dispatcher.journal.format.segments.FORMAT", 2)
        Manifest(1, 0, True).write(journal, sync=False)

    with pytest.raises(JournalError, match="journal: a journal of format 2, but this version reads format 1"):
        verify(journal)


def test_an_unreadable_manifest_is_reported(writer: JournalWriter, journal: Path) -> None:
    writer.close()
    (journal / "journal.json").unlink()
    (journal / "journal.json").mkdir()

    assert verify(journal).problems == ("journal.json: cannot be read: Is a directory",)


# -- retention -------------------------------------------------------------------------------------------------------


def make_old(journal: Path, *numbers: int) -> None:
    for number in numbers:
        os.utime(segment_path(journal, number), (1, 1))


def write_segments(writer: JournalWriter, count: int) -> None:
    for _ in range(count):
        write_event(writer, JobEvent("entity " * 20), transitions=1)
        writer.flush()
        writer.roll()


def test_segments_that_are_old_are_removed_when_the_next_one_is_closed(open_writer: Open, journal: Path) -> None:
    writer = open_writer(retention_s=3600.0)
    write_segments(writer, 4)
    make_old(journal, 1, 2, 4)

    write_segments(writer, 1)

    # The fourth is old, too, and stays: what comes after a segment that stays does as well.
    assert [path.name for path in segments(journal)] == [f"segment-0000000{number}.journal" for number in (3, 4, 5)]
    assert manifest_of(journal) == Manifest(3, 5, False)
    assert seqs(journal) == seqs(journal, TRANSITIONS) == [3, 4, 5]
    assert verify(journal).problems == ()


def test_old_segments_are_removed_while_nothing_happens(open_writer: Open, journal: Path) -> None:
    writer = open_writer(retention_s=0.02, segment_age_s=0.01)

    write_event(writer)
    writer.flush()

    until(lambda: manifest_of(journal) == Manifest(2, 1, False), "the segment's removal from the manifest")
    until(lambda: not segments(journal), "the segment's removal")
    assert seqs(journal) == []
    assert verify(journal).problems == ()


def test_the_oldest_segments_beyond_the_size_are_removed(open_writer: Open, journal: Path) -> None:
    writer = open_writer(retention_bytes=10_000_000)
    write_segments(writer, 1)
    size = segment_path(journal, 1).stat().st_size
    writer.log.config = writer.config.model_copy(update={"retention_bytes": 3 * size + size // 2})

    write_segments(writer, 4)

    assert [path.name for path in segments(journal)] == [f"segment-0000000{number}.journal" for number in (3, 4, 5)]
    assert manifest_of(journal) == Manifest(3, 5, False)
    assert verify(journal) == (3, 3, (), tuple(open_segments(journal)), ())


def test_without_retention_no_segment_is_removed(open_writer: Open, journal: Path) -> None:
    writer = open_writer()
    write_segments(writer, 3)
    make_old(journal, 1, 2, 3)

    writer.close()

    assert len(segments(journal)) == 3


def test_the_close_removes_what_is_too_much(open_writer: Open, journal: Path) -> None:
    writer = open_writer()
    write_segments(writer, 2)
    write_event(writer)
    writer.log.config = writer.config.model_copy(update={"retention_bytes": 1})

    writer.close()

    # The one that is closed by it stays.
    assert files(journal) == ["journal.json", "segment-00000003.journal"]
    assert manifest_of(journal) == Manifest(3, 3, True)
    assert verify(journal) == (1, 0, (), (), ())


def test_a_segment_that_recovery_needs_is_not_removed(open_writer: Open, journal: Path) -> None:
    writer = open_writer(write_ahead=True, retention_bytes=1)
    write_segments(writer, 1)
    for _ in range(3):
        writer.append_accepted(b'{"number":1}')
        writer.roll()
    held = [path.name for path in segments(journal)]
    write_event(writer, accepted_seq=2)
    writer.flush()
    writer.roll()
    held_by_the_first = [path.name for path in segments(journal)]

    write_event(writer, accepted_seq=1)
    writer.flush()
    writer.roll()

    assert held == held_by_the_first[:3] == [f"segment-0000000{number}.journal" for number in (2, 3, 4)]
    assert [path.name for path in segments(journal)] == [f"segment-0000000{number}.journal" for number in (4, 5, 6)]
    assert verify(journal).problems == ()
    writer.settle(3)
    write_segments(writer, 1)
    assert segments(journal) == []
    assert manifest_of(journal) == Manifest(8, 7, False)


def test_retention_goes_on_in_a_journal_that_was_recovered(open_writer: Open, journal: Path) -> None:
    writer = open_writer(write_ahead=True)
    writer.append_accepted(b'{"number":1}')
    writer.roll()
    write_segments(writer, 2)
    writer.close()

    writer = open_writer(write_ahead=True, retention_bytes=1)
    write_segments(writer, 1)
    while_needed = len(segments(journal))
    write_event(writer, accepted_seq=1)
    writer.flush()
    writer.roll()

    assert while_needed == 4
    assert segments(journal) == []
    assert manifest_of(journal) == Manifest(6, 5, False)


# -- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_made_with_its_parents(open_writer: Open, tmp_path: Path) -> None:
    open_writer(tmp_path / "a" / "b").close()

    assert verify(tmp_path / "a" / "b").events == 0


def test_a_folder_that_exists_and_is_empty_is_taken(open_writer: Open, journal: Path) -> None:
    journal.mkdir()

    open_writer()

    assert files(journal) == [OPEN_1, "journal.json"]


@pytest.mark.parametrize("left", ["journal.json", OPEN_1, CLOSED_1])
def test_a_folder_with_a_journal_is_refused(open_writer: Open, journal: Path, left: str) -> None:
    writer = open_writer()
    if left == CLOSED_1:
        write_event(writer)
    writer.close()
    if left != "journal.json":
        (journal / "journal.json").unlink()
    if left == OPEN_1:
        (journal / OPEN_1).touch()
    before = files(journal)

    with pytest.raises(JournalError, match="holds a journal already; choose a new or an empty folder"):
        open_writer()

    assert files(journal) == before == [left]


@pytest.mark.parametrize("write_ahead", [False, True])
def test_a_second_writer_of_a_folder_is_refused(open_writer: Open, journal: Path, write_ahead: bool) -> None:
    writer = open_writer(write_ahead=True)
    write_event(writer)
    writer.flush()
    before = files(journal)

    with pytest.raises(JournalError, match="journal: is being written by another process, or another writer of this"):
        open_writer(write_ahead=write_ahead)

    assert files(journal) == before
    writer.close()
    open_writer(write_ahead=True).close()


def test_a_folder_that_cannot_be_made_is_refused(open_writer: Open, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(JournalError, match=r"file/journal: the journal cannot be written: Not a directory"):
        open_writer(tmp_path / "file" / "journal")


def test_a_refused_folder_is_free_for_the_next_writer(open_writer: Open, journal: Path) -> None:
    """A refused writer does not keep the lock."""
    open_writer().close()
    with pytest.raises(JournalError, match="holds a journal already"):
        open_writer()
    (journal / "journal.json").unlink()
    (journal / OPEN_1).mkdir(parents=True)
    with pytest.raises(JournalError, match="cannot be read: Is a directory"):
        open_writer(write_ahead=True)
    (journal / OPEN_1).rmdir()

    open_writer().close()


@pytest.mark.parametrize("make", [JournalWriter, lambda path: PartitionedJournal(path).open(2)])
def test_a_folder_with_other_files_is_no_place_for_a_journal(tmp_path: Path, make: Callable[[Path], object]) -> None:
    for name in ("notes.txt", "photo.png", ".hidden"):
        (tmp_path / name).touch()

    with pytest.raises(JournalError, match=r"holds no journal, but notes\.txt and 1 more; choose a new"):
        make(tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == [".hidden", "notes.txt", "photo.png"]


@pytest.mark.parametrize("make", [JournalWriter, lambda path: PartitionedJournal(path).open(2)])
@pytest.mark.parametrize("path", ["file", "file/journal"])
def test_a_file_in_the_place_of_the_folder_is_not_answered_with_make_room(
    tmp_path: Path, make: Callable[[Path], object], path: str
) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(JournalError, match="The path, or a part of it, is a file: give the journal another folder"):
        make(tmp_path / path)


def test_the_hidden_files_of_a_file_system_leave_a_folder_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".keep").touch()

    JournalWriter(tmp_path).close()
