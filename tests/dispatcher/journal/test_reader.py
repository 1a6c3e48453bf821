"""Reading and verifying the journal. What a crash leaves is in test_recovery.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatcher import JournalError, JournalWriter
from dispatcher.journal import EVENTS, TABLES, TRANSITIONS, Table, check_journal, read_rows, reader, tail, verify

from .conftest import JobEvent, change_line, rows, write_event

Open = Callable[..., JournalWriter]


def without(column: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda row: {key: value for key, value in row.items() if key != column}


def with_value(column: str, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda row: row | {column: value}


def segment(journal: Path, table: Table, number: int = 1) -> Path:
    return journal / table.name / f"{table.name}-{number:08d}.jsonl"


@pytest.fixture
def sound(open_writer: Open, journal: Path) -> Path:
    """Three segments of two events each, with one transition per event."""
    writer = open_writer(segment_age_s=1e-9)
    for number in range(6):
        write_event(writer, JobEvent(f"job_{number}"), transitions=1)
        if number % 2:
            writer.flush()
    writer.close()
    return journal


# -- verify ----------------------------------------------------------------------------------------------------------


def test_a_sound_journal_has_no_problems(sound: Path) -> None:
    assert verify(sound) == (6, 6, (), ())
    assert verify(str(sound)).events == 6


def test_open_segments_are_told_and_not_counted(writer: JournalWriter, journal: Path) -> None:
    write_event(writer, transitions=1)
    writer.flush()

    found = verify(journal)

    assert (found.events, found.transitions, found.problems) == (0, 0, ())
    assert [path.name for path in found.open_segments] == [
        ".events-00000001.jsonl.open",
        ".transitions-00000001.jsonl.open",
    ]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_byte_that_breaks_a_row_is_found_wherever_it_is(sound: Path, table: Table) -> None:
    path = segment(sound, table, 3)
    data = path.read_bytes()

    for offset in range(len(data)):
        # No byte of UTF-8 text with the highest bit flipped is UTF-8 text.
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 0x80]) + data[offset + 1 :])

        problems = verify(sound).problems

        assert problems
        assert problems[0].startswith(f"{path}, line {1 + data[:offset].count(10)}: ")


@pytest.mark.parametrize("broken", ["{", '{"seq":1', "[1]", "3", "null", "", '"text"'])
def test_a_line_that_is_no_object_is_found(sound: Path, broken: str) -> None:
    path = segment(sound, EVENTS, 3)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(f"{lines[0]}{broken}\n")

    [problem, *_] = verify(sound).problems

    assert problem.startswith(f"{path}, line 2: not a JSON object")


def test_a_last_line_that_is_cut_off_is_found(sound: Path) -> None:
    path = segment(sound, TRANSITIONS, 3)
    path.write_bytes(path.read_bytes()[:-1])

    assert verify(sound).problems == (f"{path}, line 2: the line is cut off",)


@pytest.mark.parametrize(
    ("table", "column"),
    [(table, column.name) for table in TABLES for column in table.columns if not column.nullable],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize("change", [without, lambda column: with_value(column, None)], ids=["absent", "null"])
def test_a_missing_column_is_found(
    sound: Path, table: Table, column: str, change: Callable[[str], Callable[[dict[str, Any]], Any]]
) -> None:
    path = segment(sound, table, 3)

    change_line(path, 2, change(column))

    assert verify(sound).problems[0] == f"{path}, line 2: column {column} is missing"


@pytest.mark.parametrize("column", [column.name for column in EVENTS.columns if column.nullable])
def test_a_nullable_column_may_be_null_or_absent(sound: Path, column: str) -> None:
    change_line(segment(sound, EVENTS), 1, without(column))
    change_line(segment(sound, EVENTS), 2, with_value(column, None))

    assert verify(sound).problems == ()


@pytest.mark.parametrize(
    ("table", "column", "value", "type_"),
    [
        (EVENTS, "seq", "1", "long"),
        (EVENTS, "seq", 1.0, "long"),
        (EVENTS, "queue_ns", True, "long"),
        (EVENTS, "dispatcher", 1, "string"),
        (EVENTS, "payload", {"a": 1}, "string"),
        (TRANSITIONS, "valid", 1, "boolean"),
        (TRANSITIONS, "valid", "true", "boolean"),
        (TRANSITIONS, "entity", ["job_1"], "string"),
    ],
    ids=lambda value: getattr(value, "name", repr(value)),
)
def test_a_value_of_the_wrong_type_is_found(sound: Path, table: Table, column: str, value: Any, type_: str) -> None:
    path = segment(sound, table, 3)

    change_line(path, 2, with_value(column, value))

    assert verify(sound).problems[0] == f"{path}, line 2: column {column} should be a {type_}, got {value!r}"


def test_unknown_columns_are_found(sound: Path) -> None:
    change_line(segment(sound, EVENTS), 1, lambda row: row | {"b": 1, "a": 2})

    assert verify(sound).problems[0].endswith(", line 1: unknown columns: a, b")


@pytest.mark.parametrize(("seq", "after"), [(3, "seq 3 follows 1"), (1, "seq 1 follows 1"), (0, "seq 0 follows 1")])
def test_a_gap_in_the_order_of_events_and_a_repetition_are_found(sound: Path, seq: int, after: str) -> None:
    path = segment(sound, EVENTS)

    change_line(path, 2, with_value("seq", seq))

    assert verify(sound).problems[0] == f"{path}, line 2: {after}"


def test_events_that_do_not_begin_at_1_are_found(sound: Path) -> None:
    segment(sound, EVENTS, 1).unlink()

    assert verify(sound).problems[:2] == (
        f"{segment(sound, EVENTS, 2)}: a segment is missing before this one",
        f"{segment(sound, EVENTS, 2)}, line 1: seq 3 follows 0",
    )


def test_a_missing_segment_is_found(sound: Path) -> None:
    segment(sound, EVENTS, 2).unlink()

    problems = verify(sound).problems

    assert f"{segment(sound, EVENTS, 3)}: a segment is missing before this one" in problems
    assert f"{segment(sound, EVENTS, 3)}, line 1: seq 5 follows 2" in problems


def test_a_missing_last_segment_is_found_by_the_transitions_of_its_events(sound: Path) -> None:
    segment(sound, EVENTS, 3).unlink()

    assert verify(sound).problems == tuple(
        f"{segment(sound, TRANSITIONS, 3)}, line {line}: seq {seq} is of an event that is not in the journal"
        for line, seq in ((1, 5), (2, 6))
    )


def test_a_transition_of_an_unknown_event_is_found(sound: Path) -> None:
    path = segment(sound, TRANSITIONS, 3)

    change_line(path, 2, with_value("seq", 7))

    assert verify(sound).problems == (f"{path}, line 2: seq 7 is of an event that is not in the journal",)


def test_transitions_that_are_out_of_order_are_found(sound: Path) -> None:
    path = segment(sound, TRANSITIONS, 3)

    change_line(path, 2, with_value("seq", 4))

    assert verify(sound).problems == (f"{path}, line 2: seq 4 follows 5",)


def test_all_problems_are_told(sound: Path) -> None:
    for number in (1, 2, 3):
        change_line(segment(sound, TRANSITIONS, number), 2, without("machine"))

    assert len(verify(sound).problems) == 3


def test_a_journal_that_is_written_meanwhile_has_no_problems(
    open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments closed between the look at the events and the one at the transitions seemed to lack their events."""
    writer = open_writer(segment_age_s=1e-9)
    list_segments = reader.segments

    def list_and_roll(path: Path, table: Table) -> list[Path]:
        listed = list_segments(path, table)
        write_event(writer, transitions=1)
        writer.flush()
        return listed

    monkeypatch.setattr(reader, "segments", list_and_roll)

    assert verify(journal).problems == ()


