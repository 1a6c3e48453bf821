"""What a writer leaves that dies, and what recovery makes of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher import JournalError, JournalWriter
from dispatcher.journal import EVENTS, TRANSITIONS, recover, tail, verify
from dispatcher.journal.format import segments as segments_module
from dispatcher.journal.format.frames import ROWS
from dispatcher.journal.format.segments import (
    Manifest,
    open_segments,
    read_manifest,
    read_summary,
    segment_path,
    segments,
)

from .conftest import JobEvent, after_a_crash, files, flip, frames_of, seqs, write_event

Open = Callable[..., JournalWriter]


class KilledError(BaseException):
    """Stands for the end of the process."""


def open_segment(journal: Path) -> Path:
    [path] = open_segments(journal)
    return path


@pytest.fixture
def crashed(open_writer: Open, journal: Path, tmp_path: Path) -> Path:
    """One closed segment with two events, and an open one with three; the second event of each has two transitions."""
    writer = open_writer()
    write_event(writer)
    write_event(writer, transitions=2)
    writer.flush()
    writer.roll()
    write_event(writer, JobEvent("größe", {"text": 'a "quoted"\nword'}))
    writer.flush()
    write_event(writer, transitions=2)
    writer.flush()
    write_event(writer, transitions=1)
    writer.flush()
    return after_a_crash(journal, tmp_path / "crashed")


def test_a_segment_that_was_left_open_is_closed(crashed: Path) -> None:
    before = verify(crashed)

    recovered = recover(crashed)

    assert (before.events, before.problems, len(before.open_segments)) == (5, (), 1)
    assert recovered.done == ("segment-00000002.journal: closed: kept 3 events, cut 0 bytes",)
    assert (recovered.first_segment, recovered.next_segment, recovered.accepted) == (1, 3, ())
    assert (recovered.summary.next_seq, recovered.summary.next_accepted) == (6, 1)
    assert verify(crashed) == (5, 5, (), (), ())
    assert files(crashed) == ["journal.json", "segment-00000001.journal", "segment-00000002.journal"]
    assert seqs(crashed) == [1, 2, 3, 4, 5]
    assert seqs(crashed, TRANSITIONS) == [2, 2, 4, 4, 5]


def test_the_summary_of_a_recovered_segment_is_that_of_a_closed_one(
    crashed: Path, open_writer: Open, journal: Path
) -> None:
    recover(crashed)
    open_writer(journal.with_name("other"))

    summary = read_summary(segment_path(crashed, 2))

    assert summary is not None
    assert summary._replace(closed_at=0) == (3, 3, 3, 1, 0, 2990, 5020, 5, 0, 3, 1)


def test_a_journal_that_was_closed_needs_no_recovery(writer: JournalWriter, journal: Path) -> None:
    write_event(writer)
    writer.close()
    before = {name: (journal / name).read_bytes() for name in files(journal)}

    assert recover(journal).done == ()

    assert {name: (journal / name).read_bytes() for name in files(journal)} == before


def test_recovering_twice_is_as_good_as_once(crashed: Path) -> None:
    recover(str(crashed))
    before = {name: (crashed / name).read_bytes() for name in files(crashed)}

    assert recover(crashed).done == ()

    assert {name: (crashed / name).read_bytes() for name in files(crashed)} == before


@pytest.mark.long
def test_wherever_the_end_is_torn_off_the_rest_is_sound(crashed: Path, tmp_path: Path) -> None:
    path = open_segment(crashed)
    whole = path.read_bytes()
    ends = [frame.end for frame in frames_of(path)]

    for size in range(len(whole)):
        if size > ends[-2] or size % 17 == 0 or size in ends:
            path.write_bytes(whole[:size])
            kept = sum(end <= size for end in ends)
            found = verify(crashed)

            assert (found.problems, len(found.torn)) == ((), int(size not in (0, *ends))), size
            assert [row["seq"] for row in tail(crashed, 99)] == [1, 2, 3, 4, 5][: 1 + max(kept, 1)], size
            assert seqs(crashed, TRANSITIONS) == [2, 2, 4, 4, 5][: (2, 2, 2, 4, 5)[kept]], size


def test_wherever_the_end_is_torn_off_recovery_cuts_it(crashed: Path, tmp_path: Path) -> None:
    whole = open_segment(crashed).read_bytes()
    ends = [frame.end for frame in frames_of(open_segment(crashed))]
    path = tmp_path / "torn"

    for size in (0, 1, *(end + more for end in ends for more in (-1, 0, 1, 63, 64, 65, 100)), len(whole) - 50):
        shutil.copytree(crashed, path)
        open_segment(path).write_bytes(whole[:size])
        kept = sum(end <= size for end in ends)

        recover(path)

        found = verify(path)
        assert (found.problems, found.torn, found.open_segments) == ((), (), ()), size
        assert seqs(path) == [1, 2, 3, 4, 5][: 1 + max(kept, 1)], size
        assert seqs(path, TRANSITIONS) == [2, 2, 4, 4, 5][: (2, 2, 2, 4, 5)[kept]], size
        shutil.rmtree(path)


@pytest.mark.parametrize("tail_bytes", [b"\0" * 5000, b"garbage", b"\xffDJF\r\n\x1a\n" * 9, bytes(range(256)) * 9])
def test_bytes_behind_the_last_frame_are_cut_off(crashed: Path, tail_bytes: bytes) -> None:
    with open_segment(crashed).open("ab") as file:
        file.write(tail_bytes)

    assert len(verify(crashed).torn) == 1
    assert recover(crashed).done == (f"segment-00000002.journal: closed: kept 3 events, cut {len(tail_bytes)} bytes",)
    assert verify(crashed) == (5, 5, (), (), ())


def test_a_segment_of_which_nothing_is_left_is_set_aside(crashed: Path) -> None:
    path = open_segment(crashed)
    start = frames_of(path)[0]
    path.write_bytes(path.read_bytes()[: start.end + 8])

    done = recover(crashed).done

    aside = "segment-00000002.journal.open.aside"
    assert done == (f".segment-00000002.journal.open: has no intact frame but its start: set aside as {aside}",)
    assert files(crashed) == ["journal.json", "segment-00000001.journal", aside]
    assert read_manifest(crashed) == (Manifest(1, 1, True), None)


def test_intact_frames_behind_damage_are_kept(crashed: Path) -> None:
    frame = frames_of(open_segment(crashed))[2]
    flip(open_segment(crashed), frame.offset)

    done = recover(crashed).done

    length = frame.end - frame.offset
    assert done == (
        f".segment-00000002.journal.open: {length} bytes from byte {frame.offset} on hold no intact frame: skipped",
        "segment-00000002.journal: closed: kept 3 events, cut 0 bytes",
    )
    assert seqs(crashed) == [1, 2, 3, 5]
    assert verify(crashed).problems != ()


def test_a_manifest_that_is_damaged_or_missing_is_made_again(crashed: Path) -> None:
    flip(crashed / "journal.json", 3)
    assert recover(crashed).done[0] == "journal.json: is damaged"
    assert read_manifest(crashed) == (Manifest(1, 2, True), None)

    (crashed / "journal.json").unlink()
    recover(crashed)

    assert read_manifest(crashed) == (Manifest(1, 2, True), None)
    assert verify(crashed).problems == ()


@pytest.mark.parametrize("step", ["truncate", "rename", "fsync", "manifest"])
def test_recovery_that_is_killed_itself_can_be_repeated(
    crashed: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = open_segment(crashed)
    path.write_bytes(path.read_bytes()[:-5])

    def die(*args: object, **_: object) -> None:
        raise KilledError

    with monkeypatch.context() as kill:
        if step == "fsync":
            kill.setattr(segments_module.os, "fsync", die)
        elif step == "manifest":
            kill.setattr(Manifest, "write", die)
        elif step == "rename":
            kill.setattr(Path, "rename", die)
        else:
            kill.setattr(segments_module, "encode_trailer", die)
        with pytest.raises(KilledError):
            recover(crashed)

    recover(crashed)

    assert seqs(crashed, EVENTS) == [1, 2, 3, 4]
    assert verify(crashed) == (4, 4, (), (), ())


@pytest.mark.long
def test_a_writer_that_died_while_it_closed_a_segment_is_recovered(
    open_writer: Open, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step of the close and the start of the next segment, nothing is lost and nothing is wrong."""
    writer = open_writer(durability="sync", write_ahead=True, retention_bytes=1)
    crashes: list[Path] = []

    def crash_before(module: object, name: str) -> None:
        call = getattr(module, name)

        def look_and_call(*args: object, **named: object) -> object:
            crashes.append(after_a_crash(journal, tmp_path / f"crash {len(crashes)}"))
            return call(*args, **named)

        monkeypatch.setattr(module, name, look_and_call)

    for module, name in ((os, "write"), (os, "fsync"), (Path, "rename"), (Path, "replace"), (Path, "unlink")):
        crash_before(module, name)
    for _ in range(3):
        writer.append_accepted(b"{}")
        write_event(writer, transitions=1)
        writer.flush()
        writer.roll()
    writer.append_accepted(b"{}")
    writer.settle(2)
    writer.settle(1)
    writer.flush()
    writer.roll()
    writer.close()
    monkeypatch.undo()

    assert len(crashes) > 30
    for crash in crashes:
        assert verify(crash).problems == (), crash.name
        before = seqs(crash)
        recover(crash)
        after = seqs(crash)
        # Retention may have been about to remove the first.
        assert after in (before, before[1:])
        assert after == list(range(after[0], after[-1] + 1)) if after else len(before) <= 1
        assert verify(crash)[2:] == ((), (), ())


