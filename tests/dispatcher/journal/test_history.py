"""An entity's history: what the whole journal says about it, with and without the indexes of its segments."""

from __future__ import annotations

import os
import shutil
import threading
from array import array
from collections.abc import Callable, Sequence
from contextlib import closing
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import JournalConfig, JournalWriter
from dispatcher.errors import JournalError
from dispatcher.journal import EVENTS, TRANSITIONS, read_rows, recover, verify
from dispatcher.journal.format.history_index import (
    HistoryIndex,
    UnsoundIndexError,
    encode_index,
    header_for,
    index_path,
    segment_of,
)
from dispatcher.journal.format.segments import read_end, segments
from dispatcher.journal.history import EntityHistory, HistoryRow, entity_history
from dispatcher.journal.indexing import index_journal

from ...journal_rows import begin, end
from ..conftest import TIMEOUT_S
from .conftest import after_a_crash, flip

Open = Callable[..., JournalWriter]


class State(Enum):
    NEW = 1
    DONE = 2


class Cause(Enum):
    GO = 1


def write(
    writer: JournalWriter, entity: str | None, *moved: str, machine: str = "Job", error: str | None = None
) -> None:
    """An event about `entity`, and transitions of `moved` that it made."""
    begin(writer, (writer.seq + 1) * 1000)
    for name in moved:
        writer.transition(machine, name, State.NEW, Cause.GO, State.DONE, valid=True)
    outcome = "handled" if error is None else "failed"
    end(writer, "central", "Cause", "GO", outcome, entity=entity, queue_ns=10, handling_ns=20, error=error)


def write_segments(writer: JournalWriter, count: int = 3, entities: int = 7) -> None:
    """Closed segments of several frames, and an open one; entities come back in each."""
    for segment in range(count + 1):
        for number in range(40):
            name = f"job_{number % entities}"
            write(writer, name, name, *(["task_1"] if number % 5 == 0 else []))
            if number % 10 == 9:
                writer.flush()
        if segment < count:
            writer.roll()


def scanned(path: Path, entity: str, machine: str | None = None) -> list[HistoryRow]:
    """The entity's history from all rows of the journal, newest first."""
    events = {row["seq"]: row for row in read_rows(path, EVENTS)}
    found: list[tuple[int, int, HistoryRow]] = []
    for place, moved in enumerate(read_rows(path, TRANSITIONS)):
        if moved["entity"] == entity and machine in (None, moved["machine"]):
            fields = {name: value for name, value in moved.items() if name != "entity"}
            found.append((moved["seq"], place, HistoryRow(**fields, **event_fields(events.get(moved["seq"])))))
    moved_at = {row["seq"] for row in read_rows(path, TRANSITIONS) if row["entity"] == entity}
    for seq, event in events.items():
        if event.get("entity") == entity and machine is None and seq not in moved_at:
            about = event_fields(event)
            row = HistoryRow(seq, event["started_at"], None, None, event["event_type"], None, None, **about)
            found.append((seq, 0, row))
    return [row for _, _, row in sorted(found, key=lambda each: each[:2], reverse=True)]


def event_fields(event: dict[str, Any] | None) -> dict[str, Any]:
    if event is None:
        return {}
    fields = {name: value for name, value in event.items() if name not in ("seq", "event_type", "entity")}
    return {**fields, "event_entity": event.get("entity")}


def whole(path: Path, entity: str, **options: Any) -> EntityHistory:
    return entity_history(path, entity, limit=10_000, **options)


def indexes(path: Path) -> list[Path]:
    return sorted(path.glob("*.history"))


def join_indexer(journal: Path) -> None:
    for thread in threading.enumerate():
        if thread.name == f"journal-{journal.name}-index":
            thread.join(TIMEOUT_S)


@pytest.fixture
def indexed(open_writer: Open, journal: Path) -> Path:
    """Three closed segments with their indexes, and an open one."""
    write_segments(open_writer())
    assert index_journal(journal) == 3
    return journal