# -- read_rows -------------------------------------------------------------------------------------------------------


def test_rows_come_from_all_closed_segments_in_order(sound: Path) -> None:
    assert [row["seq"] for row in read_rows(sound, EVENTS)] == [1, 2, 3, 4, 5, 6]
    assert [row["seq"] for row in read_rows(str(sound), TRANSITIONS)] == [1, 2, 3, 4, 5, 6]


def test_segments_are_ordered_by_number_and_not_by_name(sound: Path) -> None:
    segment(sound, EVENTS, 3).rename(sound / "events" / "events-100000000.jsonl")

    assert [row["seq"] for row in read_rows(sound, EVENTS)] == [1, 2, 3, 4, 5, 6]


def test_reading_ends_at_a_row_that_is_wrong(sound: Path) -> None:
    change_line(segment(sound, EVENTS, 2), 2, without("outcome"))
    read = read_rows(sound, EVENTS)
    before = [next(read)["seq"] for _ in range(3)]

    with pytest.raises(JournalError, match=r"events-00000002.jsonl, line 2: column outcome is missing"):
        next(read)

    assert before == [1, 2, 3]


@pytest.mark.parametrize("read", [lambda path: list(read_rows(path, EVENTS)), verify, tail, reader.recover])
def test_what_is_no_journal_is_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(JournalError, match=r"none: no such journal folder"):
        read(tmp_path / "none")
    with pytest.raises(JournalError, match=r"file: no such journal folder"):
        read(tmp_path / "file")
    with pytest.raises(JournalError, match=r"not a journal: it has no folder events and no folder transitions"):
        read(tmp_path)


