"""What a writer leaves that dies, and what recovery makes of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher import JournalError, JournalWriter
from dispatcher.journal import EVENTS, TABLES, TRANSITIONS, Table, recover, verify

from .conftest import JobEvent, after_a_crash, files, rows, write_event

Open = Callable[..., JournalWriter]


class KilledError(BaseException):
    """Stands for the end of the process."""


def seqs(journal: Path, table: Table) -> list[int]:
    return [row["seq"] for row in rows(journal, table)]


def open_segment(journal: Path, table: Table) -> Path:
    [path] = (journal / table.name).glob(".*.open")
    return path


@pytest.fixture
def crashed(open_writer: Open, journal: Path, tmp_path: Path) -> Path:
    """One closed segment with two events, and an open one with three; the second event of each has two transitions."""
    writer = open_writer(segment_bytes=1024)
    write_event(writer, JobEvent("big enough to roll" * 100))
    write_event(writer, transitions=2)
    writer.flush()
    write_event(writer, JobEvent("größe", {"text": 'a "quoted"\nword'}))
    write_event(writer, transitions=2)
    write_event(writer, transitions=1)
    writer.flush()
    return after_a_crash(journal, tmp_path / "crashed")


def test_segments_that_were_left_open_are_closed(crashed: Path) -> None:
    before = verify(crashed)

    done = recover(crashed)

    assert (before.events, len(before.open_segments)) == (2, 2)
    assert done == [
        "events-00000002.jsonl: kept 3 rows, cut 0 bytes",
        "transitions-00000002.jsonl: kept 3 rows, cut 0 bytes",
    ]
    assert verify(crashed) == (5, 5, (), ())
    assert all(name.endswith(".jsonl") for name in files(crashed))


def test_a_journal_that_was_closed_needs_no_recovery(writer: JournalWriter, journal: Path) -> None:
    write_event(writer)
    writer.close()
    before = files(journal)

    assert recover(journal) == []

    assert files(journal) == before


def test_recovering_twice_is_as_good_as_once(crashed: Path) -> None:
    recover(str(crashed))

    assert recover(crashed) == []

    assert verify(crashed).problems == ()


@pytest.mark.parametrize("torn", TABLES, ids=lambda table: table.name)
def test_wherever_the_end_is_torn_off_the_rest_is_sound(crashed: Path, tmp_path: Path, torn: Table) -> None:
    whole = open_segment(crashed, torn).read_bytes()
    ends = [offset + 1 for offset, byte in enumerate(whole) if byte == 10]
    path = tmp_path / "torn"

    for size in range(len(whole) + 1):
        shutil.copytree(crashed, path)
        open_segment(path, torn).write_bytes(whole[:size])

        recover(path)

        found = verify(path)
        assert found.problems == ()
        assert found.open_segments == ()
        kept = sum(end <= size for end in ends)
        if torn is EVENTS:
            assert seqs(path, EVENTS) == [1, 2, 3, 4, 5][: 2 + kept]
            assert seqs(path, TRANSITIONS) == [2, 2, 4, 4, 5][: (2, 2, 4, 5)[kept]]
        else:
            assert seqs(path, EVENTS) == [1, 2, 3, 4, 5]
            # A row that lacks nothing but its end of line is whole.
            assert seqs(path, TRANSITIONS) == [2, 2, 4, 4, 5][: 2 + sum(end - 1 <= size for end in ends)]
        shutil.rmtree(path)


def test_a_segment_of_which_nothing_is_left_is_removed(crashed: Path) -> None:
    open_segment(crashed, EVENTS).write_bytes(b'{"seq":3')

    done = recover(crashed)

    assert done[0] == "events-00000002.jsonl: kept 0 rows, cut 8 bytes"
    assert files(crashed) == ["events/events-00000001.jsonl", "transitions/transitions-00000001.jsonl"]


def test_transitions_whose_event_is_missing_are_dropped(crashed: Path) -> None:
    open_segment(crashed, EVENTS).unlink()

    recover(crashed)

    assert seqs(crashed, TRANSITIONS) == [2, 2]
    assert verify(crashed).problems == ()


def test_a_row_that_lacks_only_its_end_of_line_is_not_said_to_be_cut(crashed: Path) -> None:
    """It was told as a cut of -1 bytes."""
    path = open_segment(crashed, TRANSITIONS)
    path.write_bytes(path.read_bytes()[:-1])

    done = recover(crashed)

    assert done[1] == "transitions-00000002.jsonl: kept 3 rows, cut 0 bytes"


@pytest.mark.parametrize("method", ["write_bytes", "replace", "rename"])
def test_recovery_that_is_killed_itself_can_be_repeated(
    crashed: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The segment was cut in place: a kill in the middle of that lost events that the first crash had left."""
    path = open_segment(crashed, EVENTS)
    path.write_bytes(path.read_bytes()[:-5])
    call = getattr(Path, method)

    def die(self: Path, *args: object) -> None:
        if method == "write_bytes":
            call(self, b"half")
        raise KilledError

    with monkeypatch.context() as kill:
        kill.setattr(Path, method, die)
        with pytest.raises(KilledError):
            recover(crashed)

    recover(crashed)

    assert seqs(crashed, EVENTS) == [1, 2, 3, 4]
    assert verify(crashed).problems == ()
    assert verify(crashed).open_segments == ()


def test_a_recovered_journal_still_refuses_a_writer(crashed: Path, open_writer: Open) -> None:
    recover(crashed)

    with pytest.raises(JournalError, match="holds a journal already"):
        open_writer(crashed)
