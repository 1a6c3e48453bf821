"""What a scrape shows of dispatchers, and across scrapes: restarts, floods, and names that dashboards rely on."""

from __future__ import annotations

import gc
import shutil
import subprocess
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from dispatcher import AsyncDispatcher, DispatcherConfig, Event, register_metrics
from dispatcher.testing import ManualClock

from ...kit import TIMEOUT_S, Gate, Numbered, Work, in_threads, until
from ...kit.dispatchers import hold, stopping

Make = Callable[..., AsyncDispatcher]

Sample = tuple[str, tuple[tuple[str, str], ...]]

NAMES = {
    "dispatcher_event_queue_size",
    "dispatcher_event_queue_contents",
    "dispatcher_event_queue_capacity",
    "dispatcher_events_accepted",
    "dispatcher_events_handled",
    "dispatcher_events_failed",
    "dispatcher_events_rejected",
    "dispatcher_events_discarded",
    "dispatcher_events_dropped",
    "dispatcher_dead_letters",
    "dispatcher_dead_letters_lost",
    "dispatcher_events_retried",
    "dispatcher_events_retrying",
    "dispatcher_events_scheduled",
    "dispatcher_scheduled_fired",
    "dispatcher_scheduled_skipped",
    "dispatcher_event_queue_seconds",
    "dispatcher_event_handling_seconds",
    "dispatcher_event_type_queue_seconds",
    "dispatcher_event_type_handling_seconds",
    "dispatcher_handler_running_seconds",
    "dispatcher_running_seconds",
    "dispatcher_slow",
    "dispatcher_idle_seconds",
    "dispatcher_degraded",
    "dispatcher_failed",
    "dispatcher_mailbox_mails",
    "dispatcher_mailbox_latency_seconds",
    "dispatcher_journal_bytes",
    "dispatcher_journal_frames",
    "dispatcher_journal_syncs",
    "dispatcher_journal_segments",
    "dispatcher_journal_outstanding",
    "dispatcher_journal_failed",
    "dispatcher_journal_lost_events",
}


def scrape(registry: CollectorRegistry) -> dict[Sample, float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def of(registry: CollectorRegistry, name: str, dispatcher: str = "central", **labels: str) -> float | None:
    return registry.get_sample_value(name, {"dispatcher": dispatcher, **labels})


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def shown(make: Make, registry: CollectorRegistry) -> Make:
    """Makes dispatchers that the registry shows."""

    def shown(*args: Any, **options: Any) -> AsyncDispatcher:
        dispatcher = make(*args, **{"name": "central", "handler": lambda _: None, **options})
        register_metrics(dispatcher, registry)
        return dispatcher

    return shown


def handle_events(dispatcher: AsyncDispatcher, events: int) -> None:
    for number in range(events):
        dispatcher.post(Numbered(number))
    assert dispatcher.await_drained(TIMEOUT_S)


def is_freed(dispatcher: weakref.ref[Any]) -> bool:
    """To be waited for: the handler thread may not quite have ended, or collect garbage at the same moment."""
    gc.collect()
    return dispatcher() is None


def test_all_promised_names_are_there(shown: Make, registry: CollectorRegistry) -> None:
    shown()

    assert {family.name for family in registry.collect()} == NAMES


def test_a_scrape_shows_the_queue_by_type_and_what_was_handled_failed_and_refused(
    shown: Make, registry: CollectorRegistry, gate: Gate
) -> None:
    config = DispatcherConfig(queue_capacity=3, queue_full_policy="reject", measure_times="all")
    dispatcher = shown(config, handler=gate)
    for number, kind in enumerate([Work.DO, Work.DO, Work.MORE, Work.MORE]):
        hold(dispatcher, gate, Numbered(number, type=kind))
    assert not dispatcher.post(Numbered())

    while_busy = scrape(registry)
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)

    central = (("dispatcher", "central"),)
    assert while_busy["dispatcher_event_queue_size", central] == 3
    assert while_busy["dispatcher_event_queue_capacity", central] == 3
    assert while_busy["dispatcher_events_accepted_total", central] == 4
    kind_of_more = (*central, ("event_class", "Work"), ("event_type", "MORE"))
    assert while_busy["dispatcher_event_queue_contents", kind_of_more] == 2
    assert of(registry, "dispatcher_events_rejected_total", reason="full") == 1
    assert of(registry, "dispatcher_events_handled_total", event_class="Work", event_type="MORE") == 2
    assert of(registry, "dispatcher_event_queue_seconds_count") == 4
    assert of(registry, "dispatcher_event_handling_seconds_count") == 4
    assert of(registry, "dispatcher_event_handling_seconds_bucket", le="+Inf") == 4
    times = dispatcher.stats().handling_time
    assert times is not None
    assert of(registry, "dispatcher_event_handling_seconds_sum") == times.total_ns / 1e9
    assert of(registry, "dispatcher_event_queue_size") == 0


