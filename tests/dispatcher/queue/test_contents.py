"""Counting what is queued: each event of a short queue, a sample of a long one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dispatcher import AsyncDispatcher, DispatcherConfig, register_metrics

from ...kit import Gate, Numbered, OfEntity, Other, Unreadable, Work
from ...kit.dispatchers import hold

Make = Callable[..., AsyncDispatcher]

SAMPLE = 10_000
DO, MORE = Numbered(type=Work.DO), Numbered(type=Work.MORE)


def queued(events: Iterable[Any], **config: Any) -> AsyncDispatcher:
    """A dispatcher that is not started."""
    dispatcher = AsyncDispatcher(DispatcherConfig(**config))
    dispatcher.register(Other, print, coalesce_by=lambda event: event.number)
    for event in events:
        dispatcher.post(event)
    return dispatcher


def test_up_to_the_size_of_a_sample_each_event_is_counted() -> None:
    found = queued([DO] * (SAMPLE - 1) + [MORE]).view.queue_contents(SAMPLE)

    assert (found.counts, found.approximate) == ({Work.DO: SAMPLE - 1, Work.MORE: 1}, False)


@pytest.mark.parametrize("stretches", [1.5, 2, 5])
def test_a_longer_queue_is_counted_by_a_sample_that_is_scaled(stretches: float) -> None:
    size = int(SAMPLE * stretches)

    # Spread: not the first ones only.
    found = queued([DO] * (size // 4) + [MORE] * (size - size // 4)).view.queue_contents(SAMPLE)

    assert found.approximate
    assert sum(found.counts.values()) == pytest.approx(size, abs=2)
    assert found.counts[Work.DO] == pytest.approx(size / 4, rel=0.01)


@pytest.mark.parametrize("period", [2, 4, 5])
def test_a_sample_shows_types_that_alternate(period: int) -> None:
    """Every fourth event would be of one type only."""
    found = queued(([DO] + [MORE] * (period - 1)) * (4 * SAMPLE // period)).view.queue_contents(SAMPLE)

    assert found.counts[Work.DO] == pytest.approx(4 * SAMPLE / period, rel=0.05)


@pytest.mark.parametrize("measure_times", ["all", "sampled", "none"])
def test_an_event_is_counted_whatever_else_the_queue_keeps_with_it(measure_times: str) -> None:
    keyed = Numbered(type=Other.DO)  # type: ignore[arg-type]
    view = queued([DO, MORE, MORE, OfEntity("a"), Unreadable(), object(), (), keyed], measure_times=measure_times).view

    assert view.queue_contents().counts == {Work.DO: 2, Work.MORE: 2, Other.DO: 1}
    assert view.queue_entities().counts == {"a": 1}


def test_the_entities_with_most_events_come_first() -> None:
    events = [OfEntity("a"), *[OfEntity("b")] * 3, *[OfEntity(7)] * 2, OfEntity(None), DO, Unreadable()]

    found = queued([*events, OfEntity("a"), OfEntity("a")]).view.queue_entities(2)

    assert (list(found.counts.items()), found.approximate) == ([("a", 3), ("b", 3)], False)


def test_entities_of_a_long_queue_are_sampled() -> None:
    found = queued([OfEntity("a"), OfEntity("b"), OfEntity("b"), DO] * SAMPLE).view.queue_entities(20, SAMPLE)

    assert found.approximate
    assert list(found.counts) == ["b", "a"]
    assert found.counts["a"] == pytest.approx(SAMPLE, rel=0.05)


def test_a_scrape_and_the_view_count_a_long_queue_by_a_sample(make: Make, gate: Gate) -> None:
    registry, each = CollectorRegistry(), 50_000
    config = DispatcherConfig(drain_events_on_stop=False, print_events_info_threshold=10**9)
    dispatcher = make(config, name="central", handler=gate)
    register_metrics(dispatcher, registry)
    hold(dispatcher, gate, DO)
    for event in [DO, MORE] * each:
        dispatcher.post(event)

    labels = {"dispatcher": "central", "event_class": "Work", "event_type": "DO"}
    shown = registry.get_sample_value("dispatcher_event_queue_contents", labels)
    counts = dispatcher.view.queue_contents()

    assert counts.approximate
    assert counts.counts.keys() == {Work.DO, Work.MORE}
    for count in (shown, counts.counts[Work.DO], dispatcher.queue_contents()[Work.DO]):
        assert count == pytest.approx(each, rel=0.05)


def test_the_newest_events_are_counted_by_a_sample() -> None:
    view = queued([DO] * 1000 + [MORE] * 500).view

    assert view.newest_queued(500, 50).counts == {Work.MORE: 50}
    assert view.newest_queued(600, 600).counts == {Work.DO: 100, Work.MORE: 500}
    assert queued([]).view.newest_queued(10, 50).counts == {}
