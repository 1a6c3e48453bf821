"""Entities as any thread lists them, from the log of a recorder's changes."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from dispatcher.metrics.entities import all_machines, entity_sources
from statemachines import TransitionRecorder
from statemachines.changes import HAND_OVER_EVERY, ChangeLog, Row
from statemachines.entity_tables import EntityTables, SortedIds

from .rings import moves_in_process, new_ring, ring_of_process
from .test_recorder import E, S, Thing

SECOND = 1_000_000_000


class Clock:
    """Unix ns that a test sets."""

    now_ns = 1000 * SECOND

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(clock: Clock) -> Iterator[TransitionRecorder]:
    with ring_of_process(100):
        yield TransitionRecorder(ends={"Thing": {S.DOWN}}, clock_ns=clock)


def states(recorder: TransitionRecorder, machine: str = "Thing", **which: str) -> dict[str, str]:
    return {each.entity: each.state for each in recorder.entities(machine, **which).items}  # type: ignore[arg-type]


def test_entities_are_listed_with_state_since_and_the_event_that_led_to_it(
    recorder: TransitionRecorder, clock: Clock
) -> None:
    one, _ = Thing(recorder, "b"), Thing(recorder, "a")
    clock.now_ns += SECOND
    one.handle(E.START)
    clock.now_ns += SECOND
    one.handle(E.START)  # it stays in its state

    found = recorder.entities("Thing")

    assert [(each.entity, each.state, each.since, each.last_event) for each in found.items] == [
        ("a", "NEW", 1000.0, None),
        ("b", "UP", 1001.0, "START"),
    ]
    assert (found.has_more, found.total) == (False, 2)


def test_an_entity_that_gets_its_name_after_its_making_is_listed_from_its_first_transition_on(
    recorder: TransitionRecorder,
) -> None:
    thing = Thing(recorder, None)  # type: ignore[arg-type]
    assert states(recorder) == {}

    thing.entity = "quiet"
    thing.handle(E.START)

    assert states(recorder) == {"quiet": "UP"}


def test_a_refused_event_changes_nothing(recorder: TransitionRecorder, clock: Clock) -> None:
    thing = Thing(recorder, "a")
    clock.now_ns += SECOND

    thing.handle(E.STOP)

    [found] = recorder.find_entity("a")
    assert (found.state, found.since) == ("NEW", 1000.0)


def test_an_entity_that_ends_is_no_longer_listed(recorder: TransitionRecorder) -> None:
    for entity in "ab":
        Thing(recorder, entity).handle(E.START)
    assert states(recorder) == {"a": "UP", "b": "UP"}

    third = Thing(recorder, "c")
    for type in (E.START, E.STOP):
        third.handle(type)
    recorder.forgotten("Thing", S.UP, "a")

    assert states(recorder) == {"b": "UP"}
    assert recorder.machine_numbers()[0].entities == {"UP": 1}


def test_an_id_that_ended_again_is_no_longer_listed_until_it_comes_back(recorder: TransitionRecorder) -> None:
    """The second end took the first one with it, and a reader that had seen the entity listed it for ever."""
    Thing(recorder, "a")
    assert states(recorder) == {"a": "NEW"}

    recorder.forgotten("Thing", S.NEW, "a")
    Thing(recorder, "a")
    recorder.forgotten("Thing", S.NEW, "a")
    assert states(recorder) == {}
    Thing(recorder, "a").handle(E.START)

    assert states(recorder) == {"a": "UP"}


def test_pages_are_by_id_state_and_prefix(recorder: TransitionRecorder) -> None:
    for number in range(7):
        thing = Thing(recorder, f"thing_{number}")
        if number % 2:
            thing.handle(E.START)
    Thing(recorder, "other_1")

    first = recorder.entities("Thing", prefix="thing", limit=3)
    second = recorder.entities("Thing", prefix="thing", after="thing_2", limit=4)

    assert [each.entity for each in first.items] == ["thing_0", "thing_1", "thing_2"]
    assert [each.entity for each in second.items] == ["thing_3", "thing_4", "thing_5", "thing_6"]
    assert (first.has_more, second.has_more, first.total) == (True, False, None)
    up = recorder.entities("Thing", state="UP")
    assert ([each.entity for each in up.items], up.total) == (["thing_1", "thing_3", "thing_5"], 3)
    assert recorder.entities("Gadget").items == ()


def test_pages_of_a_rare_state_are_in_order_as_well(recorder: TransitionRecorder) -> None:
    for number in random.Random(7).sample(range(100), 100):
        thing = Thing(recorder, f"thing_{number:02}")
        if number % 20 == 1:
            thing.handle(E.START)

    first = recorder.entities("Thing", state="UP", limit=2)
    second = recorder.entities("Thing", state="UP", after="thing_21", prefix="thing", limit=2)

    assert ([each.entity for each in first.items], first.has_more) == (["thing_01", "thing_21"], True)
    assert ([each.entity for each in second.items], second.has_more) == (["thing_41", "thing_61"], True)
    assert states(recorder, state="UP", prefix="thing_8") == {"thing_81": "UP"}
    assert states(recorder, state="GONE") == {}


def test_machines_are_numbered_apart(recorder: TransitionRecorder) -> None:
    Thing(recorder, "a").handle(E.START)
    Thing(recorder, "a", "Gadget").handle(E.STOP)

    numbers = {each.machine: each for each in recorder.machine_numbers()}

    assert (numbers["Thing"].entities, numbers["Thing"].transitions, numbers["Thing"].invalid) == ({"UP": 1}, 1, 0)
    assert (numbers["Gadget"].entities, numbers["Gadget"].transitions, numbers["Gadget"].invalid) == ({"NEW": 1}, 0, 1)
    assert {each.machine for each in recorder.find_entity("a")} == {"Thing", "Gadget"}
    assert [each.machine for each in recorder.find_entity("a", "Gadget")] == ["Gadget"]
    assert recorder in entity_sources()
    assert {"Thing", "Gadget"} <= {each.machine for each in all_machines([recorder])}


def test_transitions_reach_the_ring_of_the_process(recorder: TransitionRecorder) -> None:
    thing = Thing(recorder, "ringed")
    for type in (E.START, E.START, E.STOP, E.START):
        thing.handle(type)

    recorder.find_entity("ringed")

    assert moves_in_process("ringed") == [
        ("DOWN", "START", "DOWN", False),
        ("UP", "STOP", "DOWN", True),
        ("UP", "START", "UP", True),
        ("NEW", "START", "UP", True),
    ]


def test_without_a_list_nothing_is_kept() -> None:
    recorder = TransitionRecorder(lists_entities=False)
    Thing(recorder, "a").handle(E.START)

    assert recorder.entities("Thing").items == ()
    assert recorder.find_entity("a") == []
    assert recorder not in entity_sources()
    assert recorder.machine_numbers()[0].transitions == 1


def test_an_event_without_a_type_and_an_id_of_another_class_are_no_obstacle(recorder: TransitionRecorder) -> None:
    class Odd:
        @property
        def type(self) -> E:
            raise RuntimeError("no type")

    class Id:
        def __str__(self) -> str:
            return "odd\udcff"

    thing = Thing(recorder, Id())  # type: ignore[arg-type]

    thing.state_machine.do_transition(E.START, Odd())

    assert states(recorder) == {"odd\\udcff": "UP"}


# -- the log -----------------------------------------------------------------------------------------------------------


def moved(entity: str, at: int = 0) -> Row:
    return (entity, "Thing", "NEW", "GO", "UP", at)


def test_a_machines_thread_does_not_wait_while_another_hands_rows_over() -> None:
    log = ChangeLog()
    log.rows += [moved("a")] * 300
    done = threading.Event()

    with log._lock:  # as a reader holds it
        threading.Thread(target=lambda: (log.look(), done.set()), daemon=True).start()
        assert done.wait(60)
        assert (len(log.rows), log.look_at) == (300, 2 * HAND_OVER_EVERY)

    log.look()
    assert (len(log.rows), log.look_at) == (0, HAND_OVER_EVERY)


def test_a_ring_that_was_off_at_first_has_no_whole_history() -> None:
    """It said that it had all transitions, as those made while it was off were not counted."""
    log, own = ChangeLog(), new_ring()
    log.row_followers = (own,)
    for size in (0, 100):
        own.resize(size)
        log.rows.append(moved("early"))
        log.look()

    found = own.history("early")

    assert (len(found.transitions), found.is_whole) == (1, False)


def test_without_a_reader_only_the_living_are_kept() -> None:
    log = ChangeLog()
    tables = EntityTables(log, {"Thing": frozenset({"DOWN"})})
    log.row_followers = (tables,)
    for number in range(1000):
        log.rows.append((f"thing_{number}", "Thing", "", "", "NEW", 0))
        log.rows.append((f"thing_{number}", "Thing", "NEW", "GO", "DOWN", 0))
        log.rows.append((f"thing_{number}", "Thing", "DOWN", "", "", 0))  # no longer kept, which it was not
    log.rows.append(("alive", "Thing", "", "", "NEW", 0))

    log.look()

    assert list(tables._changes["Thing"].last) == ["alive"]
    assert tables._changes["Thing"].made == {"alive"}


def test_nothing_is_lost_between_a_machines_thread_and_readers() -> None:
    own = new_ring(200_000)
    log = ChangeLog()
    tables = EntityTables(log, {})
    log.row_followers = tables, own
    changes = log.follow(None)
    stop = threading.Event()
    errors: list[str] = []
    taken: set[int] = set()

    def read() -> None:
        while not stop.is_set():
            page = tables.page("Thing", None, "", "", 1000)
            ids = [each.entity for each in page.items]
            if ids != sorted(set(ids)) or page.total != len(ids):
                errors.append(f"{len(ids)} of {page.total}")
            taken.update(changes.take().operands.values())

    readers = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(20_000):
        log.rows.append(moved(f"thing_{number % 500:03d}", number))
        log.operands.append(number)
        if len(log.rows) >= log.look_at:
            log.look()
    stop.set()
    for reader in readers:
        reader.join(60)

    assert errors == []
    assert taken | set(changes.take().operands.values()) == set(range(20_000))
    assert tables.counts() == {"Thing": {"UP": 500}}
    assert own.size() == 20_000
    assert [each.at for each in own.history("thing_007", limit=50).transitions] == list(range(19_507, 0, -500))[:50]


def test_sorted_ids_stay_in_order_whatever_comes_and_goes() -> None:
    chooser = random.Random(7)
    ids, expected = SortedIds(), set()
    for _ in range(20_000):
        text = f"{chooser.randrange(6000):04d}"
        if text in expected and chooser.random() < 0.45:
            expected.remove(text)
            ids.remove(text)
        elif text not in expected:
            expected.add(text)
            ids.add(text)

    in_order = sorted(expected)
    assert list(ids.following("", "")) == in_order
    for start in ("0000", "2999", "3000", "9999"):
        assert list(ids.following(start, "")) == [text for text in in_order if text > start]
        assert list(ids.following("", start)) == [text for text in in_order if text >= start]
    more = [f"{number:05d}" for number in chooser.sample(range(100_000), 20_000)]
    ids.add_all(more)
    assert list(ids.following("", "")) == sorted([*in_order, *more])
    for text in [*in_order, *more]:
        ids.remove(text)
    assert list(ids.following("", "")) == []
