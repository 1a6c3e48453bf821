"""Reading and verifying the journal. What a crash leaves is in test_recovery.py, damage of all kinds in
test_corruption.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dispatcher import JournalError, JournalWriter
from dispatcher.journal import (
    EVENTS,
    TRANSITIONS,
    check_journal,
    entity_history,
    read,
    read_rows,
    recover,
    snapshot,
    tail,
    verify,
)
from dispatcher.journal.conditions import Conditions

from ...kit.journals import (
    JobEvent,
    JournalStage,
    Manifest,
    Open,
    files,
    flip,
    frames_of,
    open_segments,
    segment_path,
    seqs,
    write_event,
    write_frames,
    write_segments,
)
from ...kit.scenarios import play
from ...kit.segment_files import END, ROWS, START, Damage, encode_frame, encode_trailer


@pytest.fixture
def sound(open_writer: Open, journal: Path) -> Path:
    """Three segments of two frames of one event each, with one transition per event."""
    writer = open_writer()
    for number in range(6):
        write_event(writer, JobEvent(f"job_{number}"), transitions=1)
        writer.flush()
        if number in (1, 3):
            writer.roll()
    writer.close()
    return journal


def rewrite(segment: Path, *changed: tuple[int, bytes]) -> None:
    """Replace frames of a segment by others, as only a program that knows the format could."""
    frames = frames_of(segment)
    data = segment.read_bytes()
    parts = [data[frame.offset : frame.end] for frame in frames]
    for number, frame in changed:
        parts[number] = frame
    end_offset = sum(map(len, parts[:-1]))
    segment.write_bytes(b"".join((*parts, encode_trailer(end_offset))))


def with_header(path: Path, index: int, **values: Any) -> tuple[int, bytes]:
    """A frame of the segment with other values in its header."""
    frame = frames_of(path)[index]
    header = frame.header._replace(**values)
    counts = (header.first_seq, header.events, header.transitions)
    return index, encode_frame(header.segment, header.kind, header.number, frame.payload, *counts)


# -- verify ----------------------------------------------------------------------------------------------------------


def test_a_sound_journal_has_no_problems(sound: Path) -> None:
    assert verify(sound) == (6, 6, (), (), ())
    assert verify(str(sound)).events == 6


def test_open_segments_are_listed_and_their_rows_counted(writer: JournalWriter, journal: Path) -> None:
    write_frames(writer, transitions=1)

    assert verify(journal) == (1, 1, (), (journal / ".segment-00000001.journal.open",), ())


@pytest.mark.long
def test_a_flip_of_any_byte_is_found(writer: JournalWriter, journal: Path) -> None:
    write_event(writer, transitions=1)
    writer.close()
    path = segment_path(journal, 1)
    data = path.read_bytes()
    lengths = {frame.offset: frame.end - frame.offset for frame in frames_of(path)}

    for offset in range(len(data)):
        flip(path, offset, 1 << offset % 8)
        problems = verify(journal).problems
        path.write_bytes(data)

        assert problems, offset
        start = max((start for start in lengths if start <= offset), default=0)
        if offset < start + lengths[start]:
            assert f"{lengths[start]} bytes from byte {start} on hold no intact frame" in problems[0]


class Damaged(JournalStage):
    """A journal of three segments of two frames, each of one event with one transition."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        play(self, "open | frame 2 moves=1 | roll | frame 2 moves=1 | roll | frame 2 moves=1 | close")

    def do_swap(self, one: str, other: str) -> None:
        paths = self._path(one), self._path(other)
        for path, data in zip(paths, [path.read_bytes() for path in reversed(paths)], strict=True):
            path.write_bytes(data)

    def do_rename(self, old: str, new: str) -> None:
        self._path(old).rename(self._path(new))

    def do_claim(self, first: str, last: str) -> None:
        """The manifest says that these are the closed segments."""
        Manifest(int(first), int(last), True).write(self.folder, sync=False)

    def do_take_out(self, name: str, number: str) -> None:
        data, frame = self._path(name).read_bytes(), frames_of(self._path(name))[int(number)]
        self._path(name).write_bytes(data[: frame.offset] + data[frame.end :])

    def do_take_end_off(self, name: str) -> None:
        self._path(name).write_bytes(self._path(name).read_bytes()[: frames_of(self._path(name))[-1].offset])

    def do_add_frame(self, name: str) -> None:
        """Behind the end."""
        path, frames = self._path(name), frames_of(self._path(name))
        another = encode_frame(3, ROWS, 4, frames[1].payload, 7, 1, 1)
        path.write_bytes(path.read_bytes()[: frames[-1].end] + another)


