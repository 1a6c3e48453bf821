"""The ring of the last transitions: what it keeps, what it forgets, and how much memory it takes."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from typing import Any

from dispatcher.metrics.transition_ring import KEPT, TransitionRing


def moves(*entities: str, at: int = 0, before: str = "NEW") -> list[tuple[Any, ...]]:
    return [(entity, "Job", before, "GO", "UP", at + number) for number, entity in enumerate(entities)]


def test_transitions_are_numbered_and_come_newest_first() -> None:
    ring = TransitionRing(10)

    ring.add([*moves("a", "b", at=100), ("a", "Job", "UP", "", "", 0)])  # that it is forgotten is no transition
    ring.add(moves("a", at=200))

    found = ring.history("a")
    assert [(each.number, each.at, each.to_state, each.valid) for each in found.transitions] == [
        (3, 200, "UP", True),
        (1, 100, "UP", True),
    ]
    assert (found.has_more, found.is_whole) == (False, True)


def test_only_transitions_of_the_machine_are_found() -> None:
    ring = TransitionRing(10)
    ring.add(moves("a"))

    assert ring.history("a", "Batch").transitions == []
    assert len(ring.history("a", "Job").transitions) == 1


def test_only_changes_of_state_are_found_if_only_they_are_wanted() -> None:
    """An entity that handled many events in one state had no place left for its changes."""
    ring = TransitionRing(1000)
    ring.add(moves("a"))
    ring.add(moves(*("a",) * 300, before="UP"))

    found = ring.history("a", limit=200, changes_only=True)

    assert [each.number for each in found.transitions] == [1]
    assert not found.has_more


def test_the_oldest_are_forgotten_one_by_one_as_it_seems() -> None:
    ring = TransitionRing(10)
    for number in range(8):
        ring.add(moves(*("a",) * 3, at=number * 3))

        kept = ring.history("a", limit=1000)
        assert [each.number for each in kept.transitions] == list(range(number * 3 + 3, max(0, number * 3 - 7), -1))
    assert not kept.is_whole


def test_a_chunk_beyond_the_size_is_cut() -> None:
    ring = TransitionRing(4)

    ring.add(moves(*"abcdefgh"))

    assert ring.size() == 4
    assert ring.history("d").transitions == []
    assert [each.number for each in ring.history("e").transitions] == [5]


def test_transitions_added_while_a_history_is_read_do_not_hide_older_ones() -> None:
    """The numbers of the kept ones were computed from a count that was read after the lock was released."""
    ring = TransitionRing(10)
    ring.add(moves("a", "b"))

    class Meanwhile:
        """A lock after whose first release another thread adds transitions."""

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            ring._lock = threading.Lock()
            ring.add(moves(*"bbbbbbbb"))

    ring._lock = Meanwhile()  # type: ignore[assignment]

    assert [each.number for each in ring.history("a").transitions] == [1]


def test_rows_are_added_without_an_object_for_each() -> None:
    """Each row had an iterator of its own for a moment: so many objects started collections, of all rows as well."""
    ring, rows, collections = TransitionRing(200_000), moves(*map(str, range(10_000))), 0

    def count(phase: str, info: dict[str, int]) -> None:
        nonlocal collections
        collections += phase == "stop"

    gc.collect()
    gc.callbacks.append(count)
    try:
        ring.add(rows)
    finally:
        gc.callbacks.remove(count)

    assert collections <= 1


def test_it_is_switched_off_and_on() -> None:
    ring = TransitionRing(0)
    ring.add(moves("a"))
    ring.resize(5)
    ring.add(moves("a"))
    assert [each.number for each in ring.history("a").transitions] == [2]
    assert not ring.history("a").is_whole

    ring.resize(0)

    assert ring.size() == 0
    assert ring.history("a").transitions == []


def test_as_many_as_a_door_keeps_take_less_than_32_mb() -> None:
    """Even if each is about an entity of its own, with an id as long as a container's of YARN. A tenth is measured."""
    tracemalloc.start()
    try:
        ring = TransitionRing(KEPT // 10)
        for chunk in range(60):
            first = chunk * 500
            names = [f"container_1700000000000_0001_01_{first + number:08d}" for number in range(500)]
            ring.add(moves(*names, at=first))
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert KEPT // 10 <= ring.size() <= KEPT // 10 + 500
    assert held * 10 < 32_000_000
