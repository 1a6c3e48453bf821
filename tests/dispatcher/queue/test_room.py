"""What a post to a full queue does, and that the bound is strict under each policy.

What a single producer finds under `reject` and `drop_oldest` is in test_dispatcher_model.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dispatcher import AsyncDispatcher, DispatcherConfig, QueueFullError, aio, register_metrics
from dispatcher.queue.entry import Entry

from ...kit import TIMEOUT_S, Gate, Numbered, Work, assert_accounts_balance, in_threads, until

Make = Callable[..., AsyncDispatcher]
POLICIES = ["block", "reject", "drop_oldest"]


def config(capacity: int, policy: str, **others: Any) -> DispatcherConfig:
    return DispatcherConfig(queue_capacity=capacity, queue_full_policy=policy, **others)


@pytest.fixture
def full(make: Make, gate: Gate) -> Callable[..., AsyncDispatcher]:
    """Makes dispatchers of capacity 2: event 0 is in the handler's hands, 1 and 2 are queued."""

    def full(policy: str, **others: Any) -> AsyncDispatcher:
        dispatcher = make(config(2, policy, **others), name="full", handler=gate)
        dispatcher.event_handler.handle(Numbered(0))
        assert gate.entered.wait(TIMEOUT_S)
        assert dispatcher.event_handler.handle(Numbered(1))
        assert dispatcher.event_handler.handle(Numbered(2))
        return dispatcher

    return full


def numbers(gate: Gate) -> list[int]:
    return [event.number for event in gate.events]


@pytest.mark.parametrize("given", [{"queue_full_policy": "reject"}, {"queue_full_timeout_s": 1.0}], ids=str)
def test_what_a_full_queue_does_is_refused_for_a_queue_that_is_never_full(given: dict[str, Any]) -> None:
    """It was ignored, and the queue grew."""
    with pytest.raises(ValueError, match="the queue is never full, because queue_capacity is not set"):
        AsyncDispatcher(DispatcherConfig(**given))

    assert AsyncDispatcher(DispatcherConfig(**given), queue_capacity=7).view.queue_capacity == 7


@pytest.mark.parametrize("timeout_s", [None, 60.0])
def test_a_post_that_would_wait_for_the_start_raises(timeout_s: float | None) -> None:
    """No thread makes room before the start, and the producer, which perhaps was to start it, waited for ever."""
    dispatcher = AsyncDispatcher(config(1, "block", queue_full_timeout_s=timeout_s), name="jobs")
    handled: list[Any] = []
    dispatcher.register(Work, handled.append)
    refused = pytest.raises(QueueFullError, match=r"^jobs: not started, and the queue is full \(1 event\)")
    assert dispatcher.post(Numbered(0))

    with refused:
        dispatcher.post(Numbered(1))
    with refused:
        asyncio.run(aio.post(dispatcher, Numbered(2)))
    with refused:
        dispatcher.post_later(Numbered(3)).result(TIMEOUT_S)

    with dispatcher:
        assert dispatcher.post(Numbered(4))
    assert [event.number for event in handled] == [0, 4]
    assert dispatcher.stats().rejected == {}


def test_a_post_to_a_full_queue_waits_for_room_under_block(make: Make, gate: Gate) -> None:
    dispatcher = make(queue_capacity=1, handler=gate)
    dispatcher.event_handler.handle(Numbered(0))
    assert gate.entered.wait(TIMEOUT_S)
    dispatcher.event_handler.handle(Numbered(1))
    answers: list[bool] = []
    producer = threading.Thread(target=lambda: answers.append(dispatcher.event_handler.handle(Numbered(2))))

    producer.start()
    while not dispatcher.core.queue.room.waiters:
        assert producer.is_alive()
    assert dispatcher.queue_size() == 1
    gate.opened.set()
    producer.join(TIMEOUT_S)

    assert answers == [True]
    assert dispatcher.await_drained(TIMEOUT_S)
    assert [event.number for event in gate.events] == [0, 1, 2]


def test_a_stop_wakes_and_refuses_the_producers_that_wait(gate: Gate) -> None:
    dispatcher = AsyncDispatcher(queue_capacity=1)
    dispatcher.register(type(Numbered().type), gate)
    dispatcher.init()
    dispatcher.start()
    dispatcher.event_handler.handle(Numbered(0))
    assert gate.entered.wait(TIMEOUT_S)
    dispatcher.event_handler.handle(Numbered(1))
    answers: list[bool] = []
    producers = [
        threading.Thread(target=lambda: answers.append(dispatcher.event_handler.handle(Numbered(2)))) for _ in range(3)
    ]
    for producer in producers:
        producer.start()
    while len(dispatcher.core.queue.room.waiters) < 3:
        assert all(producer.is_alive() for producer in producers)

    stopper = threading.Thread(target=dispatcher.stop)
    stopper.start()

    for producer in producers:
        producer.join(TIMEOUT_S)
    gate.opened.set()  # only now does the drain end, after which the posts would be refused as stopped
    stopper.join(TIMEOUT_S)
    assert answers == [False] * 3
    assert dispatcher.stats().rejected == {"draining": 3}