def test_a_queue_with_something_that_is_no_event_can_still_be_scraped(
    shown: Make, registry: CollectorRegistry, gate: Gate
) -> None:
    dispatcher = shown(handler=gate)
    for entry in (Numbered(), Numbered(), "no event", Event(type=["unhashable"])):  # type: ignore[type-var]
        dispatcher.post(entry)
    assert gate.entered.wait(TIMEOUT_S)

    assert of(registry, "dispatcher_event_queue_size") == 3
    assert dispatcher.queue_contents() == {Work.DO: 1}


def test_dispatchers_of_one_name_are_told_apart_while_both_are_in_use(
    registry: CollectorRegistry, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """One was posted 3 events and the other 5: the page showed 5."""
    first, second, third = (make(name="orders", handler=lambda _: None) for _ in range(3))

    for dispatcher, events in ((first, 3), (second, 5), (third, 7)):
        register_metrics(dispatcher, registry)
        register_metrics(dispatcher, registry)  # repeating it changes nothing
        for _ in range(events):
            dispatcher.post(Numbered())

    labels = ("orders", "orders#2", "orders#3")
    assert [of(registry, "dispatcher_events_accepted_total", dispatcher=label) for label in labels] == [3, 5, 7]
    assert caplog.messages == [
        f"orders: another dispatcher of this name is in use; the metrics show this one as {label}"
        for label in labels[1:]
    ]


def test_a_dispatcher_that_was_replaced_does_not_push_its_replacement_out(
    shown: Make, registry: CollectorRegistry
) -> None:
    first = shown(name="orders")
    first.stop()
    second = shown(name="orders")
    second.post(Numbered())

    register_metrics(first, registry)

    assert of(registry, "dispatcher_events_accepted_total", dispatcher="orders") == 1
    assert of(registry, "dispatcher_events_accepted_total", dispatcher="orders#2") == 0


def test_sources_get_the_label_of_their_dispatcher(shown: Make, registry: CollectorRegistry, make: Make) -> None:
    class Source:
        def collect(self, dispatcher: str) -> list[GaugeMetricFamily]:
            family = GaugeMetricFamily("extra", "Extra.", labels=["dispatcher"])
            family.add_metric([dispatcher], 1)
            return [family]

    shown(name="orders")

    register_metrics(make(name="orders"), registry, [Source()])

    assert of(registry, "extra", dispatcher="orders#2") == 1


def test_dispatchers_that_threads_register_at_the_same_time_are_all_shown(
    make: Make, registry: CollectorRegistry
) -> None:
    made = [make(name=f"number {number}") for number in range(8)]

    in_threads(*(lambda each=each: register_metrics(each, registry) for each in made))

    assert [of(registry, "dispatcher_event_queue_size", each.name) for each in made] == [0] * 8
    assert sorted(family.name for family in registry.collect()) == sorted(NAMES)  # by one collector


class Leading:
    """A source that leads to the registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def collect(self, dispatcher: str) -> list[GaugeMetricFamily]:
        return []


def test_a_registry_is_freed_though_what_it_shows_leads_to_it(make: Make) -> None:
    """Each resource manager that had ended stayed in memory, with all that it had known."""
    registry, dispatcher = CollectorRegistry(), make()
    register_metrics(dispatcher, registry, [Leading(registry)])
    freed = weakref.ref(registry)

    del registry

    until(lambda: is_freed(freed), "the release of the registry")


def test_each_reason_of_a_discard_is_a_sample_and_they_add_up(
    shown: Make, registry: CollectorRegistry, gate: Gate
) -> None:
    config = DispatcherConfig(queue_capacity=2, queue_full_policy="drop_oldest", drain_events_on_stop=False)
    dispatcher = shown(config, handler=gate)
    dispatcher.register(Work, lambda _: None, coalesce_by=lambda event: event.number or None)
    hold(dispatcher, gate)
    for number in (1, 1, 2, 3):
        dispatcher.post(Numbered(number))
    with stopping(dispatcher):
        gate.opened.set()

    dropped = {
        reason: of(registry, "dispatcher_events_dropped_total", reason=reason)
        for reason in ("superseded", "drop_oldest", "stop")
    }

    assert dropped["superseded"] == dropped["drop_oldest"] == 1
    assert sum(filter(None, dropped.values())) == of(registry, "dispatcher_events_discarded_total")


def test_two_registries_show_the_same_dispatcher(shown: Make, registry: CollectorRegistry) -> None:
    dispatcher, another = shown(), CollectorRegistry()
    register_metrics(dispatcher, another)
    handle_events(dispatcher, 3)

    assert [of(each, "dispatcher_events_accepted_total") for each in (registry, another)] == [3, 3]


def test_after_a_restart_there_is_each_sample_once_and_from_the_new_one(
    shown: Make, registry: CollectorRegistry
) -> None:
    for events in (5, 2):
        dispatcher = shown()
        handle_events(dispatcher, events)
        dispatcher.stop()

    samples = [
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    ]

    assert len(samples) == len(set(samples))
    assert of(registry, "dispatcher_events_handled_total", event_class="Work", event_type="DO") == 2


def test_a_stopped_dispatcher_without_references_is_freed(registry: CollectorRegistry) -> None:
    dispatcher = AsyncDispatcher(name="central")
    dispatcher.register(Work, lambda _: None)
    register_metrics(dispatcher, registry)
    with dispatcher:
        handle_events(dispatcher, 10)
        scrape(registry)
    gone = weakref.ref(dispatcher)

    del dispatcher

    until(lambda: is_freed(gone), "the release of the dispatcher")
    assert scrape(registry) == {}


def test_a_stopped_dispatcher_with_long_lived_timers_is_freed() -> None:
    clock = ManualClock()
    dispatcher = AsyncDispatcher(time_service=clock)
    with dispatcher:
        clock.advance(5000)
        assert dispatcher.await_drained(TIMEOUT_S)
    gone = weakref.ref(dispatcher)

    del dispatcher

    until(lambda: is_freed(gone), "the release of the dispatcher")


def test_in_scrapes_during_a_flood_no_counter_goes_back(shown: Make, registry: CollectorRegistry) -> None:
    dispatcher = shown()
    over = threading.Event()

    def produce() -> None:
        number = 0
        while not over.is_set() and number < 200_000:
            dispatcher.post(Numbered(number, type=(Work.DO, Work.MORE)[number % 2]))
            number += 1

    producers = [threading.Thread(target=produce) for _ in range(2)]
    for producer in producers:
        producer.start()
    try:
        scrapes = [scrape(registry) for _ in range(8)]
    finally:
        over.set()
        for producer in producers:
            producer.join(TIMEOUT_S)
    assert dispatcher.await_drained(TIMEOUT_S)
    scrapes.append(scrape(registry))

    counters = {key for seen in scrapes for key in seen if key[0].endswith(("_total", "_bucket", "_count", "_sum"))}
    assert len(counters) > 10
    for counter in counters:
        values = [seen[counter] for seen in scrapes if counter in seen]
        assert values == sorted(values), counter


def test_the_mailbox_latency_is_measured_once_a_second(shown: Make, registry: CollectorRegistry) -> None:
    clock = ManualClock()
    dispatcher = shown(time_service=clock)

    for _ in range(3):
        dispatcher.mailbox_executor.submit(lambda: None).result(TIMEOUT_S)  # the mail before this one has been run
        clock.advance(1000)
    dispatcher.mailbox_executor.submit(lambda: None).result(TIMEOUT_S)

    assert of(registry, "dispatcher_mailbox_latency_seconds_count") == 3


class HeldInItsEnd(Event[Any]):
    """An event whose release holds the handler thread: between the count of it and the end of its batch."""

    __slots__ = ()
    released = threading.Event()
    go_on = threading.Event()

    def __del__(self) -> None:
        self.released.set()
        self.go_on.wait(TIMEOUT_S)


def test_after_a_scrape_at_a_bad_moment_the_metrics_balance_again(shown: Make, registry: CollectorRegistry) -> None:
    """Invariant 4: accepted stayed one higher than the sum of what had become of the events."""
    posted = threading.Event()  # the handler thread, not this one, is to hold the last reference to the event

    def handle(_: Event[Any]) -> None:
        assert posted.wait(TIMEOUT_S)

    dispatcher = shown(DispatcherConfig(measure_times="none"), handler=handle)
    # Without a GIL, the thread that has made an event may have to release it. This one has ended by then.
    producer = threading.Thread(target=lambda: dispatcher.post(HeldInItsEnd(Work.DO)))
    producer.start()
    producer.join(TIMEOUT_S)
    posted.set()
    assert HeldInItsEnd.released.wait(TIMEOUT_S)

    scrape(registry)
    HeldInItsEnd.go_on.set()
    assert dispatcher.await_drained(TIMEOUT_S)

    assert of(registry, "dispatcher_events_accepted_total") == dispatcher.stats().accepted == 1


def test_a_dispatcher_that_comes_back_during_a_scrape_counts_from_0(shown: Make, registry: CollectorRegistry) -> None:
    first = shown()
    handle_events(first, 5)
    half_way = iter(registry.collect())
    next(half_way)
    first.stop()

    shown()
    list(half_way)

    assert of(registry, "dispatcher_events_accepted_total") == 0


def test_a_dispatcher_that_is_freed_during_a_scrape_does_not_fail_it(registry: CollectorRegistry) -> None:
    last = [AsyncDispatcher(name="central")]
    register_metrics(last[0], registry)
    [collector] = registry._collector_to_names

    class Dying(weakref.WeakValueDictionary[str, AsyncDispatcher]):
        """Its dispatcher is freed between two steps, as the garbage collector may do at any time."""

        def keys(self) -> Any:
            for name in list(super().keys()):
                last.clear()
                gc.collect()
                yield name

    collector._named = Dying({"central": last[0]})  # type: ignore[attr-defined]

    scrape(registry)  # with it or without it, but not KeyError


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_finds_nothing_wrong_with_all_kinds_of_samples(
    shown: Make, registry: CollectorRegistry, gate: Gate
) -> None:
    for name, policy in (("one", "reject"), ("two", "drop_oldest")):
        dispatcher = shown(DispatcherConfig(queue_capacity=1, queue_full_policy=policy), name=name, handler=gate)
        for odd in (Numbered(0), "no event", Numbered(1), Numbered(2)):
            dispatcher.post(odd)
    gate.opened.set()

    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=generate_latest(registry), capture_output=True, timeout=60, check=False
    )

    assert checked.returncode == 0, checked.stderr.decode()