def test_a_journal_needs_both_tables(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    with pytest.raises(JournalError, match=r"not a journal: it has no folder transitions$"):
        check_journal(tmp_path)
    (tmp_path / "transitions").mkdir()

    assert check_journal(str(tmp_path)) == tmp_path


def test_a_segment_that_cannot_be_read_is_named(sound: Path) -> None:
    path = segment(sound, EVENTS, 1)
    path.unlink()
    path.mkdir()

    with pytest.raises(JournalError, match=r"events-00000001.jsonl: cannot be read: Is a directory"):
        rows(sound, EVENTS)


# -- tail ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "seqs"),
    [(0, []), (1, [6]), (2, [5, 6]), (3, [4, 5, 6]), (6, [1, 2, 3, 4, 5, 6]), (99, [1, 2, 3, 4, 5, 6])],
)
def test_tail_gives_the_last_events_in_order(sound: Path, count: int, seqs: list[int]) -> None:
    assert [row["seq"] for row in tail(sound, count)] == seqs


def test_tail_looks_into_the_open_segment(open_writer: Open, journal: Path) -> None:
    writer = open_writer(segment_bytes=1024, buffer_rows=1)
    for _ in range(6):
        write_event(writer)

    assert [row["seq"] for row in tail(journal)] == [1, 2, 3, 4, 5, 6]
    assert list((journal / "events").glob(".*"))
    assert list((journal / "events").glob("e*"))


def test_tail_passes_over_a_row_that_is_being_written(writer: JournalWriter, journal: Path) -> None:
    write_event(writer)
    write_event(writer)
    writer.flush()
    [path] = (journal / "events").iterdir()
    path.write_bytes(path.read_bytes()[:-5])

    assert [row["seq"] for row in tail(journal)] == [1]


def test_tail_of_an_empty_journal_is_empty(writer: JournalWriter, journal: Path) -> None:
    assert tail(journal) == []


@pytest.mark.parametrize("moment", ["open_segments", "segments"])
def test_tail_misses_no_segment_that_is_closed_meanwhile(
    open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """One that was closed between the two listings was in neither, or was not found any more when it was read."""
    writer = open_writer(segment_bytes=1024)
    write_event(writer)
    writer.flush()
    listing = getattr(reader, moment)

    def list_and_roll(path: Path, table: Table) -> list[Path]:
        listed: list[Path] = listing(path, table)
        write_event(writer, JobEvent("big enough to roll" * 100))
        writer.flush()
        return listed

    monkeypatch.setattr(reader, moment, list_and_roll)

    assert [row["seq"] for row in tail(journal)] == [1, 2]
