"""Counting what is queued: each event of a short queue, a sample of a long one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dispatcher import AsyncDispatcher, DispatcherConfig, register_metrics
from dispatcher.queue.contents import SAMPLE, QueueContents, sums
from dispatcher.queue.entry import STAMPED, Entry

from ...kit import Gate, Numbered, OfEntity, Unreadable, Work
from ...kit.dispatchers import hold

Make = Callable[..., AsyncDispatcher]

QUEUE = AsyncDispatcher().core.queue

DO, MORE = Numbered(type=Work.DO), Numbered(type=Work.MORE)


class Changing(deque[Any]):
    """A queue that changes while it is copied for the first time."""

    copies = 0

    def __iter__(self) -> Iterator[Any]:
        self.copies += 1
        if self.copies == 1:
            raise RuntimeError("deque mutated during iteration")
        return super().__iter__()


def counted(entries: deque[Any]) -> tuple[dict[Any, int], bool]:
    found, approximate = QueueContents(entries).by_type()
    return sums(found), approximate


def stamped(event: Any) -> Entry:
    return Entry(QUEUE, event, enqueued_ns=1)


def keyed(event: Any) -> Entry:
    return Entry(QUEUE, event, key=(Work, "key"))


def test_up_to_the_size_of_a_sample_each_event_is_counted() -> None:
    queue = deque([DO] * (SAMPLE - 1) + [MORE])

    assert counted(queue) == ({Work.DO: SAMPLE - 1, Work.MORE: 1}, False)


@pytest.mark.parametrize("stretches", [1.5, 2, 5])
def test_a_longer_queue_is_counted_by_a_sample_that_is_scaled(stretches: float) -> None:
    queued = int(SAMPLE * stretches)
    queue = deque([DO] * (queued // 4) + [MORE] * (queued - queued // 4))  # spread: not the first ones only

    counts, approximate = counted(queue)

    assert approximate
    assert sum(counts.values()) == pytest.approx(queued, abs=2)
    assert counts[Work.DO] == pytest.approx(queued / 4, rel=0.01)


@pytest.mark.parametrize("period", [2, 4, 5])
def test_a_sample_shows_types_that_alternate(period: int) -> None:
    """Every fourth event would be of one type only."""
    queue = deque(([DO] + [MORE] * (period - 1)) * (4 * SAMPLE // period))

    counts, _ = counted(queue)

    assert counts[Work.DO] == pytest.approx(4 * SAMPLE / period, rel=0.05)


def test_events_in_entries_and_events_without_a_type_are_counted_as_well() -> None:
    unreadable = [stamped(Unreadable()), Unreadable(), object()]
    queue: deque[Any] = deque([DO, stamped(DO), keyed(MORE), *unreadable, stamped(MORE)])

    assert counted(queue) == ({Work.DO: 2, Work.MORE: 2}, False)


def test_stamped_entries_are_counted_as_their_events() -> None:
    named = OfEntity("app_1")
    entries: deque[Any] = deque((event, 1, STAMPED) for event in [DO, MORE, MORE, named, Unreadable(), ()])
    contents = QueueContents(deque([*entries, keyed(MORE)]), are_stamped=True)

    assert sums(contents.by_type()[0]) == {Work.DO: 2, Work.MORE: 3}
    assert contents.by_entity(10).counts == {"app_1": 1}


def test_a_queue_that_changes_while_it_is_copied_is_copied_again() -> None:
    queue = Changing([DO, DO])

    assert counted(queue) == ({Work.DO: 2}, False)
    assert queue.copies == 2


def test_the_entities_with_most_events_come_first() -> None:
    events = [OfEntity("a"), *[OfEntity("b")] * 3, *[OfEntity(7)] * 2, OfEntity(None), DO, Unreadable()]
    queue: deque[Any] = deque([*events, stamped(OfEntity("a")), keyed(OfEntity("a"))])

    found = QueueContents(queue).by_entity(2)

    assert (list(found.counts.items()), found.approximate) == ([("a", 3), ("b", 3)], False)


def test_entities_of_a_long_queue_are_sampled() -> None:
    queue: deque[Any] = deque([OfEntity("a"), OfEntity("b"), OfEntity("b"), DO] * SAMPLE)

    found = QueueContents(queue).by_entity(20)

    assert found.approximate
    assert list(found.counts) == ["b", "a"]
    assert found.counts["a"] == pytest.approx(SAMPLE, rel=0.05)


def test_a_scrape_and_the_view_count_a_long_queue_by_a_sample(make: Make, gate: Gate) -> None:
    registry = CollectorRegistry()
    config = DispatcherConfig(drain_events_on_stop=False, print_events_info_threshold=10**9)
    dispatcher = make(config, name="central", handler=gate)
    register_metrics(dispatcher, registry)
    hold(dispatcher, gate, DO)
    for event in [DO, MORE] * SAMPLE:
        dispatcher.event_handler.handle(event)

    labels = {"dispatcher": "central", "event_class": "Work", "event_type": "DO"}
    shown = registry.get_sample_value("dispatcher_event_queue_contents", labels)
    counts = dispatcher.view.queue_contents()

    assert counts.approximate
    assert counts.counts.keys() == {Work.DO, Work.MORE}
    for count in (shown, counts.counts[Work.DO], dispatcher.queue_contents()[Work.DO]):
        assert count == pytest.approx(SAMPLE, rel=0.05)


def test_the_newest_events_are_counted_by_a_sample() -> None:
    queue = QueueContents(deque([DO] * 1000 + [MORE] * 500))

    assert queue.newest(500, 50) == [(Work.MORE, 50)]
    assert sums(queue.newest(600, 600)) == {Work.DO: 100, Work.MORE: 500}
    assert QueueContents(deque()).newest(10, 50) == []