def test_drop_oldest_takes_the_new_event_and_discards_the_oldest(full: Make, gate: Gate) -> None:
    registry = CollectorRegistry()
    dispatcher = full("drop_oldest")
    register_metrics(dispatcher, registry)

    assert dispatcher.event_handler.handle(Numbered(3))

    assert dispatcher.queue_size() == 2
    assert dispatcher.stats().discarded_by_reason == {"drop_oldest": 1}
    labels = {"dispatcher": "full", "reason": "drop_oldest"}
    assert registry.get_sample_value("dispatcher_events_dropped_total", labels) == 1
    assert dispatcher.stats().rejected == {}
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)
    assert numbers(gate) == [0, 2, 3]
    assert_accounts_balance(dispatcher, accepted=4)


def test_a_queue_that_loses_all_of_a_batch_to_drop_oldest_goes_on(make: Make) -> None:
    """The handler thread means to take as many events as it saw queued; producers may drop them meanwhile."""
    got: list[int] = []
    entered, opened = threading.Event(), threading.Event()

    def handle(event: Numbered) -> None:
        if event.number == 0:
            entered.set()
            assert opened.wait(TIMEOUT_S)
        got.append(event.number)

    dispatcher = make(config(4, "drop_oldest"), handler=handle)
    dispatcher.mailbox_executor.submit(
        lambda: [dispatcher.event_handler.handle(Numbered(number)) for number in range(4)]
    ).result(TIMEOUT_S)
    assert entered.wait(TIMEOUT_S)
    dispatcher.core.queue.shutdown.discard()
    dispatcher.event_handler.handle(Numbered(9))
    opened.set()

    assert dispatcher.await_drained(TIMEOUT_S)
    assert got == [0, 9]