def test_a_row_has_the_transition_and_the_event_that_made_it(open_writer: Open, journal: Path) -> None:
    writer = open_writer()
    write(writer, "node_1", "job_1", error="ValueError: no")
    write(writer, "job_1")
    writer.flush()

    found = entity_history(journal, "job_1")

    about = {"dispatcher": "central", "event_class": "Cause", "redelivered": False, "queue_ns": 10, "handling_ns": 20}
    assert found == EntityHistory(
        [
            HistoryRow(
                2, 2000, None, None, "GO", None, None, event_entity="job_1", enqueued_at=1990, started_at=2000,
                finished_at=2020, outcome="handled", **about,
            ),
            HistoryRow(
                1, 1000, "Job", "NEW", "GO", "DONE", True, event_entity="node_1", enqueued_at=990, started_at=1000,
                finished_at=1020, outcome="failed", error="ValueError: no", **about,
            ),
        ],
        complete=True,
    )  # fmt: skip


@pytest.mark.parametrize("entity", ["job_3", "task_1"])
def test_the_history_is_the_same_with_and_without_the_indexes(indexed: Path, entity: str) -> None:
    expected = scanned(indexed, entity)
    assert len(expected) > 20

    assert whole(indexed, entity) == EntityHistory(expected, complete=True)
    for path in indexes(indexed):
        path.unlink()
        assert whole(indexed, entity) == EntityHistory(expected, complete=True)
    assert index_journal(indexed) == 3
    assert whole(indexed, entity) == EntityHistory(expected, complete=True)


def test_an_indexed_look_up_reads_no_frame_without_the_entity(indexed: Path) -> None:
    damaged = segments(indexed)[0]
    with damaged.open("r+b") as file:  # its frames, but neither its end nor its size
        file.seek(200)
        file.write(bytes(1000))

    assert entity_history(indexed, "job_9") == EntityHistory([], complete=True)
    assert not whole(indexed, "job_3").complete
    assert whole(indexed, "job_3").transitions == scanned(indexed, "job_3")


def test_a_cut_index_is_not_used_and_is_made_anew(indexed: Path) -> None:
    expected = scanned(indexed, "job_3")
    path = indexes(indexed)[1]
    sound = path.read_bytes()

    for size in (0, 1, 40, 60, len(sound) // 2, len(sound) - 1):
        path.write_bytes(sound[:size])
        assert whole(indexed, "job_3") == EntityHistory(expected, complete=True), size
    path.write_bytes(sound + b"\0")

    assert whole(indexed, "job_3") == EntityHistory(expected, complete=True)
    assert index_journal(indexed) == 1
    assert path.read_bytes() == sound


@pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.slow)])
def test_no_changed_byte_of_an_index_changes_a_history(indexed: Path, step: int) -> None:
    names = ("job_3", "task_1", "job_99")
    expected = {name: scanned(indexed, name) for name in names}
    path = indexes(indexed)[1]
    sound = path.read_bytes()

    for offset in range(0, len(sound), step):
        flip(path, offset, 1 << offset % 8)
        for name in names:
            assert whole(indexed, name) == EntityHistory(expected[name], complete=True), offset
        path.write_bytes(sound)


def test_the_index_of_another_segment_or_of_an_earlier_one_is_not_used(indexed: Path, tmp_path: Path) -> None:
    expected = scanned(indexed, "job_3")
    first, second, third = indexes(indexed)
    with closing(JournalWriter(tmp_path / "other", JournalConfig(history_index=False))) as other:
        write_segments(other, count=1, entities=2)
    index_journal(tmp_path / "other")

    shutil.copy(first, second)
    shutil.copy(indexes(tmp_path / "other")[0], first)
    third.unlink()
    third.mkdir()

    assert whole(indexed, "job_3") == EntityHistory(expected, complete=True)
    assert sum("segment-0000000" in line for line in verify(indexed).problems) == 3
    third.rmdir()
    assert index_journal(indexed) == 3
    assert verify(indexed).problems == ()


@pytest.mark.parametrize(("frame_bytes", "frame"), [(8, 0), (1, 200)])
def test_a_forged_index_with_sound_checksums_is_not_used(indexed: Path, frame_bytes: int, frame: int) -> None:
    """Look-ups used to end in an OverflowError, or to leave the segment's rows out."""
    segment = segments(indexed)[1]
    end_of_segment = read_end(segment)
    assert end_of_segment is not None
    header = header_for(segment, end_of_segment, 2, 3)._replace(frame_bytes=frame_bytes)
    found = array("Q", sorted(crc32(name) << 32 | frame for name in (b"job_3", b"job_4", b"task_1")))

    index_path(segment).write_bytes(encode_index(header, array("Q", [0, 0]), [found]))

    with pytest.raises(UnsoundIndexError), HistoryIndex(index_path(segment)) as index:
        index.frames_of(b"job_3")
    assert whole(indexed, "job_3") == EntityHistory(scanned(indexed, "job_3"), complete=True)


