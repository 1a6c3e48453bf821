"""The segments of the journal: when they are rolled and renamed, what an error leaves, which folders are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatcher import JournalError, JournalWriter
from dispatcher.journal import EVENTS, TRANSITIONS, recover, verify
from dispatcher.journal import writer as writer_module

from .conftest import after_a_crash, files, lines, rows, write_event

Open = Callable[..., JournalWriter]


def disk_full() -> int:
    raise OSError(28, "No space left on device")


def test_an_open_segment_is_hidden_and_gets_its_name_when_it_is_closed(writer: JournalWriter, journal: Path) -> None:
    write_event(writer, transitions=1)
    writer.flush()
    while_open = files(journal)
    read_while_open = rows(journal, EVENTS)

    writer.close()

    assert while_open == ["events/.events-00000001.jsonl.open", "transitions/.transitions-00000001.jsonl.open"]
    assert read_while_open == []
    assert files(journal) == ["events/events-00000001.jsonl", "transitions/transitions-00000001.jsonl"]


def test_rows_are_kept_in_memory_until_there_are_enough_of_them(open_writer: Open, journal: Path) -> None:
    writer = open_writer(buffer_rows=2)
    segment = journal / "events" / ".events-00000001.jsonl.open"

    write_event(writer)
    after_one = segment.read_bytes()
    write_event(writer)

    assert after_one == b""
    assert segment.read_bytes().count(b"\n") == 2


def test_both_tables_roll_together_by_size(open_writer: Open, journal: Path) -> None:
    writer = open_writer(segment_bytes=1024, buffer_rows=1)

    for _ in range(20):
        write_event(writer, transitions=2)
    writer.close()

    count = len(list((journal / "events").iterdir()))
    assert count > 3
    assert files(journal) == sorted(
        f"{table.name}/{table.name}-{number:08d}.jsonl"
        for table in (EVENTS, TRANSITIONS)
        for number in range(1, count + 1)
    )
    for number in range(1, count + 1):
        seqs = [
            {json.loads(line)["seq"] for line in lines(journal / name / f"{name}-{number:08d}.jsonl")}
            for name in ("events", "transitions")
        ]
        assert seqs[0] == seqs[1]
    assert verify(journal) == (20, 40, (), ())


def test_the_bigger_table_decides_when_to_roll(open_writer: Open, journal: Path) -> None:
    writer = open_writer(segment_bytes=1024, buffer_rows=1)

    write_event(writer, transitions=20)
    write_event(writer)
    writer.close()

    assert [row["seq"] for row in rows(journal, EVENTS)] == [1, 2]
    assert len(list((journal / "events").iterdir())) == 2


def test_a_segment_is_rolled_when_it_is_old_enough_and_not_empty(open_writer: Open, journal: Path) -> None:
    writer = open_writer(segment_age_s=1e-9)

    writer.flush()
    write_event(writer)
    writer.flush()
    writer.flush()

    assert files(journal) == [
        "events/.events-00000002.jsonl.open",
        "events/events-00000001.jsonl",
        "transitions/.transitions-00000002.jsonl.open",
    ]


def test_a_table_without_rows_has_no_segment_of_that_number(open_writer: Open, journal: Path) -> None:
    writer = open_writer(segment_age_s=1e-9)

    for transitions in (1, 0, 1):
        write_event(writer, transitions=transitions)
        writer.flush()
    writer.close()

    assert files(journal) == [
        "events/events-00000001.jsonl",
        "events/events-00000002.jsonl",
        "events/events-00000003.jsonl",
        "transitions/transitions-00000001.jsonl",
        "transitions/transitions-00000003.jsonl",
    ]
    assert verify(journal) == (3, 2, (), ())


def test_a_journal_without_events_has_no_segments(writer: JournalWriter, journal: Path) -> None:
    writer.close()

    assert files(journal) == []
    assert verify(journal) == (0, 0, (), ())


def test_closing_can_be_repeated_and_flushing_after_it_does_nothing(writer: JournalWriter, journal: Path) -> None:
    write_event(writer)

    writer.close()
    writer.close()
    writer.flush()

    assert files(journal) == ["events/events-00000001.jsonl"]


@pytest.mark.parametrize("method", ["flush", "close"])
def test_who_is_killed_between_the_tables_leaves_no_event_without_its_transitions(
    open_writer: Open, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Events were written first: a kill there lost transitions, and no check could tell."""
    writer = open_writer()
    write_event(writer, transitions=1)
    crashes: list[Path] = []
    write = writer_module._Segment.write

    def write_and_look(segment: Any) -> int:
        written = write(segment)
        crashes.append(after_a_crash(journal, tmp_path / f"crash {len(crashes)}"))
        return written

    monkeypatch.setattr(writer_module._Segment, "write", write_and_look)
    getattr(writer, method)()

    for crash in crashes:
        recover(crash)
        assert verify(crash).problems == ()
        assert len(rows(crash, EVENTS)) == len(rows(crash, TRANSITIONS))
    assert len(crashes) >= 2


