"""The log of node changes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from statemachines.resourcemanager.machines.node_changes import NodeChange, NodeChangeLog

from ..inner import NodesListManagerEventType

pytestmark = pytest.mark.long

USABLE, UNUSABLE = NodesListManagerEventType.NODE_USABLE, NodesListManagerEventType.NODE_UNUSABLE


@pytest.fixture(autouse=True)
def _older_objects_apart() -> Iterator[None]:
    """Looking through what earlier tests have left takes seconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def kept() -> int:
    """The changes in memory."""
    gc.collect()
    return sum(type(each) is NodeChange for each in gc.get_objects())


def test_position_hears_what_came_after_it() -> None:
    log = NodeChangeLog()
    log.note("a:1", USABLE)
    position = log.latest

    log.note("b:1", USABLE)
    log.note("a:1", UNUSABLE)

    assert log.since(position) == [("b:1", USABLE), ("a:1", UNUSABLE)]
    assert log.since(log.latest) == []


def test_changes_that_every_position_has_passed_are_freed() -> None:
    log, before = NodeChangeLog(), kept()
    slow = log.latest
    for number in range(100):
        log.note(f"node{number}:1", USABLE)
    while_one_is_behind = kept() - before

    slow = log.latest

    assert (while_one_is_behind, kept() - before) == (100, 0)
    assert log.since(slow) == []


def test_long_chain_of_changes_is_freed_without_recursion() -> None:
    log, before = NodeChangeLog(), kept()
    slow = log.latest
    for _ in range(100 * sys.getrecursionlimit()):
        log.note("node1:1", USABLE)

    slow = log.latest

    assert (kept() - before, log.since(slow)) == (0, [])
