"""What threads share without a lock of ours: registries, numbers, and looks into a deque that changes."""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice

from dispatcher.util.registry import Numbers, Registry, copy_of, each_of


class Thing:
    pass


@contextmanager
def again_and_again(act: Callable[[], None]) -> Iterator[None]:
    """Two other threads do that all the time."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            act()

    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run) for _ in range(2)]
        try:
            yield
        finally:
            is_over.set()
        for each in runs:
            each.result(60)


def test_what_is_listed_comes_in_the_order_in_which_it_was_added() -> None:
    registry: Registry[Thing] = Registry()
    things = [Thing() for _ in range(3)]

    for thing in (*things, things[0]):
        registry.add(thing)

    assert registry.all() == things


def test_what_was_discarded_or_released_is_not_listed() -> None:
    registry: Registry[Thing] = Registry()
    kept, discarded, released = Thing(), Thing(), Thing()
    for thing in (kept, discarded, released):
        registry.add(thing)

    registry.discard(discarded)
    registry.discard(discarded)
    del thing, released
    gc.collect()

    assert registry.all() == [kept]


def test_nothing_is_missed_while_other_threads_add_and_release() -> None:
    """An iteration of a WeakSet passed over members while its table grew."""
    registry: Registry[Thing] = Registry()
    kept = [Thing() for _ in range(50)]
    for thing in kept:
        registry.add(thing)

    def churn() -> None:
        for thing in [Thing() for _ in range(100)]:
            registry.add(thing)

    with again_and_again(churn):
        found = [set(map(id, registry.all())) for _ in range(300)]

    assert all({id(thing) for thing in kept} <= each for each in found)


def test_no_number_is_given_twice() -> None:
    numbers = Numbers()

    with ThreadPoolExecutor(4) as pool:
        given = list(pool.map(lambda _: [numbers.next() for _ in range(5_000)], range(4)))

    assert sorted(number for each in given for number in each) == list(range(1, 20_001))
    assert all(each == sorted(each) for each in given)


def test_a_deque_is_copied_whatever_other_threads_do_to_it() -> None:
    """Without a GIL `deque.copy` raised each time, and a copy that was tried until it succeeded never came."""
    queue = deque(range(2_000))

    def churn() -> None:
        queue.append(0)
        queue.popleft()

    with again_and_again(churn):
        sizes = [len(copy_of(queue)) for _ in range(50)]

    assert all(1_900 < size < 2_100 for size in sizes)


def test_items_of_a_deque_are_read_from_the_left_though_others_are_appended() -> None:
    queue = deque("ab")

    items = each_of(queue)
    first = next(items)
    queue.append("c")

    assert [first, *items] == ["a", "b", "c"]
    assert list(islice(each_of(queue), 2)) == ["a", "b"]
