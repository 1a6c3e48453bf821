"""Garbage collection for daemons: rarely, and not among what has been set up."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from dispatcher.util.garbage import tune_garbage_collection


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


class Node:
    other: Node


def test_existing_objects_are_not_collected_again() -> None:
    tune_garbage_collection()

    assert gc.get_freeze_count() > 0


def test_new_cycles_are_still_freed() -> None:
    tune_garbage_collection()
    one, two = Node(), Node()
    one.other, two.other = two, one
    watched = weakref.ref(one)

    del one, two
    kept = [[] for _ in range(60_000)]  # new objects, as many as it takes

    assert watched() is None
    assert len(kept) == 60_000
