"""The journal's files: when segments are rolled and renamed, the manifest, retention, and which folders are refused."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher import JournalError, JournalWriter, PartitionedJournal
from dispatcher.journal import verify

from ...kit import until
from ...kit.journals import (
    JournalStage,
    Manifest,
    Open,
    files,
    flip,
    frames_of,
    kind_of,
    open_segments,
    read_manifest,
    read_summary,
    segment_path,
    segments,
    seqs,
    write_event,
    write_frames,
    write_segments,
)
from ...kit.scenarios import play


def manifest_of(journal: Path) -> Manifest | None:
    manifest, problem = read_manifest(journal)
    assert problem is None
    return manifest


REFUSED = "refused holds_a_journal_already;_choose_a_new_or_an_empty_folder"
PROMISES = {
    "an open segment is hidden, and gets its name when it is closed": (
        "open | event moves=1 | flush -> files .1 json | close -> files json 1 ; seqs 1"
    ),
    "rows are kept in memory until there are enough of them": (
        "open buffer_rows=2 | event -> seqs | event -> seqs 1 2"
    ),
    "rows of the open segment are read up to the last frame": (
        "open | segment 2 moves=1 | frame moves=1 | event -> seqs 1 2 3 ; moves 1 2 3 ; found 3 3"
    ),
    "a segment is rolled by age with the next flush": (
        "open segment_age_s=3600 | frame -> files .1 json | age 3600 | flush -> files .2 json 1 ; manifest 1 1 open"
    ),
    "an empty segment is not rolled": "open segment_bytes=1024 | age 3600 | flush | roll -> files .1 json",
    "without durability no flush waits for the disk": 'open durability="none" | frame 2 | flush -> syncs 0',
    "under sync each flush of rows waits for the disk": 'open durability="sync" | frame 2 | flush -> syncs 2',
    "a journal without events has no segments": ("open | close -> files json ; manifest 1 0 closed ; found 0 0"),
    "a close can be repeated, and a flush or a roll after it does nothing": (
        "open | event | close | close | flush | roll -> files json 1 ; manifest 1 1 closed"
    ),
    "a segment says from where on recovery needs the log": (
        "open write_ahead=true | accept 2 | segment seq=1 | event seq=2 | close -> needs 1:2 3:3"
    ),
    # The fourth is old, too, and stays: what comes after a segment that stays does as well.
    "segments that are old are removed when the next one is closed": (
        "open retention_s=3600 | segment 4 moves=1 | old 1 2 4 | segment moves=1"
        " -> closed 3 4 5 ; manifest 3 5 open ; seqs 3 4 5 ; moves 3 4 5 ; found 3 3"
    ),
    "the oldest segments beyond the size are removed": (
        "open retention_bytes=10000000 | segment | room 3.5 | segment 4 -> closed 3 4 5 ; manifest 3 5 open ; found 3 0"
    ),
    "without retention no segment is removed": "open | segment 3 | old 1 2 3 | close -> closed 1 2 3",
    "the close removes what is too much, and the segment that it closes stays": (
        "open | segment 2 | event | room 0 | close -> files json 3 ; manifest 3 3 closed ; found 1 0"
    ),
    "a segment that recovery needs is not removed": (
        "open write_ahead=true retention_bytes=1 | segment | accept | roll | accept | roll | accept | roll"
        " -> closed 2 3 4 | segment seq=2 -> closed 2 3 4 5 | segment seq=1 -> closed 4 5 6 ; found 2 0"
        " | settle 3 | segment -> closed ; manifest 8 7 open"
    ),
    "retention goes on in a journal that was recovered": (
        "open write_ahead=true | accept | roll | segment 2 | close"
        " | open write_ahead=true retention_bytes=1 | segment -> closed 1 2 3 4"
        " | segment seq=1 -> closed ; manifest 6 5 open"
    ),
    "a folder with a manifest is refused": f"open | close | note | {REFUSED} -> changed ; files json",
    "a folder with a closed segment is refused": (
        f"open | event | close | unlink json | note | {REFUSED} -> changed ; files 1"
    ),
    "a folder with an open segment is refused": (
        f"open | close | unlink json | touch .1 | note | {REFUSED} -> changed ; files .1"
    ),
    "a second writer of a folder is refused": (
        "open write_ahead=true | frame | note | refused is_being_written_by_another_process,_or_another_writer"
        " | refused is_being_written_by_another_process,_or_another_writer write_ahead=true -> changed"
        " | close | open write_ahead=true | close"
    ),
    "a refused writer does not keep the lock": (
        f"open | close | {REFUSED} | unlink json | mkdir .1 | refused cannot_be_read:_Is_a_directory write_ahead=true"
        " | rmdir .1 | open | close"
    ),
}


@pytest.mark.parametrize("script", PROMISES.values(), ids=PROMISES)
def test_the_files(stage: JournalStage, script: str) -> None:
    play(stage, script)


def test_a_segment_begins_with_its_start_and_ends_with_what_it_holds(writer: JournalWriter, journal: Path) -> None:
    write_frames(writer, transitions=2)
    write_event(writer)
    writer.close()

    frames = frames_of(segment_path(journal, 1))
    assert list(map(kind_of, frames)) == ["START", "ROWS", "ROWS", "END"]
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


def test_a_closed_segment_counts_its_accepted_events(open_writer: Open, journal: Path) -> None:
    writer = open_writer(write_ahead=True)
    writer.append_accepted(b'{"number":1}')
    writer.append_accepted(b'{"number":2}')
    write_segments(writer, accepted_seq=1)
    write_event(writer, accepted_seq=2)
    writer.close()

    first, second = (summary for summary in map(read_summary, segments(journal)) if summary is not None)
    assert (first.first_accepted, first.accepted, second.first_accepted, second.accepted) == (1, 2, 3, 0)
    assert (second.first_seq, second.events) == (2, 1)
    frame = frames_of(segment_path(journal, 1))[1]
    assert (kind_of(frame), frame.header.first_seq, frame.payload) == ("ACCEPTED", 1, b'{"number":1}')


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


def test_an_old_segment_is_closed_while_nothing_happens(open_writer: Open, journal: Path) -> None:
    writer = open_writer(segment_age_s=0.01)
    write_frames(writer)

    until(lambda: seqs(journal) == [1], "the segment's end")

    until(lambda: manifest_of(journal) == Manifest(1, 1, False), "its number in the manifest")
    assert files(journal) == [".segment-00000002.journal.open", "journal.json", "segment-00000001.journal"]


def test_an_age_may_be_longer_than_any_wait(open_writer: Open) -> None:
    """It ended the journal's own thread."""
    writer = open_writer(segment_age_s=1e9, durability="interval", sync_interval_ms=10**12)
    write_frames(writer)
    keeper = writer._keeper._thread.thread
    assert keeper is not None

    keeper.join(0.02)

    assert keeper.is_alive()