def test_pages_follow_each_other_and_rows_of_one_event_stay_together(indexed: Path) -> None:
    expected = scanned(indexed, "job_3")
    pages: list[EntityHistory] = []
    before: int | None = None

    while not (pages and pages[-1].complete):
        pages.append(entity_history(indexed, "job_3", limit=7, before_seq=before))
        assert 0 < len(pages[-1].transitions) <= 7
        before = pages[-1].transitions[-1].seq

    assert [row for page in pages for row in page.transitions] == expected


def test_only_changes_of_state_are_found_if_only_they_are_wanted(open_writer: Open, journal: Path) -> None:
    """An entity that handled many events in one state had no place left for its changes."""
    with closing(open_writer()) as writer:
        write(writer, "job", "job")
        for _ in range(300):
            begin(writer, (writer.seq + 1) * 1000)
            writer.transition("Job", "job", State.DONE, Cause.GO, State.DONE, valid=True)
            end(writer, "central", "Cause", "GO", "handled", entity="job")
        writer.flush()
        write(writer, "job")  # alone in its frame, which has no transitions

    found = entity_history(journal, "job", limit=200, changes_only=True)

    assert [(row.from_state, row.to_state, row.seq) for row in found.transitions] == [("NEW", "DONE", 1)]
    assert found.complete


def test_an_event_with_more_rows_than_the_limit_comes_whole(open_writer: Open, journal: Path) -> None:
    writer = open_writer()
    write(writer, "job_1")
    write(writer, None, "job_1", "job_1", "job_1")
    writer.flush()

    found = entity_history(journal, "job_1", limit=2)

    assert ([row.seq for row in found.transitions], found.complete) == ([2, 2, 2], False)
    assert [row.seq for row in entity_history(journal, "job_1", limit=3, before_seq=2).transitions] == [1]
    with pytest.raises(ValueError, match="limit=0: must be at least 1"):
        entity_history(journal, "job_1", limit=0)


def test_a_folder_without_a_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no such journal folder"):
        entity_history(tmp_path / "none", "job_1")
    with pytest.raises(JournalError, match="not a journal"):
        entity_history(tmp_path, "job_1")


