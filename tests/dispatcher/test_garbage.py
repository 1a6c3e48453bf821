"""Garbage collection for daemons: of what is new, and not among what has been set up or has lived for a while."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from dispatcher.util.garbage import GROWTH, LEAST, MIDDLE, OLD, YOUNG, Freezer, tune_garbage_collection

MOST_AT_ONCE = YOUNG * (MIDDLE + 2) * (OLD + 2)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """As the fixture of all tests, for a Freezer without tuning too."""
    yield
    gc.callbacks[:] = [each for each in gc.callbacks if not isinstance(each, Freezer)]
    gc.unfreeze()


class Node:
    other: Node


def cycle() -> Node:
    one, two = Node(), Node()
    one.other, two.other = two, one
    return one


def test_existing_objects_are_not_collected_again() -> None:
    tune_garbage_collection()

    assert gc.get_freeze_count() > 0


def test_new_cycles_are_still_freed() -> None:
    tune_garbage_collection()
    one = cycle()
    watched = weakref.ref(one)

    del one
    kept = [[] for _ in range(60_000)]  # new objects, as many as it takes

    assert watched() is None
    assert len(kept) == 60_000


def test_no_collection_covers_more_than_what_is_new() -> None:
    """Collections of the oldest generation covered all objects since the start: 0.3 to 0.7 s in a large cluster."""
    covered: list[int] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            covered.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

    tune_garbage_collection()
    gc.callbacks.append(look)
    try:
        kept = [[] for _ in range(6 * MOST_AT_ONCE)]
    finally:
        gc.callbacks.remove(look)

    assert len(kept) == 6 * MOST_AT_ONCE
    assert len(covered) > 50
    assert max(covered) < 2 * MOST_AT_ONCE  # objects of other threads, and of the tests' tools, come between


def test_a_cycle_that_was_dropped_after_it_was_frozen_goes_once_the_process_has_grown() -> None:
    blocks = [LEAST]
    freezer = Freezer(lambda: blocks[0])
    gc.callbacks.append(freezer)
    kept, dropped = cycle(), cycle()
    watched = weakref.ref(dropped)
    gc.collect()  # the cycles are frozen after it
    del dropped
    gc.collect()
    assert watched() is not None

    blocks[0] = GROWTH * LEAST + 1
    gc.collect()  # after this one, all objects are to be looked at
    assert gc.get_freeze_count() == 0
    gc.collect()

    assert watched() is None
    assert kept.other.other is kept
    assert gc.get_freeze_count() > 0
    gc.collect()
    assert gc.get_freeze_count() > 0, "the process has not grown since"
