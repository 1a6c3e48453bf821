"""A journal's frames as Arrow batches: the same rows that `dispatcher.journal.read_rows` gives."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import JournalError
from dispatcher.journal import EVENTS, TABLES, TRANSITIONS, read_rows
from dispatcher.journal.format.frames import ROWS, Header
from pipeline.journal import Problem, read_batches
from pipeline.journal.arrow import DamagedFrameError, arrow_schema, decode_frames, open_frame

from ...kit import EFFORT
from ...kit.segment_files import (
    EventRow,
    Manifest,
    Row,
    Table,
    TransitionRow,
    encode_rows,
    segment_path,
    write_segments,
)
from .reading import batches_of, batches_where, numbers, planned, problems

pytestmark = pytest.mark.long

KINDS = [("rm", "AType", "A", "handled"), ("nm", "BType", "ÄÖ", "failed"), ("rm", "AType", "B", "unregistered")]
MOVES = [("RMApp", "NEW", "START", "RUNNING", True), ("Döner", "NEW", "KILL", "NEW", False)]

Segment = list[tuple[list[Row], list[tuple[Any, ...]], bool]]
"""Frames: events, transitions without their seqs, and whether time is virtual."""

LONGS = st.integers(0, 2**40)
TEXTS = st.one_of(st.none(), st.text(max_size=8))


@st.composite
def frames(draw: st.DrawFn) -> tuple[list[Row], list[tuple[Any, ...]], bool]:
    event = st.builds(
        EventRow,
        kind=st.integers(0, 2),
        entity=TEXTS,
        payload=TEXTS,
        started_at=LONGS,
        queue_ns=st.one_of(st.integers(0, 300), LONGS),
        handling_ns=LONGS,
        error=TEXTS,
        accepted_seq=LONGS,
        redelivered=st.booleans(),
    )
    move = st.tuples(st.integers(0, 1), st.text(max_size=8), LONGS, TEXTS)
    return draw(st.lists(event, max_size=5)), draw(st.lists(move, max_size=4)), draw(st.booleans())


def write(journal: Path, segments: list[Segment]) -> Path:
    """A journal of these segments."""

    def frame(events: list[Row], moves: list[tuple[Any, ...]], is_virtual: bool, first: int) -> Any:
        rows = [TransitionRow(kind, first + place, *columns) for place, (kind, *columns) in enumerate(moves)]
        return events, rows, is_virtual

    made = [[partial(frame, *each) for each in segment] for segment in segments]
    return write_segments(journal, made, KINDS, MOVES, accepted=b"{}")


def event(number: int, *, at: int | None = None, kind: int = 0) -> Row:
    return EventRow(kind=kind, entity=f"e{number}", started_at=number * 10 if at is None else at)


def rows_of(batches: Any) -> list[dict[str, Any]]:
    """A null is a missing key, as with `read_rows`."""
    return [
        {name: value for name, value in row.items() if value is not None}
        for batch in batches
        for row in batch.to_pylist()
    ]


def seqs(batches: Any) -> list[int]:
    return [row["seq"] for row in rows_of(batches)]


def no_damage(problem: Problem) -> None:
    raise AssertionError(str(problem))


# -- decoding --------------------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(segments=st.lists(st.lists(frames(), max_size=3), min_size=1, max_size=3))
def test_batches_have_the_rows_that_are_read_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, segments: list[Segment]
) -> None:
    journal = write(tmp_path_factory.mktemp("journals") / "journal", segments)

    for table in TABLES:
        batches = list(read_batches(journal, table, on_damage=no_damage))

        assert rows_of(batches) == list(read_rows(journal, table))
        assert all(batch.validate(full=True) is None for batch in batches)


def test_columns_come_in_the_order_that_was_asked_for(tmp_path: Path) -> None:
    journal = write(tmp_path / "journal", [[([event(1)], [], True)]])

    [batch] = read_batches(journal, EVENTS, ["entity", "seq"])

    assert batch.schema == pa.schema([pa.field("entity", pa.string()), pa.field("seq", pa.int64(), False)])
    assert batch.to_pylist() == [{"entity": "e1", "seq": 1}]


def test_small_frames_share_a_batch_and_a_big_one_has_its_own(tmp_path: Path) -> None:
    small: Segment = [([event(1)], [], True)]
    big: Segment = [([event(1)] * 70_000, [], True)]
    journal = write(tmp_path / "journal", [small + small, small + big + small])

    assert [batch.num_rows for batch in read_batches(journal, EVENTS, ["seq"])] == [3, 70_000, 1]


def test_a_folder_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="not a journal"):
        list(read_batches(tmp_path, EVENTS))


@pytest.mark.parametrize(
    ("events", "transitions", "said"),
    [(2, 0, "has 1 of kind, but its header says 2"), (1, 1, "has 0 of move.kind, but its header says 1")],
)
def test_a_frame_whose_rows_contradict_its_header_is_damaged(events: int, transitions: int, said: str) -> None:
    payload = encode_rows([event(1)], [], 1, KINDS, MOVES).payload

    with pytest.raises(DamagedFrameError, match=said):
        open_frame(Header(ROWS, 0, len(payload), 0, 1, events, transitions), payload, "here")


def test_a_frame_with_an_unlisted_kind_is_damaged() -> None:
    payload = encode_rows([event(1, kind=1)], [], 1, KINDS, MOVES).payload
    opened = open_frame(Header(ROWS, 0, len(payload), 0, 1, 1, 0), payload, "here")
    broken = opened._replace(payload=opened.payload._replace(kinds={EVENTS.name: []}))

    with pytest.raises(DamagedFrameError):
        decode_frames([broken], EVENTS, arrow_schema(EVENTS, ["event_type"]))


@pytest.mark.parametrize("data", [b"", b"\x02\x00\x00\x00{]", b"\x02\x00\x00\x00{}"])
def test_a_payload_that_is_none_is_damage(data: bytes) -> None:
    with pytest.raises(DamagedFrameError, match="cannot be read"):
        open_frame(Header(ROWS, 0, len(data), 0, 1, 1, 0), data, "here")


# -- passing over ----------------------------------------------------------------------------------------------------


def test_conditions_pass_over_frames_and_not_rows(tmp_path: Path) -> None:
    frames: Segment = [([event(1), event(2, kind=1)], [], True), ([event(3), event(4)], [], True)]
    journal = write(tmp_path / "journal", [frames])

    def found(**conditions: Any) -> list[int]:
        return seqs(batches_where(journal, EVENTS, **conditions))

    assert found(ranges={"seq": (2, None)}) == [1, 2, 3, 4]
    assert found(ranges={"seq": (3, None)}) == [3, 4]
    assert found(ranges={"seq": (None, 2)}) == [1, 2]
    assert found(ranges={"started_at": (21, None)}) == [3, 4]
    assert found(values={"event_class": frozenset({"BType"})}) == [1, 2]
    assert found(values={"event_class": frozenset({"BType"}), "event_type": frozenset({"A"})}) == []


@pytest.mark.parametrize(
    ("least", "most", "kept"), [(None, 1, [1, 2]), (5, None, [1, 2]), (6, None, []), (2, 3, [1, 2])]
)
def test_a_transition_may_be_made_between_two_events(
    tmp_path: Path, least: int | None, most: int | None, kept: list[int]
) -> None:
    """Its seq belongs to an event just outside its frame."""
    moves = [(0, "a", 1), (0, "b", 1)]
    journal = write(tmp_path / "journal", [[([event(1)], [], True), ([event(n) for n in (2, 3, 4)], moves, True)]])

    assert len(rows_of(batches_where(journal, TRANSITIONS, ranges={"seq": (least, most)}))) == len(kept)


def test_segments_without_wanted_rows_are_not_planned(tmp_path: Path) -> None:
    frame_of: list[Segment] = [[([event(n, at=n * 10)], [], True)] for n in (1, 2, 3)]
    journal = write(tmp_path / "journal", frame_of)

    def read(table: Table, **conditions: Any) -> list[int]:
        return [number for task in planned(journal, table, **conditions) for number in numbers(task)]

    assert read(EVENTS) == [1, 2, 3]
    assert read(EVENTS, ranges={"seq": (2, 2)}) == [2]
    assert read(EVENTS, ranges={"finished_at": (25, None)}) == [3]
    assert read(TRANSITIONS) == []


# -- tasks -----------------------------------------------------------------------------------------------------------


def test_small_segments_share_a_task_and_big_ones_are_divided(tmp_path: Path) -> None:
    small: Segment = [([event(1)], [], True)]
    big: Segment = [([event(1)] * 50, [], True)] * 4
    journal = write(tmp_path / "journal", [small, small, big, small])
    sizes = [segment_path(journal, number).stat().st_size for number in (1, 2, 3, 4)]

    tasks = [numbers(task) for task in planned(journal, EVENTS, sized=2 * sizes[0])]

    assert tasks[0] == [1, 2]
    assert tasks[-1] == [4]
    assert set(map(tuple, tasks[1:-1])) == {(3,)}
    assert len(tasks) == 2 + round(sizes[2] / (2 * sizes[0]))


@pytest.mark.parametrize("task_bytes", [1, 100, 333, 1000, 5000, 100_000])
def test_each_row_is_read_by_one_task(tmp_path: Path, task_bytes: int) -> None:
    frames: Segment = [([event(n) for n in range(7)], [], True)] * 9
    journal = write(tmp_path / "journal", [frames, frames])
    segment = segment_path(journal, 2)
    data = bytearray(segment.read_bytes())
    data[1500] ^= 1  # the search for the next frame goes across borders of tasks
    segment.write_bytes(data)
    lines: list[Problem] = []

    tasks = planned(journal, EVENTS, sized=task_bytes)
    found = [seqs(batches_of(task, EVENTS, lines.append)) for task in tasks]

    assert sorted(seq for of_task in found for seq in of_task) == [
        row["seq"] for row in read_rows(journal, EVENTS, on_damage=lambda _: None)
    ]
    assert len(lines) == 1


# -- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    frame = ([event(1), event(2)], [(0, "a", 1)], True)
    return write(tmp_path / "journal", [[frame, frame], [frame]])


def damage(journal: Path, table: Table = EVENTS) -> list[str]:
    found: list[Problem] = []
    for _ in read_batches(journal, table, on_damage=found.append):
        pass
    return [problem.problem for problem in found]


def test_a_flipped_byte_is_found_and_no_wrong_row_is_read(sound: Path) -> None:
    segment = segment_path(sound, 1)
    data = segment.read_bytes()
    rows = {table.name: rows_of(read_batches(sound, table)) for table in TABLES}

    for offset in range(0, len(data), max(1, 3 // EFFORT)):
        segment.write_bytes(data[:offset] + bytes([data[offset] ^ 0x10]) + data[offset + 1 :])

        assert problems(sound), offset
        for table in TABLES:
            found = rows_of(read_batches(sound, table, on_damage=lambda _: None))
            assert all(row in rows[table.name] for row in found)
            assert len(found) in (len(rows[table.name]), 2 * len(rows[table.name]) // 3)


def test_a_segment_removed_by_retention_is_reported_where_it_is_read_and_is_no_damage(sound: Path) -> None:
    [task] = planned([segment_path(sound, 1)], EVENTS)
    segment_path(sound, 1).unlink()
    Manifest(2, 2, True).write(sound, sync=False)
    found: list[Problem] = []

    list(batches_of(task, EVENTS, found.append))

    assert damage(sound) == []
    assert [problem.problem for problem in found] == [
        "segment-00000001.journal: was removed by retention before it was read"
    ]