@pytest.mark.parametrize("method", ["flush", "close"])
@pytest.mark.parametrize("table", ["events", "transitions"])
def test_after_a_write_that_failed_nothing_more_is_written(
    open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch, table: str, method: str
) -> None:
    """The close that followed wrote the one table's rows without the other's, and left a file open."""
    writer = open_writer()
    write_event(writer, transitions=1)
    writer.flush()
    write_event(writer, transitions=1)
    with monkeypatch.context() as disk:
        disk.setattr(writer._events if table == "events" else writer._transitions, "write", disk_full)
        with pytest.raises(JournalError, match=r"journal: cannot be (written|closed): No space left on device"):
            getattr(writer, method)()

    write_event(writer, transitions=1)
    writer.close()
    recover(journal)

    assert [row["seq"] for row in rows(journal, EVENTS)] == [1]
    assert [row["seq"] for row in rows(journal, TRANSITIONS)] == [1]
    assert verify(journal).problems == ()


# -- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_made_with_its_parents(open_writer: Open, tmp_path: Path) -> None:
    open_writer(tmp_path / "a" / "b").close()

    assert verify(tmp_path / "a" / "b").events == 0


def test_a_folder_that_exists_and_is_empty_is_taken(open_writer: Open, journal: Path) -> None:
    open_writer().close()

    write_event(open_writer())

    assert files(journal) == ["events/.events-00000001.jsonl.open", "transitions/.transitions-00000001.jsonl.open"]


@pytest.mark.parametrize("left", ["closed", "open", "open after others were moved away"])
def test_a_folder_with_a_journal_is_refused(open_writer: Open, journal: Path, tmp_path: Path, left: str) -> None:
    """The last one was taken, and failed when the new journal came to the number of the open segment."""
    writer = open_writer(segment_age_s=1e-9)
    write_event(writer)
    writer.flush()
    path = after_a_crash(journal, tmp_path / "left")
    if left == "closed":
        recover(path)
    else:
        (path / "events" / "events-00000001.jsonl").unlink()
    if left == "open":
        (path / "events" / ".events-00000002.jsonl.open").rename(path / "events" / ".events-00000001.jsonl.open")
    before = files(path)

    with pytest.raises(JournalError, match="holds a journal already; choose a new or an empty folder"):
        open_writer(path)

    assert files(path) == before


def test_a_folder_that_cannot_be_made_is_refused(open_writer: Open, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(JournalError, match=r"file/journal: cannot be written: Not a directory"):
        open_writer(tmp_path / "file" / "journal")


def test_a_file_in_the_place_of_a_tables_folder_is_refused(open_writer: Open, journal: Path) -> None:
    journal.mkdir()
    (journal / "transitions").write_text("")

    with pytest.raises(JournalError, match="cannot be written: File exists"):
        open_writer()


def test_a_folder_that_vanishes_is_told_when_a_segment_is_closed(
    open_writer: Open, journal: Path, tmp_path: Path
) -> None:
    writer = open_writer(segment_age_s=1e-9)
    write_event(writer)
    journal.rename(tmp_path / "elsewhere")

    with pytest.raises(JournalError, match=r"journal: cannot be written: No such file or directory"):
        writer.flush()