TRAILER = "its_trailer_does_not_point_to_its_end"
NONE_OF_2, NONE_OF_3, NONE_OF_100000000 = (
    f"{n}:_N_bytes_from_byte_0_on_hold_no_intact_frame {n}:_has_no_end {n}:_{TRAILER} {n}:_has_no_intact_frame"
    for n in (2, 3, 100_000_000)
)
FOUND = {
    "the first segment is missing": "unlink 1 -> found 4 4 1:_is_missing ; seqs 3 4 5 6",
    "a segment in the middle is missing": (
        "unlink 2 -> found 4 4 2:_is_missing 3,_frame_1:_seq_5_follows_2 ; seqs 1 2 5 6"
    ),
    "the last segment is missing": "unlink 3 -> found 4 4 3:_is_missing ; seqs 1 2 3 4",
    "all segments are missing": "unlink 1 2 3 -> found 0 0 1:_is_missing 2:_is_missing 3:_is_missing ; seqs",
    "the manifest is missing": "unlink json -> found 6 6 json:_is_missing ; seqs 1 2 3 4 5 6",
    "the manifest and a segment in the middle are missing": (
        "unlink json 2 -> found 4 4 json:_is_missing 2:_is_missing 3,_frame_1:_seq_5_follows_2 ; seqs 1 2 5 6"
    ),
    # All numbers in between were looked for, one by one.
    "a segment has a number far off": (
        "rename 3 100000000 -> found 4 4 3_to_99999999:_are_missing 100000000:_the_manifest_ends_at_3"
        f" {NONE_OF_100000000} ; seqs 1 2 3 4"
    ),
    "the manifest does not know a segment": "claim 1 2 -> found 6 6 3:_the_manifest_ends_at_2 ; seqs 1 2 3 4 5 6",
    "two segments are exchanged": f"swap 2 3 -> found 2 2 {NONE_OF_2} {NONE_OF_3} ; seqs 1 2",
    "a frame was taken out": (
        "take_out 2 1 -> found 5 5 2:_1_frame_is_missing_at_byte_N 2,_frame_2:_seq_4_follows_2"
        f" 2,_frame_3:_the_segment_had_2_events_and_2_transitions,_now_1_and_1 2:_{TRAILER} ; seqs 1 2 4 5 6"
    ),
    "the end was taken off": f"take_end_off 3 -> found 6 6 3:_has_no_end 3:_{TRAILER} ; seqs 1 2 3 4 5 6",
    "a frame follows the end": (
        f"add_frame 3 -> found 7 7 3,_frame_4:_comes_after_the_end 3:_has_no_end 3:_{TRAILER} ; seqs 1 2 3 4 5 6 7"
    ),
    "a segment is empty": (f"empty 3 -> found 4 4 3:_has_no_end 3:_{TRAILER} 3:_has_no_intact_frame ; seqs 1 2 3 4"),
    "the first frame of each segment is damaged": (
        "flip 1 0 | flip 2 0 | flip 3 0 -> found 6 6 1:_N_bytes_from_byte_0_on_hold_no_intact_frame"
        " 2:_N_bytes_from_byte_0_on_hold_no_intact_frame 3:_N_bytes_from_byte_0_on_hold_no_intact_frame"
        " ; seqs 1 2 3 4 5 6"
    ),
}
"""What was done to the sound journal, all that is found, and the seqs that are read."""


@pytest.mark.parametrize("script", FOUND.values(), ids=FOUND)
def test_all_that_is_wrong_is_found_and_all_else_is_read(journal: Path, script: str) -> None:
    play(Damaged(journal), script)


def test_a_missing_open_segment_is_found(writer: JournalWriter, journal: Path) -> None:
    write_segments(writer)
    (journal / ".segment-00000002.journal.open").unlink()

    assert verify(journal).problems == ("segment 2: is missing: the manifest says that it is being written",)
    with pytest.raises(JournalError, match="the journal cannot be written: No such file or directory"):
        writer.close()