def test_a_damaged_frame_is_left_out_and_reported(indexed: Path) -> None:
    segment = segments(indexed)[1]
    flip(segment, segment.stat().st_size // 2)
    lines: list[str] = []

    found = whole(indexed, "job_3", on_damage=lines.append)

    assert found == EntityHistory(scanned(indexed, "job_3"), complete=False)
    assert [line.partition(":")[0] for line in lines] == [segment.name]


def test_a_missing_segment_makes_the_history_incomplete(indexed: Path) -> None:
    segments(indexed)[1].unlink()
    lines: list[str] = []

    found = whole(indexed, "job_3", on_damage=lines.append)

    assert found == EntityHistory(scanned(indexed, "job_3"), complete=False)
    assert lines == ["segment-00000002.journal: is missing"]


# -- the writer --------------------------------------------------------------------------------------------------------


def test_the_writer_indexes_what_it_has_closed(open_writer: Open, journal: Path) -> None:
    writer = open_writer(history_index=True)
    write_segments(writer)
    join_indexer(journal)

    assert [path.name for path in indexes(journal)] == [f".segment-0000000{number}.history" for number in (1, 2, 3)]
    assert whole(journal, "job_3") == EntityHistory(scanned(journal, "job_3"), complete=True)
    assert verify(journal).problems == ()


def test_a_look_up_has_the_writer_replace_an_unsound_index(open_writer: Open, journal: Path) -> None:
    writer = open_writer(history_index=True)
    write_segments(writer)
    join_indexer(journal)
    first, second, third = indexes(journal)
    sound = [path.read_bytes() for path in indexes(journal)]
    first.unlink()
    flip(second, second.stat().st_size - 5)
    third.write_bytes(third.read_bytes()[:100])

    whole(journal, "job_3")
    join_indexer(journal)

    whole(journal, "job_3")  # the flipped byte may lie in a page that the first look-up did not need
    join_indexer(journal)
    assert first.read_bytes() == sound[0]
    assert third.read_bytes() == sound[2]


def test_a_writer_that_continues_a_journal_indexes_what_it_finds(open_writer: Open, journal: Path) -> None:
    first = open_writer(write_ahead=True)
    write_segments(first)
    first.close()
    (journal / ".segment-00000099.history").write_bytes(b"left by a crash")
    assert not indexes(journal)[:-1]

    second = open_writer(write_ahead=True, history_index=True)
    write(second, "job_3")
    second.flush()
    second.roll()
    join_indexer(journal)

    assert [segment_of(path) for path in indexes(journal)] == segments(journal)


def test_closing_a_writer_ends_its_indexer(open_writer: Open, journal: Path) -> None:
    writer = open_writer(history_index=True, segment_bytes=1024)
    write_segments(writer)

    writer.close()

    assert not [thread for thread in threading.enumerate() if thread.name == f"journal-{journal.name}-index"]


def test_an_index_that_cannot_be_written_costs_a_warning_and_nothing_else(
    open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dispatcher.journal.indexing.write_index", full)
    writer = open_writer(history_index=True)
    write_segments(writer)
    join_indexer(journal)
    writer.close()

    assert [record.getMessage() for record in caplog.records] == [
        f"{journal}: the history cannot be indexed: No space left on device"
    ]
    assert whole(journal, "job_3") == EntityHistory(scanned(journal, "job_3"), complete=True)


def test_histories_are_right_while_the_writer_writes(open_writer: Open, journal: Path) -> None:
    writer = open_writer(history_index=True, segment_bytes=8192)
    written = 0  # rows of job_3 that are in the files; the writing thread sets it
    ended = threading.Event()

    def run() -> None:
        nonlocal written
        try:
            for number in range(600):
                write(writer, "job_3" if number % 3 == 0 else f"job_{number}")
                if number % 15 == 14:
                    writer.flush()
                    written = number // 3 + 1
        finally:
            ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    seen = 0
    while not ended.is_set():
        before = written
        found = whole(journal, "job_3")
        seqs = [row.seq for row in found.transitions]
        assert seqs == list(range(1, 3 * len(seqs), 3))[::-1]
        assert found.complete
        assert max(before, seen) <= len(seqs)
        seen = len(seqs)
    thread.join(TIMEOUT_S)

    assert len(whole(journal, "job_3").transitions) == 200


def test_retention_removes_an_index_with_its_segment(open_writer: Open, journal: Path) -> None:
    writer = open_writer(history_index=True, retention_bytes=9000)
    for _ in range(6):
        write_segments(writer, count=1)
        join_indexer(journal)
        assert whole(journal, "job_3").transitions == scanned(journal, "job_3")
        writer.roll()
        join_indexer(journal)

    kept = segments(journal)
    assert kept[0].name != "segment-00000001.journal"
    assert [segment_of(path) for path in indexes(journal)] == kept
    assert whole(journal, "job_3") == EntityHistory(scanned(journal, "job_3"), complete=False)
    assert verify(journal).problems == ()


def test_the_index_of_a_segment_that_retention_removes_meanwhile_is_not_kept(
    indexed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = segments(indexed)[0]
    index_path(segment).unlink()
    replace = Path.replace

    def removed_before(draft: Path, path: Path) -> Path:
        segment.unlink()
        index_path(segment).unlink(missing_ok=True)
        return replace(draft, path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", removed_before)
        index_journal(indexed)

    assert not index_path(segment).exists()


def test_recovery_keeps_the_indexes_and_the_history(indexed: Path, tmp_path: Path) -> None:
    crashed = after_a_crash(indexed, tmp_path / "crashed")
    expected = scanned(crashed, "job_3")
    before = {path.name: path.read_bytes() for path in indexes(crashed)}
    assert whole(crashed, "job_3").transitions == expected

    recover(crashed)

    assert {path.name: path.read_bytes() for path in indexes(crashed)} == before
    assert whole(crashed, "job_3") == EntityHistory(expected, complete=True)
    assert index_journal(crashed) == 1
    assert whole(crashed, "job_3") == EntityHistory(expected, complete=True)
    assert verify(crashed).problems == ()


def test_recovery_takes_the_index_of_a_segment_that_it_sets_aside(indexed: Path, tmp_path: Path) -> None:
    with closing(JournalWriter(tmp_path / "other", JournalConfig(history_index=False))) as other:
        write_segments(other, count=6)
    crashed = after_a_crash(indexed, tmp_path / "crashed")
    foreign = segments(tmp_path / "other")[5]
    shutil.copy(foreign, crashed)
    index_journal(crashed)
    index = index_path(crashed / foreign.name)
    assert index.exists()

    recover(crashed)

    assert not index.exists()
    assert verify(crashed).problems == ()


# -- verify, permissions, size -----------------------------------------------------------------------------------------


def test_verify_names_an_unsound_index_and_misses_none(indexed: Path) -> None:
    first, second, third = indexes(indexed)
    first.unlink()
    flip(second, second.stat().st_size - 1)
    shutil.copy(third, indexed / ".segment-00000007.history")
    flip(third, 3)
    remedy = "; the journal can be read without it, and dispatcher journal history makes a new one"

    found = verify(indexed)

    assert found.problems == (
        f".segment-00000002.history: page 0 is damaged{remedy}",
        f".segment-00000003.history: its header is damaged{remedy}",
        ".segment-00000007.history: its segment is missing",
    )
    assert found.events == 160


@pytest.mark.parametrize(("permissions", "mode"), [("private", 0o600), ("group", 0o640), ("everyone", 0o644)])
def test_an_index_may_be_read_by_those_who_may_read_the_journal(
    open_writer: Open, journal: Path, permissions: str, mode: int
) -> None:
    before = os.umask(0o077)
    try:
        writer = open_writer(history_index=True, permissions=permissions)
        write_segments(writer, count=2)
        join_indexer(journal)
        indexes(journal)[0].unlink()
        index_journal(journal)
    finally:
        os.umask(before)

    assert [path.stat().st_mode & 0o777 for path in indexes(journal)] == [mode, mode]


@pytest.mark.long
@pytest.mark.parametrize("name", ["application_1445144423722_{:04}", "{:06}"])
def test_indexes_are_small_beside_the_journal(open_writer: Open, journal: Path, name: str) -> None:
    """At worst each row is of another entity."""
    writer = open_writer()
    for number in range(20_000):
        write(writer, name.format(number * 7919 % 1_000_003))
    writer.flush()
    writer.roll()
    index_journal(journal)

    [segment], [index] = segments(journal), indexes(journal)
    assert index.stat().st_size <= 0.15 * segment.stat().st_size
    assert [row.seq for row in whole(journal, name.format(7919 * 5000 % 1_000_003)).transitions] == [5001]


# -- against a scan ----------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["", "a", "aa", "ab", "ba", "größe", "\udc80", "\0", "job_1", "job_10"])
EVENT = st.tuples(
    st.none() | NAMES,
    st.lists(st.tuples(st.sampled_from(["Job", "Task"]), NAMES, st.booleans()), max_size=3),
    st.sampled_from(["", "flush", "roll"]),
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(events=st.lists(EVENT, max_size=30), damage=st.lists(st.booleans(), max_size=6), limit=st.integers(1, 9))
def test_the_history_of_any_journal_is_what_a_scan_finds(
    events: Sequence[tuple[str | None, list[tuple[str, str, bool]], str]], damage: list[bool], limit: int
) -> None:
    with TemporaryDirectory() as folder:
        journal = Path(folder) / "journal"
        with closing(JournalWriter(journal, JournalConfig(history_index=False))) as writer:
            for entity, moved, then in events:
                begin(writer, (writer.seq + 1) * 1000)
                for machine, name, valid in moved:
                    writer.transition(machine, name, State.NEW, Cause.GO, State.DONE, valid=valid)
                stored = None if entity is None else entity.encode("utf-8", "backslashreplace").decode()
                end(writer, "central", "Cause", "GO", "handled", entity=stored, queue_ns=1, handling_ns=2)
                if then:
                    writer.flush()
                if then == "roll":
                    writer.roll()
            writer.flush()
            index_journal(journal)
            for path, is_hit in zip(indexes(journal), damage, strict=False):
                if is_hit:
                    flip(path, path.stat().st_size - 7)
            for name in ("", "a", "aa", "größe", "\udc80", "job_1", "nobody"):
                stored = name.encode("utf-8", "backslashreplace").decode()
                for machine in (None, "Task"):
                    expected = scanned(journal, stored, machine)
                    assert whole(journal, name, machine=machine) == EntityHistory(expected, complete=True)
                    found = entity_history(journal, name, machine=machine, limit=limit).transitions
                    assert found == expected[: len(found)]
                    assert len(found) == len(expected) or expected[len(found)].seq < found[-1].seq
