"""`dispatcher journal redeliver`: dead letters that are handed out again."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DeadLetter, DispatcherConfig, JournalConfig, JournalWriter, Retry
from dispatcher.dead_letters import StoredLetter
from dispatcher.journal.format.event_codec import EventCodec
from dispatcher.journal.read import read_unhandled
from dispatcher.letter_target import read_letters
from dispatcher.util.figures import counted

from ...kit.commands import Ended, run_here
from .letters import Order, OrderEvent, Other, OtherEvent, failing, leave_letters, leave_partitioned_letters


class Shop:
    """Makes dispatchers that handle orders, but for those of the entities in `broken`."""

    def __init__(self) -> None:
        self.handled: list[tuple[str, int]] = []  # entities and attempts; handler threads append
        self.broken: set[str] = set()
        self.options: dict[str, Any] = {}
        self.on_error: Any = "continue"
        self.dispatcher: AsyncDispatcher | None = None

    def make(self, journal: JournalWriter) -> AsyncDispatcher:
        self.dispatcher = AsyncDispatcher(name="again", journal=journal, **self.options)
        self.dispatcher.register(Order, self.handle, events=OrderEvent, on_error=self.on_error)
        return self.dispatcher

    def handle(self, event: OrderEvent) -> None:
        if event.entity in self.broken:
            raise KeyError(event.entity)
        assert self.dispatcher is not None
        self.handled.append((event.entity, self.dispatcher.attempt()))
        if event.entity == "posts":
            assert self.dispatcher.post(OrderEvent(Order.PAID, "posted"))


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    module, made = ModuleType("shop_for_letters"), Shop()
    module.make = made.make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop_for_letters", module)
    return made


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    leave_letters(tmp_path / "letters", *(OrderEvent(Order.PLACED, entity) for entity in ("o1", "o2", "o3")))
    return tmp_path / "letters"


def redeliver(folder: Path, *args: object) -> Ended:
    return run_here("journal", "redeliver", folder, *args, "--with", "shop_for_letters:make")


def left_in(folder: Path) -> list[StoredLetter]:
    return list(read_letters(read_unhandled(folder).events, folder))


def entities(folder: Path) -> list[str | None]:
    return [each.entity for each in left_in(folder)]


def test_all_are_handled_in_their_order_as_first_attempts(letters: Path, shop: Shop) -> None:
    done = redeliver(letters)

    assert (done.code, done.out, done.err) == (0, "3 events handled, 0 failed, 0 left\n", "")
    assert shop.handled == [("o1", 1), ("o2", 1), ("o3", 1)]
    assert entities(letters) == []


@pytest.mark.parametrize("options", [("2",), ("--entity", "o2"), ("1", "2", "--entity", "o2")])
def test_those_that_are_not_chosen_stay(letters: Path, shop: Shop, options: tuple[str, ...]) -> None:
    before = [each for each in left_in(letters) if each.entity != "o2"]

    done = redeliver(letters, *options)

    assert (done.code, shop.handled) == (0, [("o2", 1)])
    assert left_in(letters) == before


def test_one_that_fails_again_is_a_dead_letter_with_its_new_error(letters: Path, shop: Shop) -> None:
    shop.broken = {"o2"}
    shop.on_error = Retry(attempts=3, delay_s=0)

    done = redeliver(letters)

    assert (done.code, done.out) == (1, "2 events handled, 1 failed, 0 left\n")
    [letter] = left_in(letters)
    assert (letter.entity, letter.error, letter.attempts) == ("o2", "KeyError: 'o2'", 3)
    assert letter.dispatcher == "again"


def test_after_it_has_failed_again_it_can_be_redelivered_and_nothing_is_listed(letters: Path, shop: Shop) -> None:
    """Its row with the failure stays in the journal."""
    shop.broken = {"o1", "o2"}
    redeliver(letters)
    shop.broken = set()

    assert redeliver(letters).code == 0
    assert run_here("journal", "failed", letters).err == f"{letters}: no failed events\n"


def test_the_dispatchers_own_dead_letters_get_what_fails_again(letters: Path, shop: Shop) -> None:
    own: list[DeadLetter] = []
    shop.broken, shop.options = {"o2"}, {"dead_letters": own.append}

    redeliver(letters)

    assert [each.entity for each in own] == ["o2"]
    assert entities(letters) == []


def test_a_dispatcher_that_stops_leaves_the_rest_as_dead_letters(letters: Path, shop: Shop) -> None:
    shop.broken, shop.on_error = {"o2"}, "stop"
    shop.options = {"config": DispatcherConfig(drain_events_on_stop=False)}

    done = redeliver(letters)

    # The stop begins on a thread of its own, so the handler thread may have taken the last event before it.
    handled = [entity for entity, _ in shop.handled if entity != "o2"]
    left = [entity for entity in ("o3",) if entity not in handled]
    assert (done.code, done.out) == (1, f"{counted(len(handled), 'event')} handled, 1 failed, {len(left)} left\n")
    assert entities(letters) == [*left, "o2"]


def test_what_the_handlers_post_is_handled_too(tmp_path: Path, shop: Shop) -> None:
    leave_letters(tmp_path / "letters", OrderEvent(Order.PLACED, "posts"))

    done = redeliver(tmp_path / "letters")

    assert done.out == "2 events handled, 0 failed, 0 left\n"
    assert [entity for entity, _ in shop.handled] == ["posts", "posted"]


def test_what_handlers_had_posted_before_a_crash_is_handled_with_the_next(letters: Path, shop: Shop) -> None:
    codec = EventCodec("shop")
    codec.declare(Order, [OrderEvent])
    writer = JournalWriter(letters, JournalConfig(write_ahead=True))
    writer.append_accepted(codec.encode(OrderEvent(Order.PAID, "posted")))
    writer.close()

    done = redeliver(letters, "1")

    assert (done.code, done.out) == (0, "2 events handled, 0 failed, 0 left\n")
    assert [entity for entity, _ in shop.handled] == ["o1", "posted"]
    assert entities(letters) == ["o2", "o3"]


def test_one_whose_class_was_not_declared_is_named_and_stays(tmp_path: Path, shop: Shop) -> None:
    leave_letters(tmp_path, OtherEvent(Other.PLACED), OrderEvent(Order.PLACED, "o1"))

    done = redeliver(tmp_path)

    assert done.err == "1 Other.PLACED stays: its class was not declared when it failed\n"
    assert (done.code, shop.handled) == (0, [("o1", 1)])
    assert [each.number for each in left_in(tmp_path)] == [1]


def test_a_class_that_the_dispatcher_does_not_declare_leaves_all(letters: Path, shop: Shop) -> None:
    shop.make = lambda journal: AsyncDispatcher(journal=journal)  # type: ignore[method-assign]
    sys.modules["shop_for_letters"].make = shop.make  # type: ignore[attr-defined]

    done = redeliver(letters)

    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "which is not declared" in done.err
    assert entities(letters) == ["o1", "o2", "o3"]


def test_letters_of_several_partitions_are_redelivered(tmp_path: Path, shop: Shop) -> None:
    wanted = [f"o{number}" for number in range(20)]
    leave_partitioned_letters(tmp_path, *wanted)

    done = redeliver(tmp_path)

    assert (done.code, done.out) == (0, "20 events handled, 0 failed, 0 left\n")
    assert sorted(entity for entity, _ in shop.handled) == sorted(wanted)
    assert run_here("journal", "failed", tmp_path).code == 1


def test_a_letter_of_a_partition_is_chosen_with_the_partition(tmp_path: Path, shop: Shop) -> None:
    leave_partitioned_letters(tmp_path, *(f"o{number}" for number in range(20)))
    partition = next(each for each in sorted(tmp_path.glob("partition-*")) if len(left_in(each)) > 1)
    first, *others = left_in(partition)

    done = redeliver(tmp_path, f"{partition.name.removeprefix('partition-')}/{first.number}")

    assert done.out == "1 event handled, 0 failed, 0 left\n"
    assert shop.handled == [(first.entity, 1)]
    assert left_in(partition) == others


def test_an_unknown_number_is_a_mistake_and_nothing_is_redelivered(letters: Path, shop: Shop) -> None:
    done = redeliver(letters, "1", "17", "x")

    assert (done.code, done.err) == (
        2,
        f"dispatcher: {letters}: no dead letter 17, x; see dispatcher journal failed\n",
    )
    assert shop.handled == []


def test_without_one_of_the_choice_there_is_nothing_to_redeliver(letters: Path, shop: Shop) -> None:
    done = redeliver(letters, "--entity", "nobody")

    assert (done.code, done.out, done.err) == (1, "", f"{letters}: nothing to redeliver\n")


def test_a_folder_that_a_daemon_writes_is_refused(tmp_path: Path, shop: Shop) -> None:
    leave_letters(tmp_path, OrderEvent(Order.PLACED, "o1"))
    with failing(tmp_path):
        done = redeliver(tmp_path)

    assert done.code == 2
    assert done.err.startswith(f"dispatcher: {tmp_path}: is being written by another process")
    assert entities(tmp_path) == ["o1"]


def recover(folder: Path) -> Ended:
    return run_here("journal", "recover", folder, "--with", "shop_for_letters:make")


def test_recover_keeps_those_that_fail_again_as_redeliver_does(letters: Path, shop: Shop) -> None:
    shop.broken = {"o2"}

    done = recover(letters)

    assert (done.code, done.out.splitlines()[-1]) == (1, "2 events handled, 1 failed, 0 left")
    assert [(each.entity, each.error) for each in left_in(letters)] == [("o2", "KeyError: 'o2'")]


def test_recover_keeps_those_of_several_partitions_and_those_that_cannot_be_read_back(
    tmp_path: Path, shop: Shop
) -> None:
    wanted = [f"o{number}" for number in range(20)]
    leave_partitioned_letters(tmp_path, *wanted)
    leave_letters(tmp_path / "partition-0", OtherEvent(Other.PLACED))
    shop.broken = {"o2", "o3"}

    done = recover(tmp_path)

    assert (done.code, done.out.splitlines()[-1]) == (1, "18 events handled, 2 failed, 0 left")
    assert done.err.endswith("Other.PLACED stays: its class was not declared when it failed\n")
    left = [entity for folder in sorted(tmp_path.glob("partition-*")) for entity in entities(folder)]
    assert sorted(left, key=str) == [None, "o2", "o3"]


def test_recover_hands_out_what_handlers_had_posted_when_no_letter_is_left(letters: Path, shop: Shop) -> None:
    assert redeliver(letters).code == 0
    codec = EventCodec("shop")
    codec.declare(Order, [OrderEvent])
    writer = JournalWriter(letters, JournalConfig(write_ahead=True))
    writer.append_accepted(codec.encode(OrderEvent(Order.PAID, "posted")))
    writer.close()

    done = recover(letters)

    assert done.out.splitlines()[-1] == "1 event handled, 0 failed, 0 left"