def test_an_open_segment_of_a_closed_journal_is_found(sound: Path) -> None:
    path = sound / ".segment-00000004.journal.open"
    start = encode_frame(4, START, 0, b'{"format": 1, "segment": 4, "first_seq": 7}')
    path.write_bytes(start)
    with_a_start_alone = verify(sound)
    rows = encode_frame(4, ROWS, 1, frames_of(segment_path(sound, 3))[1].payload, 7, 1, 1)
    path.write_bytes(start + rows)

    # That is what a crash at the start of the next writer leaves.
    assert with_a_start_alone == (6, 6, (), (path,), ())
    assert verify(sound).problems == (f"{path.name}: is open, and the manifest says that all are closed",)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"first_seq": 5}, "frame 1: seq 5 follows 2"),
        ({"first_seq": 2}, "frame 1: seq 2 follows 2"),
        ({"events": 2}, "frame 1: has (1, 1) rows, but its header says (2, 1)"),
        ({"transitions": 0}, "frame 1: has (1, 1) rows, but its header says (1, 0)"),
        ({"kind": 9}, "frame 1: is of the unknown kind 9"),
        ({"kind": START}, "frame 1: cannot be read: "),
        ({"kind": END}, "frame 1: cannot be read: "),
        ({"number": 2}, "1 frame is missing at byte {start}"),
        ({"segment": 3}, " bytes from byte {start} on hold no intact frame"),
    ],
    ids=str,
)
def test_a_frame_that_is_whole_and_does_not_fit_is_found(sound: Path, values: dict[str, int], problem: str) -> None:
    path = segment_path(sound, 2)
    problem = problem.format(start=frames_of(path)[0].end)
    rewrite(path, with_header(path, 1, **values))

    assert any(line.startswith(path.name) and problem in line for line in verify(sound).problems)


@pytest.mark.parametrize("payload", [b"", b"\x05\0\0\0null!", b"\xff\xff\xff\xff{}", b"\x02\0\0\0{}"])
def test_rows_that_are_none_are_found(sound: Path, payload: bytes) -> None:
    path = segment_path(sound, 2)
    rewrite(path, (1, encode_frame(2, ROWS, 1, payload, 3, 1, 1)))

    assert any(line.startswith(f"{path.name}, frame 1: cannot be read: ") for line in verify(sound).problems)


def test_a_gap_in_the_order_of_acceptance_is_found(open_writer: Open, journal: Path) -> None:
    writer = open_writer(write_ahead=True)
    for number in range(3):
        writer.append_accepted(b'{"number":%d}' % number)
    writer.close()
    path = segment_path(journal, 1)
    before = verify(journal)
    rewrite(path, with_header(path, 2, first_seq=3))

    assert before.problems == ()
    assert verify(journal).problems == (
        "segment-00000001.journal, frame 2: accepted seq 3 follows 1",
        "segment-00000001.journal, frame 3: accepted seq 3 follows 3",
    )


# -- read_rows -------------------------------------------------------------------------------------------------------


def test_damage_is_logged_without_an_on_damage(sound: Path, caplog: pytest.LogCaptureFixture) -> None:
    segment_path(sound, 2).unlink()

    assert seqs(sound) == [1, 2, 5, 6]
    assert [row["seq"] for row in tail(sound, 3)] == [2, 5, 6]

    assert caplog.messages == [f"{sound}: segment-00000002.journal: is missing"] * 2


@pytest.mark.parametrize("newest_first", [False, True])
def test_segments_and_frames_without_a_matching_row_are_passed_over(sound: Path, newest_first: bool) -> None:
    for number in (1, 2, 3):
        path = segment_path(sound, number)
        flip(path, frames_of(path)[1].end - 1)  # the rows of seq 1, 3 and 5
    journal = snapshot.look_at(sound)

    found = list(read.rows(journal, TRANSITIONS, where=Conditions({"seq": (5, 5)}), newest_first=newest_first))
    other = list(read.rows(journal, EVENTS, where=Conditions({"seq": (4, 4)}), columns=("seq", "outcome")))

    # The transitions of an event may be in a frame next to its own.
    lines = [each.line.partition(":")[0] for each in found if isinstance(each, Damage)]
    rows = [row["seq"] for each in found if not isinstance(each, Damage) for row in each]
    assert lines == ["segment-00000003.journal"]
    assert rows == ([6, 4] if newest_first else [4, 6])
    assert [list(each) for each in other if not isinstance(each, Damage)] == [[{"seq": 4, "outcome": "handled"}]]
    assert len(other) == 1


