"""`dispatcher journal redeliver`: dead letters that are handed out again."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DeadLetter, DeadLetters, DispatcherConfig, JournalConfig, JournalWriter, Retry
from dispatcher.dead_letters import StoredLetter

from ...kit.commands import Ended, run_here
from ...kit.scenarios import play
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


def recover(folder: Path) -> Ended:
    return run_here("journal", "recover", folder, "--with", "shop_for_letters:make")


def left_in(folder: Path) -> list[StoredLetter]:
    return list(DeadLetters(folder))


def entities(folder: Path) -> list[str | None]:
    return [each.entity for each in left_in(folder)]


def accept(folder: Path, entity: str) -> None:
    """Leave an event that a handler has posted before a crash."""
    with closing(JournalWriter(folder, JournalConfig(write_ahead=True))) as writer:
        never_started = AsyncDispatcher(name="shop", journal=writer)
        never_started.register(Order, lambda _: None, events=OrderEvent)
        assert never_started.post(OrderEvent(Order.PAID, entity))


class LettersStage:
    """A folder of dead letters, commands about it, and what they have said and done."""

    def __init__(self, folder: Path, shop: Shop) -> None:
        self._folder = folder
        self._shop = shop
        self._ended = Ended(None, "", "")

    def play(self, verb: str, *words: str) -> None:
        match verb:
            case "letters":
                named = {each: OrderEvent(Order.PLACED, each) for each in words if each != "undeclared"}
                leave_letters(self._folder, *(named.get(each, OtherEvent(Other.PLACED)) for each in words))
            case "partitions":
                leave_partitioned_letters(self._folder, *words)
            case "accepted":
                accept(self._folder, *words)
            case "broken":
                self._shop.broken = set(words)
            case "attempts":
                self._shop.on_error = Retry(attempts=int(words[0]), delay_s=0)
            case "redeliver" | "recover":
                self._ended = {"redeliver": redeliver, "recover": recover}[verb](self._folder, *words)

    def look(self, what: str) -> Iterable[object]:
        return {
            "code": lambda: [self._ended.code],
            "out": lambda: self._ended.out.splitlines()[-1:],
            "err": lambda: self._ended.err.replace(str(self._folder), "FOLDER").replace(";", "").splitlines(),
            "handled": lambda: sorted(f"{entity}:{attempt}" for entity, attempt in self._shop.handled),
            "order": lambda: [entity for entity, _ in self._shop.handled],
            "left": lambda: entities(self._folder),
            "why": lambda: [f"{each.error}:{each.attempts}:{each.dispatcher}" for each in left_in(self._folder)],
        }[what]()


SCENARIOS = {
    "all are handled in their order as first attempts": "letters o1 o2 o3 | redeliver -> code 0 ; out "
    "3_events_handled,_0_failed,_0_left ; err ; handled o1:1 o2:1 o3:1 ; order o1 o2 o3 ; left",
    "those that are not chosen stay": "letters o1 o2 o3 o4 | redeliver 2 -> code 0 ; order o2 ; left o1 o3 o4 | "
    "redeliver --entity o3 -> order o2 o3 ; left o1 o4 | redeliver 1 4 --entity o4 -> order o2 o3 o4 ; left o1",
    "one that fails again is a dead letter with its new error": "letters o1 o2 o3 | broken o2 | attempts 3 | "
    "redeliver -> code 1 ; out 2_events_handled,_1_failed,_0_left ; left o2 ; why KeyError:_'o2':3:again",
    "after it has failed again it can be redelivered, although its row stays in the journal": "letters o1 o2 o3 | "
    "broken o1 o2 | redeliver -> left o1 o2 | broken | redeliver -> code 0 ; left | redeliver -> code 1 ; err "
    "FOLDER:_nothing_to_redeliver",
    "what the handlers post is handled too": "letters posts | redeliver -> out 2_events_handled,_0_failed,_0_left ; "
    "order posts posted",
    "what handlers had posted before a crash is handled with the next": "letters o1 o2 o3 | accepted posted | "
    "redeliver 1 -> code 0 ; out 2_events_handled,_0_failed,_0_left ; order o1 posted ; left o2 o3",
    "one whose class was not declared is named and stays": "letters undeclared o1 | redeliver -> code 0 ; order o1 ; "
    "err 1_Other.PLACED_stays:_its_class_was_not_declared_when_it_failed ; left None",
    "letters of several partitions are redelivered": "partitions o1 o2 o3 o4 o5 o6 o7 o8 | redeliver -> code 0 ; out "
    "8_events_handled,_0_failed,_0_left ; handled o1:1 o2:1 o3:1 o4:1 o5:1 o6:1 o7:1 o8:1 ; left",
    "an unknown number is a mistake, and nothing is redelivered": "letters o1 o2 o3 | redeliver 1 17 x -> code 2 ; "
    "err dispatcher:_FOLDER:_no_dead_letter_17,_x_see_dispatcher_journal_failed ; handled ; left o1 o2 o3",
    "without one of the choice there is nothing to redeliver": "letters o1 | redeliver --entity nobody -> code 1 ; "
    "out ; err FOLDER:_nothing_to_redeliver",
    "recover keeps those that fail again as redeliver does": "letters o1 o2 o3 | broken o2 | recover -> code 1 ; out "
    "2_events_handled,_1_failed,_0_left ; left o2 ; why KeyError:_'o2':1:again",
    "recover hands out what handlers had posted when no letter is left": "letters o1 | redeliver -> code 0 | accepted "
    "posted | recover -> out 1_event_handled,_0_failed,_0_left",
}


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_letters_are_handed_out(tmp_path: Path, shop: Shop, script: str) -> None:
    play(LettersStage(tmp_path / "letters", shop), script)


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
    events = "1 event" if len(handled) == 1 else f"{len(handled)} events"
    assert (done.code, done.out) == (1, f"{events} handled, 1 failed, {len(left)} left\n")
    assert entities(letters) == [*left, "o2"]


def test_a_class_that_the_dispatcher_does_not_declare_leaves_all(letters: Path, shop: Shop) -> None:
    shop.make = lambda journal: AsyncDispatcher(journal=journal)  # type: ignore[method-assign]
    sys.modules["shop_for_letters"].make = shop.make  # type: ignore[attr-defined]

    done = redeliver(letters)

    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "which is not declared" in done.err
    assert entities(letters) == ["o1", "o2", "o3"]


def test_a_letter_of_a_partition_is_chosen_with_the_partition(tmp_path: Path, shop: Shop) -> None:
    leave_partitioned_letters(tmp_path, *(f"o{number}" for number in range(20)))
    partition = next(each for each in sorted(tmp_path.glob("partition-*")) if len(left_in(each)) > 1)
    first, *others = left_in(partition)

    done = redeliver(tmp_path, f"{partition.name.removeprefix('partition-')}/{first.number}")

    assert done.out == "1 event handled, 0 failed, 0 left\n"
    assert shop.handled == [(first.entity, 1)]
    assert left_in(partition) == others


def test_a_folder_that_a_daemon_writes_is_refused(tmp_path: Path, shop: Shop) -> None:
    leave_letters(tmp_path, OrderEvent(Order.PLACED, "o1"))
    with failing(tmp_path):
        done = redeliver(tmp_path)

    assert done.code == 2
    assert done.err.startswith(f"dispatcher: {tmp_path}: is being written by another process")
    assert entities(tmp_path) == ["o1"]


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
