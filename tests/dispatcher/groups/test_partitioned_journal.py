"""A MultiDispatcher with a journal: one folder of several journals, and a start with another number of partitions."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from dispatcher import (
    AsyncDispatcher,
    ForkedProcessError,
    JournalConfig,
    JournalError,
    JournalLossError,
    JournalWriter,
    MultiDispatcher,
    PartitionedJournal,
)
from dispatcher.journal import EVENTS, recover

from ...kit import TIMEOUT_S, Gate, Work, until
from ...kit.forked import in_child
from ...kit.journals import Posted, after_a_crash, flip, rows

KEYS = [f"order_{number}" for number in range(12)]


@dataclass
class Order:
    type: Work
    lock_key: str | None
    number: int = 0

    @property
    def entity(self) -> str | None:
        return self.lock_key


Start = Callable[..., MultiDispatcher]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def make() -> Iterator[Start]:
    """Makes MultiDispatchers on a journal, in write-ahead mode unless told otherwise, and stops them at the end."""
    made: list[MultiDispatcher] = []

    def make(path: Path, handler: Any, partitions: int = 2, *, events: Any = Order, **options: Any) -> MultiDispatcher:
        config = JournalConfig(**{"write_ahead": True, "durability": "sync", **options})
        dispatcher = MultiDispatcher(name="multi", partitions=partitions, journal=PartitionedJournal(path, config))
        made.append(dispatcher)
        dispatcher.register(Work, handler, events=events)
        dispatcher.init()
        return dispatcher

    yield make
    for dispatcher in made:
        dispatcher.stop()
        assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)


@pytest.fixture
def start(make: Start) -> Start:
    def start(*args: Any, **options: Any) -> MultiDispatcher:
        dispatcher = make(*args, **options)
        dispatcher.start()
        return dispatcher

    return start


@pytest.fixture
def crashed(journal: Path, tmp_path: Path, start: Start, gate: Gate) -> Callable[[int], Path]:
    """Makes the journal of a run of so many partitions that has accepted three events of each key and crashed."""

    def crash(partitions: int) -> Path:
        dispatcher = start(journal, gate.handle, partitions)
        for number in range(3):
            for key in KEYS:
                assert dispatcher.post(Order(Work.DO, key, number))
        return after_a_crash(journal, tmp_path / "crashed")

    return crash


def by_key(events: list[Order]) -> dict[str | None, list[int]]:
    numbers: defaultdict[str | None, list[int]] = defaultdict(list)
    for event in events:
        numbers[event.lock_key].append(event.number)
    return dict(numbers)


def number_of(key: str, partitions: int) -> int:
    return crc32(key.encode()) % partitions


def test_each_partition_writes_a_journal_of_its_own(journal: Path, start: Start) -> None:
    dispatcher = start(journal, lambda event: None, 3)
    for key in KEYS:
        assert dispatcher.post(Order(Work.DO, key))

    dispatcher.stop()

    for number in range(3):
        found = rows(journal / f"partition-{number}", EVENTS)
        assert [row["entity"] for row in found] == [key for key in KEYS if number_of(key, 3) == number]
        assert {row["dispatcher"] for row in found} <= {f"multi-{number}"}


class Caseless(str):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.lower() == other.lower()

    def __hash__(self) -> int:
        return hash(self.lower())


class Name(str): ...


@pytest.mark.parametrize(
    "keys", [(Caseless("A"), Caseless("a")), (Name("a"), "a"), (b"a", b"a"), (1, 1.0, True), ("\ud800", "\ud800")]
)
def test_equal_keys_have_one_partition(journal: Path, make: Start, keys: tuple[Any, ...]) -> None:
    dispatcher = make(journal, lambda event: None, 11, durability="none")

    assert len({dispatcher.partition_of(Order(Work.DO, key)).name for key in keys}) == 1


@pytest.mark.parametrize(("before", "after"), [(4, 4), (4, 1), (4, 3), (1, 4), (2, 3)])
def test_unhandled_events_go_to_the_partitions_that_have_their_keys_now_in_the_order_of_their_key(
    crashed: Callable[[int], Path], start: Start, before: int, after: int
) -> None:
    path = crashed(before)
    got: list[Order] = []
    redelivered: list[bool] = []
    threads: defaultdict[str, set[str | None]] = defaultdict(set)
    started = threading.Event()

    def handle(event: Order) -> None:
        assert started.wait(TIMEOUT_S)
        threads[threading.current_thread().name].add(event.lock_key)
        got.append(event)
        redelivered.append(dispatcher.is_redelivering() == (event.number < 3))

    dispatcher = start(path, handle, after)
    started.set()
    assert all(dispatcher.post(Order(Work.DO, key, 3)) for key in KEYS)
    dispatcher.stop()

    assert by_key(got) == {key: [0, 1, 2, 3] for key in KEYS}
    assert all(redelivered)
    assert threads == {
        f"multi-{number}": set(keys)
        for number in range(after)
        if (keys := [key for key in KEYS if number_of(key, after) == number])
    }
    assert [recover(folder).accepted for folder in sorted(path.glob("partition-*"))] == [()] * max(before, after)


def test_partitions_that_are_not_used_any_longer_stay_as_history(journal: Path, start: Start) -> None:
    first = start(journal, lambda event: None, 3)
    assert all(first.post(Order(Work.DO, key)) for key in KEYS)
    first.stop()

    start(journal, lambda event: None, 1).stop()

    entities = [row["entity"] for number in range(3) for row in rows(journal / f"partition-{number}", EVENTS)]
    assert sorted(entities) == sorted(KEYS)


def test_a_partition_that_is_not_used_any_longer_is_free_once_the_dispatcher_has_started(
    crashed: Callable[[int], Path], start: Start
) -> None:
    path = crashed(3)

    start(path, lambda event: None, 1)

    recover(path / "partition-2")


def test_a_stop_before_the_start_frees_all_partitions(crashed: Callable[[int], Path], make: Start) -> None:
    path = crashed(3)

    make(path, lambda event: None, 1).stop()

    assert sum(len(recover(path / f"partition-{number}").accepted) for number in range(3)) == 3 * len(KEYS)


def test_a_post_before_the_start_raises_and_keeps_nothing(journal: Path, make: Start) -> None:
    got: list[Order] = []
    dispatcher = make(journal, got.append)

    with pytest.raises(JournalError, match=r"multi-\d: not started, and unhandled events .* come first. Start"):
        dispatcher.post(Order(Work.DO, "early"))
    with pytest.raises(JournalError, match="not started"):
        dispatcher.partitions[0].post(Order(Work.DO, "early"))
    assert isinstance(dispatcher.post_later(Order(Work.DO, "early")).exception(TIMEOUT_S), JournalError)

    dispatcher.start()
    assert dispatcher.post(Order(Work.DO, "late"))
    dispatcher.stop()
    assert [event.lock_key for event in got] == ["late"]


def test_a_handler_may_post_to_a_partition_that_has_not_started(
    crashed: Callable[[int], Path], make: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = crashed(1)
    posted, started = threading.Event(), threading.Event()
    last = next(key for key in KEYS if number_of(key, 2) == 1)
    got: list[Order] = []

    def handle(event: Order) -> None:
        got.append(event)
        if threading.current_thread().name == "multi-0" and not posted.is_set():
            assert dispatcher.post(Order(Work.DO, last, 3))
            posted.set()

    dispatcher = make(path, handle, 2)
    second = dispatcher.partitions[1]
    begin = second.start
    monkeypatch.setattr(second, "start", lambda: (posted.wait(TIMEOUT_S), begin(), started.set()))
    dispatcher.start()
    dispatcher.stop()

    assert started.is_set()
    assert by_key(got)[last] == [0, 1, 2, 3]


def test_an_unhandled_event_of_an_undeclared_class_fails_the_start_and_is_not_lost(
    crashed: Callable[[int], Path], make: Start
) -> None:
    path = crashed(2)
    dispatcher = make(path, lambda event: None, 3, events=Posted)

    with pytest.raises(JournalError, match=r"the class Order for Work, which is not declared"):
        dispatcher.start()

    assert sum(len(recover(path / f"partition-{number}").accepted) for number in range(2)) == 3 * len(KEYS)


def test_without_write_ahead_mode_posts_before_the_start_wait_for_it(journal: Path, make: Start) -> None:
    got: list[Order] = []
    dispatcher = make(journal, got.append, write_ahead=False, events=())
    assert dispatcher.post(Order(Work.DO, "early"))

    dispatcher.start()
    dispatcher.stop()

    assert [event.lock_key for event in got] == ["early"]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_partition_is_a_loss(crashed: Callable[[int], Path], start: Start, missing: int) -> None:
    path = crashed(3)
    (path / f"partition-{missing}").rename(path / "moved away")

    with pytest.raises(JournalLossError, match=f"partition-{missing}: accepted events from number 1 on may be lost"):
        start(path, lambda event: None, 2)

    got: list[Order] = []
    (path / "moved away").rename(path / f"partition-{missing}")
    start(path, got.append, 2).stop()
    assert by_key(got) == {key: [0, 1, 2] for key in KEYS}


def test_a_missing_partition_that_is_accepted_as_lost_is_shown(crashed: Callable[[int], Path], start: Start) -> None:
    path = crashed(3)
    (path / "partition-1").rename(path / "moved away")
    got: list[Order] = []

    dispatcher = start(path, got.append, 3, on_loss="start")
    dispatcher.stop()

    assert [len(partition.view.journal_losses()) for partition in dispatcher.partitions] == [0, 1, 0]
    assert by_key(got) == {key: [0, 1, 2] for key in KEYS if number_of(key, 3) != 1}


@pytest.mark.parametrize("change", [lambda path: flip(path, 20), lambda path: path.unlink()], ids=["damaged", "gone"])
def test_without_a_sound_file_the_folders_tell_the_number_of_partitions(
    crashed: Callable[[int], Path], start: Start, change: Callable[[Path], None]
) -> None:
    path = crashed(3)
    change(path / "partitions.json")
    got: list[Order] = []

    start(path, got.append, 2).stop()

    assert by_key(got) == {key: [0, 1, 2] for key in KEYS}


def test_a_file_of_another_format_is_refused(journal: Path, start: Start) -> None:
    start(journal, lambda event: None).stop()
    path = journal / "partitions.json"
    fields = path.read_text().rpartition(', "check"')[0].replace('"format": 1', '"format": 2') + "}"
    path.write_text(fields[:-1] + f', "check": "{crc32(fields.encode()):08x}"}}\n')

    with pytest.raises(JournalError, match="a partitioned journal of format 2, but this version reads format 1"):
        start(journal, lambda event: None)


WRITE_AHEAD = JournalConfig(write_ahead=True)
CLASHES: dict[str, tuple[Callable[[Path, Start], Any], Callable[[Path, Start], Any], str]] = {
    "the journal of one dispatcher": (
        lambda path, start: JournalWriter(path).close(),
        lambda path, start: start(path, print),
        "holds the journal of one dispatcher",
    ),
    "a partitioned one, for one dispatcher": (
        lambda path, start: start(path, print).stop(),
        lambda path, start: JournalWriter(path, WRITE_AHEAD),
        "holds the journal of a MultiDispatcher",
    ),
    "one that is being written": (
        lambda path, start: start(path, print, 2),
        lambda path, start: start(path, print, 3),
        "partition-0: is being written by another process",
    ),
    "one that is not continued": (
        lambda path, start: start(path, print, write_ahead=False).stop(),
        lambda path, start: start(path, print, write_ahead=False),
        "journal: holds a journal already; choose a new or an empty folder",
    ),
}


@pytest.mark.parametrize(("prepare", "use", "message"), CLASHES.values(), ids=CLASHES)
def test_a_folder_that_holds_something_else_is_refused(
    journal: Path,
    start: Start,
    prepare: Callable[[Path, Start], Any],
    use: Callable[[Path, Start], Any],
    message: str,
) -> None:
    prepare(journal, start)

    with pytest.raises(JournalError, match=message):
        use(journal, start)


def test_each_kind_of_dispatcher_takes_its_own_kind_of_journal(journal: Path) -> None:
    """An AsyncDispatcher raised AttributeError."""
    writer: Any = JournalWriter(journal)
    others: list[Any] = [PartitionedJournal(journal), str(journal)]

    with pytest.raises(TypeError, match="multi: journal must be a PartitionedJournal"):
        MultiDispatcher(name="multi", journal=writer)
    for other in others:
        with pytest.raises(TypeError, match=r"one: journal must be a JournalWriter, not .*; only a MultiDispatcher"):
            AsyncDispatcher(name="one", journal=other)

    AsyncDispatcher(journal=writer).stop()


def test_a_constructor_that_fails_leaves_the_journal_to_another_dispatcher(journal: Path, start: Start) -> None:
    partitioned = PartitionedJournal(journal, JournalConfig(write_ahead=True))
    with pytest.raises(TypeError):
        MultiDispatcher(journal=partitioned, unknown_option=True)

    MultiDispatcher(journal=partitioned).stop()
    partitioned.close()


def test_a_partition_whose_disk_fails_stops_the_group(
    journal: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = start(journal, lambda event: None, 2)
    failing = dispatcher.partition_of(Order(Work.DO, KEYS[0]))
    writer = failing.core.journal
    assert writer is not None
    (writer.path / ".segment-00000001.journal.open").unlink()

    assert not dispatcher.post(Order(Work.DO, KEYS[0]))

    until(lambda: isinstance(dispatcher.failure_cause, JournalError), "the group's failure")
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_start_in_a_forked_child_changes_no_file(crashed: Callable[[int], Path], make: Start) -> None:
    path = crashed(2)
    dispatcher = make(path, lambda event: None, 3)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}

    assert in_child(dispatcher.start)[0] is ForkedProcessError

    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