def test_under_interval_the_disk_has_it_soon_while_nothing_happens(open_writer: Open) -> None:
    writer = open_writer(durability="interval", sync_interval_ms=1)
    write_frames(writer)

    until(lambda: writer.log.syncs == 1, "the fsync")
    write_frames(writer)
    until(lambda: writer.log.syncs == 2, "the second fsync")


def test_the_journals_thread_starts_after_a_start_that_has_raised(
    open_writer: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as started, so nothing was synced at intervals any more."""
    writer = open_writer(durability="interval", sync_interval_ms=1)

    def raise_once(thread: threading.Thread) -> bool:
        monkeypatch.undo()
        raise RecursionError

    monkeypatch.setattr("dispatcher.util.threads.try_to_start", raise_once)
    write_event(writer)
    with pytest.raises(RecursionError):
        writer.flush()

    write_frames(writer)

    until(lambda: writer.log.syncs == 1, "the fsync")


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


# -- retention -------------------------------------------------------------------------------------------------------


def test_old_segments_are_removed_while_nothing_happens(open_writer: Open, journal: Path) -> None:
    writer = open_writer(retention_s=0.02, segment_age_s=0.01)

    write_frames(writer)

    until(lambda: manifest_of(journal) == Manifest(2, 1, False), "the segment's removal from the manifest")
    until(lambda: not segments(journal), "the segment's removal")
    assert seqs(journal) == []
    assert verify(journal).problems == ()


# -- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_made_with_its_parents_unless_one_is_a_file(open_writer: Open, tmp_path: Path) -> None:
    open_writer(tmp_path / "a" / "b").close()

    assert verify(tmp_path / "a" / "b").events == 0
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"file/journal: the journal cannot be written: Not a directory"):
        open_writer(tmp_path / "file" / "journal")


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