def test_a_recovered_journal_still_refuses_a_writer_that_is_not_write_ahead(crashed: Path, open_writer: Open) -> None:
    recover(crashed)

    with pytest.raises(JournalError, match="holds a journal already"):
        open_writer(crashed)


def test_a_journal_that_is_being_written_is_not_recovered(writer: JournalWriter, journal: Path) -> None:
    write_event(writer)
    writer.flush()

    with pytest.raises(JournalError, match="is being written by another process"):
        recover(journal)

    assert seqs(journal) == [1]


def test_a_journal_that_cannot_be_repaired_says_why(crashed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(segments_module.os, "fsync", fail)

    with pytest.raises(JournalError, match="crashed: cannot be recovered: No space left on device"):
        recover(crashed)


# -- the write-ahead log ---------------------------------------------------------------------------------------------


def outstanding(journal: Path) -> list[tuple[int, bytes]]:
    return [(accepted.seq, accepted.line) for accepted in recover(journal).accepted]


def test_events_that_were_accepted_and_not_handled_are_recovered_in_order(
    open_writer: Open, journal: Path, tmp_path: Path
) -> None:
    writer = open_writer(write_ahead=True)
    assert [writer.append_accepted(b'{"number":%d}' % number) for number in (1, 2, 3)] == [1, 2, 3]
    write_event(writer, accepted_seq=2)
    writer.flush()
    writer.roll()
    assert writer.append_accepted(b'{"number":4}') == 4
    writer.settle(1)
    write_event(writer, accepted_seq=0)
    writer.flush()

    recovered = recover(after_a_crash(journal, tmp_path / "crashed"))

    assert [each[:3] for each in recovered.accepted] == [(3, 1, b'{"number":3}'), (4, 2, b'{"number":4}')]
    summaries = [read_summary(path) for path in segments(tmp_path / "crashed")]
    assert [summary.recover_from for summary in summaries if summary is not None] == [1, 1]
    assert verify(tmp_path / "crashed").problems == ()


def test_an_event_whose_row_was_not_written_is_recovered(open_writer: Open, journal: Path, tmp_path: Path) -> None:
    writer = open_writer(write_ahead=True)
    writer.append_accepted(b"{}")
    writer.append_accepted(b"{}")
    write_event(writer, accepted_seq=1)
    writer.settle(2)

    assert outstanding(after_a_crash(journal, tmp_path / "crashed")) == [(1, b"{}"), (2, b"{}")]


def test_the_next_writer_goes_on_where_the_last_one_ended(open_writer: Open, journal: Path) -> None:
    writer = open_writer(write_ahead=True)
    for number in (1, 2, 3):
        writer.append_accepted(b'{"number":%d}' % number)
    write_event(writer, accepted_seq=2)
    writer.close()

    writer = open_writer(write_ahead=True)
    first_recovered = [accepted.seq for accepted in writer.recovered]
    assert writer.append_accepted(b'{"number":4}') == 4
    write_event(writer, accepted_seq=1, redelivered=True)
    writer.close()
    writer = open_writer(write_ahead=True)

    assert first_recovered == [1, 3]
    assert [accepted.seq for accepted in writer.recovered] == [3, 4]
    assert [accepted.segment for accepted in writer.recovered] == [1, 2]
    write_event(writer, accepted_seq=3)
    writer.close()
    assert seqs(journal) == [1, 2, 3]
    assert verify(journal) == (3, 0, (), (), ())


def test_recovery_reads_no_more_segments_than_it_needs(
    open_writer: Open, journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first two are damaged, unnoticed."""
    writer = open_writer(write_ahead=True)
    for number in range(3):
        writer.append_accepted(b"{}")
        write_event(writer, accepted_seq=number + 1)
        writer.flush()
        writer.roll()
    writer.append_accepted(b"{}")
    writer.close()
    for path in segments(journal)[:2]:
        frame = frames_of(path)[2]
        assert frame.header.kind == ROWS
        flip(path, frame.offset)

    assert outstanding(journal) == [(4, b"{}")]


def test_after_damage_events_are_handed_out_again_rather_than_lost(open_writer: Open, journal: Path) -> None:
    writer = open_writer(write_ahead=True)
    for number in range(3):
        writer.append_accepted(b"{}")
        write_event(writer, accepted_seq=number + 1)
        writer.flush()
    writer.close()
    path = segment_path(journal, 1)
    flip(path, frames_of(path)[4].offset + 70)
    flip(path, path.stat().st_size - 1)

    assert outstanding(journal) == [(2, b"{}")]


@pytest.mark.parametrize("damaged", [1, 2])
def test_numbers_go_on_behind_segments_of_which_nothing_is_left(open_writer: Open, journal: Path, damaged: int) -> None:
    """They began at 1 again, and the handling of a new event settled an old one of its number."""
    writer = open_writer(write_ahead=True)
    for _ in range(3):
        writer.append_accepted(b"{}")
        write_event(writer)
        writer.flush()
        writer.roll()
    writer.close()
    for path in segments(journal)[-damaged:]:
        path.write_bytes(b"")

    recovered = recover(journal)

    assert (recovered.summary.next_seq, recovered.summary.next_accepted) == (4 - damaged, 4 - damaged)
    assert recovered.next_segment == 4
    assert [accepted.seq for accepted in recovered.accepted] == list(range(1, 4 - damaged))


def test_a_last_segment_that_is_missing_is_not_written_anew(open_writer: Open, journal: Path) -> None:
    """The next writer took its number, so nothing showed any more that it was missing."""
    writer = open_writer(write_ahead=True)
    for _ in range(2):
        write_event(writer)
        writer.flush()
        writer.roll()
    writer.close()
    segment_path(journal, 2).unlink()

    writer = open_writer(write_ahead=True)
    write_event(writer)
    writer.close()

    assert [path.name for path in segments(journal)] == ["segment-00000001.journal", "segment-00000003.journal"]
    assert "segment-00000002.journal: is missing" in verify(journal).problems


def test_a_segment_whose_removal_was_cut_short_is_kept_for_the_next_retention(open_writer: Open, journal: Path) -> None:
    writer = open_writer(write_ahead=True)
    for _ in range(3):
        write_event(writer)
        writer.flush()
        writer.roll()
    writer.close()
    Manifest(2, 3, True).write(journal, sync=False)
    before = verify(journal).problems

    done = recover(journal).done

    assert before == ()
    assert done == ("journal.json: began at segment 2; segment 1 and the following ones are here",)
    assert verify(journal) == (3, 0, (), (), ())
    writer = open_writer(write_ahead=True, retention_bytes=1)
    write_event(writer)
    writer.flush()
    writer.roll()
    assert segments(journal) == []
