"""The times of events by their type: all of them, or in a flood one event of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dispatcher import AsyncDispatcher, DispatcherConfig, JournalWriter, register_metrics

from ...kit import TIMEOUT_S, Numbered, Work, until

Make = Callable[..., AsyncDispatcher]

TIMED_MODULES = (
    "dispatcher.dispatching.batches",
    "dispatcher.dispatching.journaled",
    "dispatcher.dispatching.lone",
    "dispatcher.dispatching.times",
    "dispatcher.queue.inbox",
    "dispatcher.queue.flags",
)


class Clock:
    """Stands still but for what handlers take."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns


class Taking:
    """A handler of which each event takes as long as its type says, and up to a half more or less in turn."""

    def __init__(self, clock: Clock, **took_ns: int) -> None:
        self.clock = clock
        self.took_ns = {Work[name]: took for name, took in took_ns.items()}
        self.fails = False

    def __call__(self, event: Numbered) -> None:
        took_ns = self.took_ns[event.type]
        self.clock.now_ns += took_ns + took_ns * (event.number % 11 - 5) // 10
        if self.fails:
            raise RuntimeError("broken")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in TIMED_MODULES:
        monkeypatch.setattr(f"{module}.perf_counter_ns", clock)
    return clock


def flood(dispatcher: AsyncDispatcher, kinds: Iterable[Work]) -> None:
    """Post events while the handler thread is busy with a mail, and have them handled."""

    def post() -> None:
        for number, kind in enumerate(kinds):
            dispatcher.post(Numbered(number, type=kind))

    dispatcher.mailbox_executor.submit(post).result(TIMEOUT_S)
    assert dispatcher.await_drained(TIMEOUT_S)


def numbers(dispatcher: AsyncDispatcher) -> dict[str, Any]:
    return {each.event_type: each for each in dispatcher.view.types()}


def shares(dispatcher: AsyncDispatcher) -> dict[str, float]:
    """Of the time in handlers, by type."""
    times = {
        name: each.handling_s / each.timed * (each.handled + each.failed) for name, each in numbers(dispatcher).items()
    }
    return {name: time / sum(times.values()) for name, time in times.items()}


@pytest.mark.parametrize(
    ("took_ns", "is_flood"),
    [({"DO": 1_000, "MORE": 100_000}, False), ({"DO": 1_000, "MORE": 15_000}, True), ({"DO": 100, "MORE": 900}, True)],
)
def test_the_shares_of_time_of_two_mixed_types_are_as_if_each_event_were_timed(
    make: Make, clock: Clock, took_ns: dict[str, int], is_flood: bool
) -> None:
    sampled = make(DispatcherConfig(measure_times="sampled"), handler=Taking(clock, **took_ns))
    every = make(DispatcherConfig(measure_times="all"), handler=Taking(clock, **took_ns))

    for dispatcher in (sampled, every):
        flood(dispatcher, [Work.DO, Work.MORE] * 5_000)

    timed = {name: each.timed for name, each in numbers(sampled).items()}
    assert shares(sampled) == pytest.approx(shares(every), rel=0.1)
    assert {name: each.timed for name, each in numbers(every).items()} == {"DO": 5_000, "MORE": 5_000}
    if is_flood:
        assert 15 <= min(timed.values()) <= max(timed.values()) <= 400  # 40 batches; the first timed each event
    else:
        assert timed == {"DO": 5_000, "MORE": 5_000}  # so slow that timing costs little


def test_in_a_flood_each_event_of_a_rare_type_is_timed(make: Make, clock: Clock) -> None:
    """Whatever its place in the batch, and although a frequent type fills every batch; but for its very first event."""
    dispatcher = make(handler=Taking(clock, DO=100, MORE=300))

    flood(dispatcher, [Work.MORE if number % 1_007 == 999 else Work.DO for number in range(15_000)])

    types = numbers(dispatcher)
    assert (types["MORE"].handled, types["MORE"].timed) == (14, 13)
    assert 30 <= types["DO"].timed <= 400


def test_a_type_that_gets_another_handler_while_its_next_event_is_to_be_timed_goes_to_that_one(
    make: Make, clock: Clock
) -> None:
    handler, other = Taking(clock, DO=100), Taking(clock, DO=700)
    dispatcher = make(handler=handler)
    flood(dispatcher, [Work.DO] * 5_000)
    before = numbers(dispatcher)["DO"]

    assert dispatcher.unregister(Work, handler)
    dispatcher.register(Work, other)
    flood(dispatcher, [Work.DO] * 10_000)

    after = numbers(dispatcher)["DO"]
    assert after.timed - before.timed > 30
    mean_ns = (after.handling_s - before.handling_s) / (after.timed - before.timed) * 1e9
    assert mean_ns == pytest.approx(700, rel=0.1)


def test_events_that_fail_are_timed_by_type_as_well(make: Make, clock: Clock) -> None:
    handler = Taking(clock, DO=100)
    dispatcher = make(handler=handler)
    flood(dispatcher, [Work.DO] * 1_000)
    before = numbers(dispatcher)["DO"].timed

    handler.fails = True
    flood(dispatcher, [Work.DO] * 1_000)

    assert numbers(dispatcher)["DO"].failed == 1_000
    assert before + 2 <= numbers(dispatcher)["DO"].timed <= before + 200


def test_with_none_no_type_is_timed(make: Make, clock: Clock) -> None:
    registry = CollectorRegistry()
    dispatcher = make(DispatcherConfig(measure_times="none"), handler=Taking(clock, DO=100))
    register_metrics(dispatcher, registry)

    flood(dispatcher, [Work.DO] * 5_000)

    assert (numbers(dispatcher)["DO"].timed, numbers(dispatcher)["DO"].queue_timed) == (0, 0)
    shown = of(registry)
    assert "dispatcher_event_type_handling_seconds_sum" not in shown
    assert "dispatcher_event_queue_seconds_count" not in shown


def test_a_journal_times_each_event_by_its_type(make: Make, clock: Clock, tmp_path: Path) -> None:
    dispatcher = make(handler=Taking(clock, DO=1_000, MORE=3_000), journal=JournalWriter(tmp_path / "journal"))

    flood(dispatcher, [Work.DO, Work.MORE] * 1_100)

    types = numbers(dispatcher)
    assert [(types[name].timed, types[name].queue_timed) for name in ("DO", "MORE")] == [(1_100, 1_100)] * 2
    assert types["DO"].handling_s == pytest.approx(1_100e-6)
    assert types["MORE"].handling_s == pytest.approx(3_300e-6)


def test_a_scrape_shows_sums_and_counts_by_type(make: Make, clock: Clock) -> None:
    registry = CollectorRegistry()
    dispatcher = make(DispatcherConfig(measure_times="all"), name="central", handler=Taking(clock, DO=1_000))
    register_metrics(dispatcher, registry)

    flood(dispatcher, [Work.DO] * 11)
    until(lambda: dispatcher.view.types() != [])

    labels = {"dispatcher": "central", "event_class": "Work", "event_type": "DO"}
    shown = of(registry)
    for name, expected in {
        "dispatcher_event_type_handling_seconds_count": 11,
        "dispatcher_event_type_handling_seconds_sum": 11e-6,
        "dispatcher_event_type_queue_seconds_count": 11,
        "dispatcher_event_type_queue_seconds_sum": 55e-6 - 0.0,
    }.items():
        assert shown[name] == [(labels, pytest.approx(expected, rel=0.3))]


def of(registry: CollectorRegistry) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found
