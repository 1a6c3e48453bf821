"""An entity's history: what the whole journal says about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import JournalWriter
from dispatcher.journal import EVENTS, TRANSITIONS, entity_history, read_rows, verify
from dispatcher.journal.history import EntityHistory, HistoryRow

from ...journal_rows import begin, end
from ...kit import tries
from ...kit.journals import Open, flip, segments


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
            error = "ValueError: no" if number % 3 == 0 else None
            write(writer, name, name, *(["task_1"] if number % 5 == 0 else []), error=error)
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


@pytest.fixture
def written(open_writer: Open, journal: Path) -> Path:
    """Three closed segments and an open one."""
    write_segments(open_writer())
    return journal


def test_pages_follow_each_other_and_rows_of_one_event_stay_together(written: Path) -> None:
    expected = scanned(written, "job_3")
    pages: list[EntityHistory] = []
    before: int | None = None

    while not (pages and pages[-1].complete):
        pages.append(entity_history(written, "job_3", limit=7, before_seq=before))
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


def flip_amid(segment: Path) -> None:
    flip(segment, segment.stat().st_size // 2)


@pytest.mark.parametrize(
    ("damage", "said"),
    [(flip_amid, "[0-9]+ bytes from byte [0-9]+ on hold no intact frame"), (Path.unlink, "is missing")],
)
def test_what_is_damaged_or_missing_makes_the_history_incomplete_and_is_reported(
    written: Path, damage: Callable[[Path], None], said: str
) -> None:
    damage(segments(written)[1])
    lines: list[str] = []

    found = whole(written, "job_3", on_damage=lines.append)

    assert found == EntityHistory(scanned(written, "job_3"), complete=False)
    [line] = lines
    assert re.fullmatch(f"segment-00000002.journal: {said}", line)


# -- the writer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entity", ["job_3", "task_1"])
def test_retention_makes_the_history_incomplete(open_writer: Open, journal: Path, entity: str) -> None:
    writer = open_writer(retention_bytes=9000)
    for _ in range(6):
        write_segments(writer, count=1)
        assert whole(journal, entity).transitions == scanned(journal, entity)
        writer.roll()

    assert segments(journal)[0].name != "segment-00000001.journal"
    assert whole(journal, entity) == EntityHistory(scanned(journal, entity), complete=False)


def test_a_start_removes_the_indexes_that_earlier_releases_wrote(open_writer: Open, journal: Path) -> None:
    first = open_writer(write_ahead=True)
    write_segments(first)
    first.close()
    for name in (".segment-00000001.history", ".segment-00000099.history", ".segment-00000002.history.new-17"):
        (journal / name).write_bytes(b"an index")
    others = sorted(path.name for path in journal.iterdir() if ".history" not in path.name)
    problems = verify(journal).problems
    expected = EntityHistory(scanned(journal, "job_3"), complete=True)

    assert problems == ()
    assert whole(journal, "job_3") == expected
    open_writer(write_ahead=True).close()
    assert sorted(path.name for path in journal.iterdir()) == others


# -- against a scan ----------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["", "a", "aa", "ab", "ba", "größe", "\udc80", "\0", "job_1", "job_10"])
EVENT = st.tuples(
    st.none() | NAMES,
    st.lists(st.tuples(st.sampled_from(["Job", "Task"]), NAMES, st.booleans()), max_size=3),
    st.sampled_from(["", "flush", "roll"]),
)


@pytest.mark.slow
@settings(max_examples=tries(25))
@given(events=st.lists(EVENT, max_size=30), limit=st.integers(1, 9))
def test_the_history_of_any_journal_is_what_a_scan_finds(
    events: Sequence[tuple[str | None, list[tuple[str, str, bool]], str]], limit: int
) -> None:
    with TemporaryDirectory() as folder:
        journal = Path(folder) / "journal"
        with closing(JournalWriter(journal)) as writer:
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
            for name in ("", "a", "aa", "größe", "\udc80", "job_1", "nobody"):
                stored = name.encode("utf-8", "backslashreplace").decode()
                for machine in (None, "Task"):
                    expected = scanned(journal, stored, machine)
                    assert whole(journal, name, machine=machine) == EntityHistory(expected, complete=True)
                    found = entity_history(journal, name, machine=machine, limit=limit).transitions
                    assert found == expected[: len(found)]
                    assert len(found) == len(expected) or expected[len(found)].seq < found[-1].seq
