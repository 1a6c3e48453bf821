"""Garbage collection for daemons: of what is new, and not among what has been set up or has lived for a while."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import pytest

from dispatcher.util.garbage import EVERY_S, GROWTH, LEAST, LOOK_EVERY, YOUNG, Freezer, tune_garbage_collection

from ..kit import TIMEOUT_S, until
from ..kit.interrupting import INTERRUPTED_THREADS, Interrupt

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """As the fixture of all tests, for a Freezer without tuning too."""
    yield
    gc.callbacks[:] = [each for each in gc.callbacks if not isinstance(each, Freezer)]
    gc.unfreeze()
    gc.freeze()


class Node:
    other: Node


def cycle() -> Node:
    one, two = Node(), Node()
    one.other, two.other = two, one
    return one


@contextmanager
def objects_covered() -> Iterator[list[int]]:
    """How many objects each collection in the block looks at."""
    covered: list[int] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            covered.append(sum(len(gc.get_objects(each)) for each in range(info["generation"] + 1)))

    gc.callbacks.append(look)
    try:
        yield covered
    finally:
        gc.callbacks.remove(look)


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
    existing, frozen = [[] for _ in range(YOUNG)], gc.get_freeze_count()
    tune_garbage_collection()
    assert gc.get_freeze_count() >= frozen + len(existing), "what exists is frozen at once"
    with objects_covered() as covered:
        kept = [[] for _ in range(40 * YOUNG)]

    assert len(kept) == 40 * YOUNG
    assert len(covered) > 30
    assert max(covered) < 2 * YOUNG  # objects of other threads, and of the tests' tools, come between


def test_an_object_is_looked_at_by_one_collection() -> None:
    """Two looked at each: the young one that it survived, and the next one of the middle generation."""
    tune_garbage_collection()
    before = [each["collections"] for each in gc.get_stats()]
    kept = [[] for _ in range(10 * YOUNG)]

    assert len(kept) == 10 * YOUNG
    after = [each["collections"] for each in gc.get_stats()]
    assert (after[0] > before[0], after[1:]) == (True, before[1:])
    assert len(gc.get_objects(0)) < 2 * YOUNG
    assert gc.get_objects(1) == []


# -- regularly ---------------------------------------------------------------------------------------------------------


class Pauses:
    """The waits of a Freezer's thread: `end` ends one, and returns once the thread waits again, or has ended."""

    def __init__(self, freezer: Freezer, but: Collection[threading.Thread] = ()) -> None:
        self.lengths_s: list[float] = []
        self._begun: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        freezer.collect_regularly(self._wait)
        (self.thread,) = (each for each in threading.enumerate() if each.name == "garbage" and each not in but)
        self._begun.get(timeout=TIMEOUT_S)

    def end(self) -> None:
        self._ended.put(None)
        self._begun.get(timeout=TIMEOUT_S)

    def end_last(self) -> None:
        self._ended.put(None)
        self.thread.join(TIMEOUT_S)

    def _wait(self, seconds: float) -> None:
        self.lengths_s.append(seconds)
        self._begun.put(None)
        self._ended.get(timeout=TIMEOUT_S)


@pytest.fixture
def blocks() -> list[int]:
    """The memory blocks in use: one number."""
    return [LEAST]


@pytest.fixture
def freezer(blocks: list[int]) -> Iterator[tuple[Freezer, Pauses]]:
    """With a thread that collects, which waits; nothing else collects."""
    gc.set_threshold(10**9)
    freezer = Freezer(lambda: blocks[0])
    gc.callbacks.append(freezer)
    pauses = Pauses(freezer)
    yield freezer, pauses
    if freezer in gc.callbacks:
        gc.callbacks.remove(freezer)
        pauses.end_last()


def test_a_daemon_that_frees_as_much_as_it_makes_collects_regularly(freezer: tuple[Freezer, Pauses]) -> None:
    """The collector counts objects made less objects freed: beside 10,000 nodes, and 10,000 applications that come and
    go, one collection covered 170,000 objects and held all threads for 0.3 s."""
    _, pauses = freezer
    entities = [Node() for _ in range(10_000)]
    pauses.end()

    with objects_covered() as covered:
        for start in range(0, len(entities), 1_000):
            for at in range(start, start + 1_000):
                entities[at] = Node()
            pauses.end()

    assert len(covered) == 10
    assert max(covered) < 3_000
    assert set(pauses.lengths_s) == {EVERY_S}


def test_a_regular_collection_frees_new_cycles_and_freezes_the_rest(freezer: tuple[Freezer, Pauses]) -> None:
    _, pauses = freezer
    dropped, kept = cycle(), [Node() for _ in range(10_000)]
    watched = weakref.ref(dropped)
    del dropped
    before = gc.get_freeze_count()

    pauses.end()

    assert watched() is None
    assert gc.get_freeze_count() >= before + len(kept)


@pytest.mark.parametrize("is_regular", [False, True])
def test_once_the_process_has_grown_a_collection_covers_what_was_frozen(
    freezer: tuple[Freezer, Pauses], blocks: list[int], is_regular: bool
) -> None:
    _, pauses = freezer
    collect: Callable[[], object] = pauses.end if is_regular else gc.collect
    kept, dropped = cycle(), cycle()
    watched = weakref.ref(dropped)
    collect()  # the cycles are frozen
    del dropped
    collect()
    assert watched() is not None

    blocks[0] = GROWTH * LEAST + 1
    for _ in range(LOOK_EVERY + 1):
        collect()

    assert watched() is None
    assert kept.other.other is kept
    assert gc.get_freeze_count() > 0
    collect()
    assert gc.get_freeze_count() > 0, "the process has not grown since"


def test_after_another_collection_no_regular_one_follows(freezer: tuple[Freezer, Pauses]) -> None:
    _, pauses = freezer
    gc.collect(1)
    before = gc.get_stats()[1]["collections"]

    pauses.end()

    assert gc.get_stats()[1]["collections"] == before


def test_the_thread_ends_once_the_freezer_is_no_callback(freezer: tuple[Freezer, Pauses]) -> None:
    it, pauses = freezer
    it.collect_regularly()  # it runs: no second one
    gc.callbacks.remove(it)

    pauses.end_last()

    assert not pauses.thread.is_alive()
    assert not [each for each in threading.enumerate() if each.name == "garbage"]


@pytest.mark.parametrize("interrupted", INTERRUPTED_THREADS)
def test_one_thread_collects_after_a_start_that_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, interrupted: type[threading.Thread]
) -> None:
    """Where `threading` did not know yet that the interrupted one runs, the next call started a second one for good."""
    freezer = Freezer()
    gc.callbacks.append(freezer)
    is_over = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", interrupted)
        with pytest.raises(Interrupt):
            freezer.collect_regularly(lambda _: is_over.wait(TIMEOUT_S))

    pauses = Pauses(freezer, but=[each for each in threading.enumerate() if each.name == "garbage"])
    is_over.set()

    until(lambda: [each for each in threading.enumerate() if each.name == "garbage"] == [pauses.thread], "one is left")
    pauses.end()
    gc.callbacks.remove(freezer)
    pauses.end_last()