def test_a_queue_that_loses_its_very_last_event_to_drop_oldest_ends(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler thread failed when a producer, which had seen the queue run, took the event before it."""
    dispatcher = make(config(1, "drop_oldest"), handler=lambda _: None)
    shutdown, late = dispatcher.core.queue.shutdown, [Numbered()]
    take_last = shutdown.take_last

    def take_last_late(*, ends: bool) -> Any:
        if late:
            queue = dispatcher.core.queue
            queue.entries.append(late.pop())
            queue.drop_oldest(Entry(queue, Numbered()))
        return take_last(ends=ends)

    monkeypatch.setattr(shutdown, "take_last", take_last_late)
    dispatcher.stop()

    assert dispatcher.is_stopped()
    assert dispatcher.failure_cause is None
    assert dispatcher.stats().discarded_by_reason == {"drop_oldest": 1}
    assert_accounts_balance(dispatcher, accepted=1)


def test_a_post_under_block_is_refused_after_its_timeout_and_leaves_nothing(full: Make, gate: Gate) -> None:
    dispatcher = full("block", queue_full_timeout_s=0.001)

    refused = [dispatcher.event_handler.handle(Numbered(number)) for number in (3, 4)]
    gate.opened.set()

    assert refused == [False, False]
    assert dispatcher.stats().rejected == {"timeout": 2}
    assert len(dispatcher.core.queue.room.waiters) == 0
    assert dispatcher.await_drained(TIMEOUT_S)
    assert numbers(gate) == [0, 1, 2]
    assert dispatcher.core.queue.room.remaining() == 2


def test_post_nowait_raises_where_a_post_would_wait(full: Make, gate: Gate) -> None:
    dispatcher = full("block")

    with pytest.raises(QueueFullError, match=r"full.*2 events"):
        dispatcher.post_nowait(Numbered(3))

    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.post_nowait(Numbered(4))
    assert dispatcher.await_drained(TIMEOUT_S)
    assert numbers(gate) == [0, 1, 2, 4]
    assert_accounts_balance(dispatcher, accepted=4)


@pytest.mark.parametrize(("policy", "answer"), [("reject", False), ("drop_oldest", True)])
def test_post_nowait_is_a_post_where_none_waits(full: Make, policy: str, answer: bool) -> None:
    assert full(policy).post_nowait(Numbered(3)) is answer


def test_post_nowait_is_refused_after_a_stop(make: Make) -> None:
    dispatcher = make(queue_capacity=1)
    dispatcher.stop()

    assert not dispatcher.post_nowait(Numbered())
    assert dispatcher.stats().rejected == {"stopped": 1}


@pytest.mark.parametrize(
    ("policy", "measure_times"),
    [("block", "all"), ("block", "sampled"), ("block", "none"), ("reject", "all"), ("drop_oldest", "none")],
)
def test_the_bound_is_strict_and_all_permits_come_back(make: Make, policy: str, measure_times: str) -> None:
    capacity, events = 3, 400
    sizes: list[int] = []

    def sample(_: Any = None) -> None:
        sizes.append(dispatcher.queue_size())

    dispatcher = make(config(capacity, policy, measure_times=measure_times), handler=sample)
    accepted: list[int] = []

    def produce() -> None:
        answers = []
        for number in range(events):
            answers.append(dispatcher.event_handler.handle(Numbered(number)))
            sample()
        accepted.append(sum(answers))

    in_threads(*[produce] * 4)

    assert dispatcher.await_drained(TIMEOUT_S)
    assert max(sizes) <= capacity
    assert dispatcher.core.queue.room.remaining() == capacity
    assert_accounts_balance(dispatcher, accepted=sum(accepted))
    assert sum(accepted) + sum(dispatcher.stats().rejected.values()) == 4 * events
    if policy != "reject":
        assert sum(accepted) == 4 * events
    if policy != "drop_oldest":
        assert dispatcher.stats().discarded == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_handler_overdraws_a_full_queue_and_the_bound_holds_again_afterwards(
    make: Make, gate: Gate, policy: str
) -> None:
    """Invariant 8: only the handler makes room, so a handler that waits for room waits for ever."""
    got: list[int] = []

    def handle(event: Numbered) -> None:
        got.append(event.number)
        if event.number == 0:
            assert all(dispatcher.event_handler.handle(Numbered(number)) for number in range(1, 6))
            sizes.append(dispatcher.queue_size())
        elif event.number == 5:
            gate.handle(event)

    sizes: list[int] = []
    dispatcher = make(config(2, policy), handler=handle)
    dispatcher.event_handler.handle(Numbered(0))
    assert gate.entered.wait(TIMEOUT_S)
    repaid = dispatcher.core.queue.room.remaining()
    assert dispatcher.event_handler.handle(Numbered(6))
    assert dispatcher.event_handler.handle(Numbered(7))
    left = dispatcher.core.queue.room.remaining()
    gate.opened.set()

    assert dispatcher.await_drained(TIMEOUT_S)
    assert sizes == [5]
    assert (repaid, left) == (2, 0)
    assert got == [0, 1, 2, 3, 4, 5, 6, 7]
    assert dispatcher.core.queue.room.remaining() == 2


def test_producers_that_wait_all_get_room_although_the_handler_overdraws(make: Make, gate: Gate) -> None:
    got: list[int] = []

    def handle(event: Numbered) -> None:
        if event.number == 0:
            gate.handle(event)
            for _ in range(5):
                dispatcher.event_handler.handle(Numbered(100))
        got.append(event.number)

    dispatcher = make(config(1, "block"), handler=handle)
    dispatcher.event_handler.handle(Numbered(0))
    assert gate.entered.wait(TIMEOUT_S)
    dispatcher.event_handler.handle(Numbered(1))
    producers = [
        threading.Thread(target=dispatcher.event_handler.handle, args=(Numbered(number),)) for number in (2, 3, 4)
    ]
    for producer in producers:
        producer.start()
    until(lambda: len(dispatcher.core.queue.room.waiters) == 3)
    gate.opened.set()
    for producer in producers:
        producer.join(TIMEOUT_S)
        assert not producer.is_alive()

    assert dispatcher.await_drained(TIMEOUT_S)
    assert sorted(got) == [0, 1, 2, 3, 4, *[100] * 5]
    assert dispatcher.core.queue.room.remaining() == 1


def test_a_post_that_is_about_to_drop_the_oldest_when_a_stop_discards_it_ends(full: Make, gate: Gate) -> None:
    """The producer looped: there was nothing to drop, and no thread returned the permits of the discarded events."""
    dispatcher = full("drop_oldest", drain_events_on_stop=False)
    looking, stopped = threading.Event(), threading.Event()

    def pause(size: int, remaining: int | None) -> None:
        looking.set()
        assert stopped.wait(TIMEOUT_S)

    dispatcher.core.queue.room.on_size = pause  # type: ignore[assignment]
    answers: list[bool] = []
    producer = threading.Thread(target=lambda: answers.append(dispatcher.event_handler.handle(Numbered(3))))
    producer.start()
    assert looking.wait(TIMEOUT_S)
    gate.opened.set()
    dispatcher.stop()

    stopped.set()
    producer.join(TIMEOUT_S)
    ended = not producer.is_alive()

    dispatcher.core.queue.room.permits.append(None)  # whoever goes round still gets out
    producer.join(TIMEOUT_S)
    assert ended
    assert answers == [False]
    assert_accounts_balance(dispatcher, accepted=3)


def test_a_debt_is_paid_once_though_a_signal_handler_posts_amid_the_payment(full: Make, gate: Gate) -> None:
    """It was paid twice, and from then on every permit that came back was taken as a payment."""
    queue = full("block").core.queue
    room = queue.room

    class Interrupted(deque[None]):
        def popleft(self) -> None:
            super().popleft()
            room.permits = deque(self)
            room.give_back()  # by the handler of a signal, which comes right after the permit is taken

    room.take_or_overdraw(Entry(queue, Numbered(3)))
    room.permits = Interrupted()
    room.give_back()

    assert (room.remaining(), room.is_crowded) == (1, False)
    gate.opened.set()