def test_readers_do_not_report_the_torn_tail_of_an_open_segment(
    writer: JournalWriter, journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_frames(writer, 2)
    [path] = open_segments(journal)
    path.write_bytes(path.read_bytes()[:-5])

    assert seqs(journal) == [1]
    assert [row["seq"] for row in tail(journal)] == [1]
    assert caplog.messages == []


@pytest.mark.parametrize(
    "read",
    [lambda path: list(read_rows(path, EVENTS)), verify, tail, recover, lambda path: entity_history(path, "job_1")],
)
def test_a_folder_without_a_journal_is_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(JournalError, match=r"none: no such journal folder"):
        read(tmp_path / "none")
    with pytest.raises(JournalError, match=r"file: no such journal folder"):
        read(tmp_path / "file")
    with pytest.raises(JournalError, match=r"not a journal: it has n"):
        read(tmp_path)
    assert files(tmp_path) == ["file"]


@pytest.mark.parametrize("name", ["journal.json", "segment-00000001.journal", ".segment-00000001.journal.open"])
def test_a_folder_with_any_of_a_journals_files_is_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()

    assert check_journal(str(tmp_path)) == tmp_path


def test_a_segment_that_cannot_be_read_is_named(sound: Path) -> None:
    path = segment_path(sound, 1)
    path.unlink()
    path.mkdir()

    for reads in (lambda: seqs(sound), lambda: verify(sound), lambda: tail(sound)):
        with pytest.raises(JournalError, match=r"segment-00000001.journal: cannot be read: Is a directory"):
            reads()


@pytest.mark.parametrize(
    ("script", "count", "found"),
    [
        *(("open | segment 3 | frame 3", count, list(range(7 - count, 7))) for count in range(7)),
        ("open | frame 6", 99, [1, 2, 3, 4, 5, 6]),
        ("open | event 5 | close", 2, [4, 5]),
        ("open", 10, []),
    ],
)
def test_tail_gives_the_last_events_in_order(stage: JournalStage, script: str, count: int, found: list[int]) -> None:
    play(stage, script)

    assert [row["seq"] for row in tail(stage.folder, count)] == found


# -- beside a writer -------------------------------------------------------------------------------------------------


def verified(journal: Path) -> list[int]:
    assert verify(journal).problems == ()
    return seqs(journal)


def history(journal: Path) -> list[int]:
    lines: list[str] = []
    found = entity_history(journal, "job_1", on_damage=lines.append)
    assert lines == []
    return [row.seq for row in found.transitions][::-1]


READERS = {
    "verify": verified,
    "rows": seqs,
    "transitions": lambda journal: seqs(journal, TRANSITIONS),
    "tail": lambda journal: [row["seq"] for row in tail(journal)],
    "history": history,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("module", "moment"),
    [
        (snapshot, "segments"),
        (snapshot, "open_segments"),
        (snapshot, "read_manifest"),
        (snapshot, "gone_between"),
        (snapshot, "FrameReader"),
        (read, "frames_in"),
    ],
)
@pytest.mark.parametrize(("after", "retention_bytes"), [(False, 2500), (True, 2500), (True, None)])
def test_a_reader_misses_nothing_of_a_journal_that_is_written_meanwhile(
    open_writer: Open,
    journal: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    reader: str,
    module: ModuleType,
    moment: str,
    after: bool,
    retention_bytes: int | None,
) -> None:
    """A segment that was closed between two listings was in neither, or seemed to be missing.

    Segments that retention removes meanwhile are missing from the beginning, without a report.
    """
    writer = open_writer(retention_bytes=retention_bytes)
    write_segments(writer, 2, transitions=1)
    write_frames(writer, transitions=1)
    look = getattr(module, moment)

    def look_and_roll(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(module, moment, look)
        looked = look(*args, **options) if after else None
        write_segments(writer, transitions=1)
        return looked if after else look(*args, **options)

    monkeypatch.setattr(module, moment, look_and_roll)

    read = READERS[reader](journal)

    assert read == list(range(read[0], read[-1] + 1))
    assert read[-1] >= 3
    assert read[0] == 1 or retention_bytes
    assert caplog.messages == []
