"""`DeadLetters`: the dead letters of a folder, listed, posted again and discarded."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    DeadLetters,
    DispatcherConfig,
    JournalConfig,
    JournalError,
    JournalWriter,
    MultiDispatcher,
)

from ..kit import Gate, in_threads
from ..kit.dispatchers import hold
from ..kit.journals import flip
from .cli.letters import (
    WAIT_S,
    Order,
    OrderEvent,
    OtherEvent,
    fail,
    failing,
    journal_with_failed_rows,
    leave_letters,
    leave_partitioned_letters,
)
from .cli.letters import Other as OtherType

ENTITIES = ("o1", "o2", "o3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    leave_letters(tmp_path / "letters", *(OrderEvent(Order.PLACED, entity) for entity in ENTITIES))
    return tmp_path / "letters"


@contextmanager
def mended(**options: Any) -> Iterator[tuple[Any, list[tuple[str, bool]]]]:
    """A started dispatcher of orders that handles what the first one could not, and what it has handled."""
    handled: list[tuple[str, bool]] = []
    dispatcher = AsyncDispatcher(name="again", **options)
    dispatcher.register(
        Order, lambda event: handled.append((event.entity, dispatcher.is_redelivering())), events=OrderEvent
    )
    with dispatcher:
        yield dispatcher, handled


def entities(letters: DeadLetters) -> list[str | None]:
    return [letter.entity for letter in letters]


# -- looking ---------------------------------------------------------------------------------------------------------


def test_letters_are_iterated_oldest_first_counted_and_looked_at(folder: Path) -> None:
    letters = DeadLetters(folder)

    second = letters.look(2)

    assert entities(letters) == ["o1", "o2", "o3"]
    assert letters.count() == 3
    assert (second.name, second.entity, second.dispatcher, second.attempts) == ("2", "o2", "shop", 1)
    assert (second.event_class, second.event_type, second.event["entity"]) == ("Order", "PLACED", "o2")
    assert second.error == "ValueError: no stock for o2\nat all"
    assert "in fail" in second.traceback
    assert second.failed_ns > 1.7e18


def test_an_error_whose_traceback_python_cannot_print_leaves_a_letter_without_one(tmp_path: Path) -> None:
    class OddError(Exception):
        @property
        def __cause__(self) -> None:  # type: ignore[override]
            raise KeyError("cause")

    def fail_oddly(event: OrderEvent) -> None:
        raise OddError(f"no stock for {event.entity}")

    dispatcher = AsyncDispatcher(dead_letters=tmp_path)
    dispatcher.register(Order, fail_oddly, events=OrderEvent)
    with dispatcher:
        dispatcher.post(OrderEvent(Order.PLACED, "o1"))

    [letter] = DeadLetters(tmp_path)
    assert (letter.entity, letter.error) == ("o1", "OddError: no stock for o1")
    assert letter.traceback == "OddError: no stock for o1\n(no traceback: KeyError: 'cause')\n"


def test_a_letter_that_is_not_there_and_folders_of_others_are_errors(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no dead letter 17"):
        DeadLetters(folder).look(17)
    with pytest.raises(JournalError, match="missing"):
        DeadLetters(tmp_path / "missing").count()
    with pytest.raises(TypeError, match="takes a folder"):
        DeadLetters(17)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(JournalError, match="file"):
        DeadLetters(tmp_path / "file").count()


def test_a_journal_of_events_holds_no_letters(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path, JournalConfig(write_ahead=True))
    gate = Gate()
    dispatcher = AsyncDispatcher(journal=journal)
    dispatcher.register(Order, gate.handle, events=OrderEvent)
    with dispatcher:
        dispatcher.post(OrderEvent(Order.PLACED, "o1"))
        with pytest.raises(JournalError, match="holds the journal of a dispatcher, not dead letters"):
            DeadLetters(tmp_path).discard(["1"])
        gate.opened.set()


def test_a_journal_without_accepted_events_holds_no_letters(tmp_path: Path) -> None:
    assert DeadLetters(journal_with_failed_rows(tmp_path)).count() == 0


@pytest.mark.parametrize("is_cut", [False, True], ids=["flipped", "cut"])
def test_damage_is_told_and_the_other_letters_are_there(folder: Path, is_cut: bool) -> None:
    [segment] = folder.glob("segment-*")
    at = segment.read_bytes().index(b'"entity":"o3"' if is_cut else b'"entity":"o2"')
    if is_cut:
        os.truncate(segment, at)
    else:
        flip(segment, at)
    (folder / "notes.txt").write_text("a foreign file")
    told: list[str] = []

    assert entities(DeadLetters(folder, on_damage=told.append)) == (["o1", "o2"] if is_cut else ["o1", "o3"])

    assert told


# -- redelivering ----------------------------------------------------------------------------------------------------


def test_chosen_letters_are_posted_again_and_leave_the_folder(folder: Path) -> None:
    letters = DeadLetters(folder)
    with mended() as (dispatcher, handled):
        done = letters.redeliver(dispatcher, [letters.look(2), "3", 17])
        assert dispatcher.await_drained(WAIT_S)

        assert (done.posted, done.refused, done.left) == (("2", "3"), {}, ())
        assert handled == [("o2", True), ("o3", True)]
        assert entities(letters) == ["o1"]
        assert letters.redeliver(dispatcher).posted == ("1",)

    assert letters.count() == 0


def test_letters_of_partitions_are_named_after_them_and_go_to_the_partition_of_their_key(tmp_path: Path) -> None:
    leave_partitioned_letters(tmp_path, *ENTITIES)
    letters = DeadLetters(tmp_path)
    assert sorted(entities(letters), key=str) == list(ENTITIES)
    assert all(letters.look(letter.name) == letter for letter in letters)
    assert all(letter.name == f"{letter.partition}/{letter.number}" for letter in letters)

    handled: list[str] = []
    dispatcher = MultiDispatcher(partitions=2)
    dispatcher.register(Order, lambda event: handled.append(event.entity), events=OrderEvent)
    with dispatcher:
        assert len(letters.redeliver(dispatcher).posted) == 3

    assert sorted(handled) == list(ENTITIES)
    assert letters.count() == 0


def test_letters_of_undeclared_classes_are_refused_and_stay(folder: Path) -> None:
    with AsyncDispatcher() as dispatcher:
        done = DeadLetters(folder).redeliver(dispatcher)

    assert done.posted == ()
    assert list(done.refused) == ["1", "2", "3"]
    assert "register(Order, handler, events=OrderEvent)" in done.refused["1"]
    assert DeadLetters(folder).count() == 3


def test_letters_that_find_no_room_are_left(folder: Path, gate: Gate) -> None:
    config = DispatcherConfig(queue_capacity=1, queue_full_policy="reject")
    dispatcher = AsyncDispatcher(config)
    dispatcher.register(Order, gate.handle, events=OrderEvent)
    with dispatcher:
        hold(dispatcher, gate, OrderEvent(Order.PLACED, "first"))

        done = DeadLetters(folder).redeliver(dispatcher)
        gate.opened.set()

    assert (done.posted, done.left) == (("1",), ("2", "3"))
    assert entities(DeadLetters(folder)) == ["o2", "o3"]


def test_only_a_started_dispatcher_takes_letters(folder: Path) -> None:
    letters = DeadLetters(folder)

    with pytest.raises(ValueError, match="takes a dispatcher that is STARTED, and it is NOTINITED"):
        letters.redeliver(AsyncDispatcher())
    with pytest.raises(TypeError, match="takes an AsyncDispatcher or a MultiDispatcher"):
        letters.redeliver(print)  # type: ignore[arg-type]
    for wrong in ("17", [None], [True]):
        with pytest.raises(TypeError), mended() as (dispatcher, _):
            letters.redeliver(dispatcher, wrong)  # type: ignore[arg-type]
    assert letters.count() == 3


# -- discarding ------------------------------------------------------------------------------------------------------


def test_discarded_letters_are_gone_and_the_others_stay(folder: Path) -> None:
    letters = DeadLetters(folder)
    first, *_ = letters

    assert letters.discard([first, 3, "17"]) == 2
    assert letters.discard([first, 3]) == 0
    assert entities(letters) == ["o2"]


def test_a_letter_of_an_earlier_folder_is_not_that_of_the_new_one(folder: Path) -> None:
    letters = DeadLetters(folder)
    first, *_ = letters
    shutil.rmtree(folder)
    leave_letters(folder, OrderEvent(Order.PLACED, "other"))

    assert letters.discard([first]) == 0
    assert entities(letters) == ["other"]


# -- beside a live dispatcher ----------------------------------------------------------------------------------------


def test_the_dispatcher_that_writes_the_folder_takes_its_own_letters_back(tmp_path: Path) -> None:
    with failing(tmp_path) as dispatcher:
        for entity in ENTITIES:
            dispatcher.post(OrderEvent(Order.PLACED, entity))
        assert dispatcher.await_drained(WAIT_S)
        letters = DeadLetters(tmp_path)

        assert letters.discard(["1"]) == 1
        assert letters.redeliver(dispatcher, ["2"]).posted == ("2",)
        assert dispatcher.await_drained(WAIT_S)

        assert [(each.name, each.entity) for each in letters] == [("3", "o3"), ("4", "o2")]


def test_another_dispatcher_takes_the_letters_of_one_that_runs(tmp_path: Path) -> None:
    with failing(tmp_path) as broken, mended() as (dispatcher, handled):
        broken.post(OrderEvent(Order.PLACED, "o1"))
        broken.post(OtherEvent(OtherType.PLACED))
        assert broken.await_drained(WAIT_S)

        done = DeadLetters(tmp_path).redeliver(dispatcher)
        assert dispatcher.await_drained(WAIT_S)

        assert (done.posted, handled) == (("1",), [("o1", True)])
        assert list(done.refused) == ["2"]


def _discard_in_another_process(folder: Path, answers: Any) -> None:
    try:
        answers.put((DeadLetters(folder).count(), DeadLetters(folder).discard(["1"])))
    except JournalError as error:
        answers.put(str(error))


def test_another_process_reads_the_folder_of_a_live_one_and_cannot_change_it(tmp_path: Path) -> None:
    spawning = multiprocessing.get_context("spawn")
    answers: Any = spawning.SimpleQueue()
    with failing(tmp_path) as dispatcher:
        dispatcher.post(OrderEvent(Order.PLACED, "o1"))
        assert dispatcher.await_drained(WAIT_S)
        process = spawning.Process(target=_discard_in_another_process, args=(tmp_path, answers))
        process.start()
        answer = answers.get()
        process.join(WAIT_S)

        assert "is being written by another process" in answer
        assert DeadLetters(tmp_path).count() == 1


def test_each_letter_goes_once_when_several_threads_take_them(tmp_path: Path) -> None:
    entities_of_all = [f"o{number}" for number in range(40)]
    broken = AsyncDispatcher(name="shop", dead_letters=tmp_path)
    broken.register(Order, fail, events=OrderEvent)
    with broken, mended() as (dispatcher, handled):
        for entity in entities_of_all:
            broken.post(OrderEvent(Order.PLACED, entity))
        assert broken.await_drained(WAIT_S)
        in_threads(*[lambda: DeadLetters(tmp_path).redeliver(dispatcher)] * 4)
        assert dispatcher.await_drained(WAIT_S)

    assert sorted(handled) == sorted((entity, True) for entity in entities_of_all)
    assert DeadLetters(tmp_path).count() == 0
