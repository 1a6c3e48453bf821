"""The live entities of a partitioned journal: restored from all partitions, whatever their number was before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher import JournalConfig, JournalError, JournalWriter, PartitionedJournal
from dispatcher.journal import verify

from ...kit.journals import flip
from ._orders import ENDS, NEVER, State, flush, move


def restore(journal: PartitionedJournal, machine: str = "Order", *, every: int = NEVER) -> Any:
    return journal.restore_states(machine, ENDS, snapshot_transitions=every, snapshot_s=1e6)


Open = Callable[..., tuple[PartitionedJournal, tuple[JournalWriter, ...]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def opened(path: Path) -> Iterator[Open]:
    """Opens the journal with so many partitions, and closes it at the end or with the next call."""
    journals: list[PartitionedJournal] = []

    def open(partitions: int) -> tuple[PartitionedJournal, tuple[JournalWriter, ...]]:
        for journal in journals:
            journal.close()
        journals.append(PartitionedJournal(path, JournalConfig(write_ahead=True)))
        return journals[-1], journals[-1].open(partitions)

    yield open
    for journal in journals:
        journal.close()


@pytest.mark.parametrize(
    ("at", "has_snapshots", "state", "restored"),
    [
        (999, True, State.HELD, {"a": "HELD"}),  # the clock was set back
        (999, False, State.ENDED, {}),
        (1001, True, State.ENDED, {}),
        (1001, False, State.HELD, {"a": "HELD"}),
    ],
)
def test_the_partition_that_has_moved_an_entity_in_the_last_run_wins(
    opened: Open, at: int, has_snapshots: bool, state: State, restored: dict[str, str]
) -> None:
    for partition, to, time in ((1, State.OPEN, 1000), (0, state, at)):
        journal, writers = opened(2)
        restore(journal, every=1 if has_snapshots else NEVER)
        move(writers[partition], "a", to, at=time)
        flush(writers[partition])

    journal, _ = opened(2)

    assert restore(journal) == restored


def test_an_entity_that_begins_and_ends_in_one_run_leaves_nothing_in_memory(opened: Open) -> None:
    journal, [writer] = opened(1)
    restore(journal)

    move(writer, "a", State.OPEN)
    move(writer, "a", State.ENDED)
    flush(writer)

    live: Any = writer._live_states["Order"]
    assert live._states == {}


def test_an_entity_that_begins_again_has_no_data_of_its_earlier_life(opened: Open) -> None:
    """It was restored with the data that it had before it ended."""
    journal, [writer] = opened(1)
    restore(journal)
    move(writer, "a", State.OPEN, data='{"version":1,"data":{"price":2}}')
    move(writer, "a", State.ENDED)
    move(writer, "a", State.HELD)

    journal, _ = opened(1)

    restored = restore(journal)
    assert (restored, restored.data) == ({"a": "HELD"}, {})


@pytest.mark.parametrize(("times", "restored"), [((1000, 999), "OPEN"), ((1000, 1000), "HELD"), ((1000, 1001), "HELD")])
def test_the_first_restore_takes_the_last_transition_by_time_then_by_partition(
    opened: Open, times: tuple[int, int], restored: str
) -> None:
    """Rows of earlier runs, of a program that restored nothing."""
    _, writers = opened(2)
    for writer, state, at in zip(writers, (State.OPEN, State.HELD), times, strict=True):
        move(writer, "a", state, at=at)

    journal, _ = opened(2)

    assert restore(journal) == {"a": restored}


def test_kinds_of_machines_are_restored_each_by_itself(opened: Open) -> None:
    names = ("Order", "../Parcel of 1")
    journal, writers = opened(2)
    assert [restore(journal, name) for name in names] == [{}, {}]
    for name, state in zip(names, (State.OPEN, State.HELD), strict=True):
        move(writers[0], "a", state, machine=name)

    journal, _ = opened(1)

    assert [restore(journal, name) for name in names] == [{"a": "OPEN"}, {"a": "HELD"}]


def test_a_state_that_has_become_an_end_is_not_restored(opened: Open) -> None:
    journal, writers = opened(2)
    restore(journal, every=1)
    for writer, entity in zip(writers, "ab", strict=True):
        move(writer, entity, State.HELD)
        flush(writer)
    journal, writers = opened(2)
    restore(journal, every=1)
    move(writers[0], "a", State.HELD)
    flush(writers[0])

    journal, _ = opened(2)

    assert journal.restore_states("Order", {"HELD"}, snapshot_transitions=NEVER, snapshot_s=1e6) == {}


def test_a_damaged_file_of_states_is_named_and_rows_are_read_once_it_is_removed(opened: Open, path: Path) -> None:
    for partition, to in ((1, State.OPEN), (0, State.HELD)):
        journal, writers = opened(2)
        restore(journal, every=1)
        move(writers[partition], "a", to)
        move(writers[partition], f"b{partition}", State.OPEN)
        flush(writers[partition])
    file = path / "states-Order.jsonl"
    flip(file, 50)

    journal, _ = opened(2)
    with pytest.raises(JournalError, match=r"states-Order.jsonl: is damaged.*remove the file"):
        restore(journal)
    problems = verify(path).problems
    file.unlink()

    assert problems == ("states-Order.jsonl: is damaged",)
    assert restore(journal) == {"a": "OPEN", "b0": "OPEN", "b1": "OPEN"}  # of equal times, the last partition's


def test_states_cannot_be_restored_twice(opened: Open) -> None:
    journal, _ = opened(2)
    restore(journal)

    with pytest.raises(JournalError, match="partition-0: the states of Order were restored already"):
        restore(journal)


def test_states_cannot_be_restored_before_a_dispatcher_has_the_journal(path: Path) -> None:
    with pytest.raises(JournalError, match="no MultiDispatcher has this journal yet"):
        restore(PartitionedJournal(path))


def test_the_file_has_the_permissions_of_the_journal(path: Path) -> None:
    journal = PartitionedJournal(path, JournalConfig(permissions="group"))
    journal.open(1)

    restore(journal)

    journal.close()
    assert (path / "states-Order.jsonl").stat().st_mode & 0o777 == 0o640
