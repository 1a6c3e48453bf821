"""Partitions: order per key, side by side, and one life."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dispatcher import (
    DispatcherConfig,
    MultiDispatcher,
    ServiceState,
    aio,
    register_metrics,
)

from ...kit import TIMEOUT_S, Gate, Numbered, Work, assert_accounts_balance, in_threads, until
from ...kit.coroutines import Keyed
from ...kit.dispatchers import hold, stopping
from ...kit.services import fail
from ..pausing import PausingDeque


def of(key: Any, number: int = 0, type: Work = Work.DO) -> Keyed:
    return Keyed(number, key, type)


Start = Callable[..., MultiDispatcher]


@pytest.fixture
def start() -> Iterator[Start]:
    """Makes started MultiDispatchers; integer keys name the partition."""
    made: list[MultiDispatcher] = []

    def start(handler: Any = None, *, partitions: int = 3, **config: Any) -> MultiDispatcher:
        dispatcher = MultiDispatcher(DispatcherConfig(**config), name="multi", partitions=partitions)
        if handler is not None:
            dispatcher.register(Work, handler)
        made.append(dispatcher)
        dispatcher.start()
        return dispatcher

    yield start
    for dispatcher in made:
        dispatcher.stop()
        assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)


class Key(tuple[int, ...]):
    """Hashes as its first part only, and carries the rest to the handler."""

    def __new__(cls, *parts: int) -> Key:
        return super().__new__(cls, parts)

    def __hash__(self) -> int:
        return self[0]


def test_events_of_many_producers_keep_their_order_per_key_on_one_thread(start: Start) -> None:
    got: dict[int, list[tuple[int, ...]]] = {key: [] for key in range(7)}
    threads: dict[int, set[int]] = {key: set() for key in range(7)}

    def handle(event: Keyed) -> None:
        key, *what = event.lock_key
        got[key].append(tuple(what))
        threads[key].add(threading.get_ident())

    def produce(producer: int) -> None:
        for number in range(300):
            assert dispatcher.post(of(Key(number % 7, producer, number)))

    dispatcher = start(handle)
    in_threads(*(lambda producer=producer: produce(producer) for producer in range(4)))

    assert dispatcher.await_drained(TIMEOUT_S)
    for key, seen in got.items():
        assert len(threads[key]) == 1
        for producer in range(4):
            assert [number for by, number in seen if by == producer] == list(range(key, 300, 7))


def test_different_partitions_work_side_by_side(start: Start) -> None:
    together = threading.Barrier(3)
    dispatcher = start(lambda _: together.wait(TIMEOUT_S))

    for key in range(3):
        assert dispatcher.post(of(key))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert [(partition.stats().handled, partition.stats().failed) for partition in dispatcher.partitions] == [
        (1, 0)
    ] * 3


@pytest.mark.parametrize("partitions", [0, -1])
def test_too_few_partitions_are_refused(partitions: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1, not {partitions}"):
        MultiDispatcher(partitions=partitions)


def test_an_event_without_a_key_goes_to_the_first_partition(start: Start) -> None:
    dispatcher = start(lambda _: None)

    dispatcher.post(Numbered())

    assert dispatcher.await_drained(TIMEOUT_S)
    assert [partition.stats().handled for partition in dispatcher.partitions] == [1, 0, 0]


def test_a_key_that_has_no_hash_is_the_posters_error(start: Start) -> None:
    dispatcher = start(lambda _: None)

    with pytest.raises(TypeError, match="unhashable"):
        dispatcher.post(of([]))

    assert dispatcher.queue_size() == 0


def test_while_draining_a_handler_of_one_partition_may_post_to_the_others(start: Start, gate: Gate) -> None:
    """The other partitions have nothing to do by then, and would have ended."""
    answers: list[bool] = []
    got: Counter[Any] = Counter()

    def handle(event: Keyed) -> None:
        got[event.lock_key] += 1
        if event.number == 0:
            gate.handle(event)
        if event.number < 5:
            answers.append(dispatcher.post(of((event.lock_key + 1) % 3, event.number + 1)))

    dispatcher = start(handle)
    hold(dispatcher, gate, of(0))
    with stopping(dispatcher):
        assert not dispatcher.post(of(1))
        gate.opened.set()

    assert answers == [True] * 5
    assert got == {0: 2, 1: 2, 2: 2}
    assert dispatcher.is_stopped()
    assert sum(partition.stats().discarded for partition in dispatcher.partitions) == 0


def test_a_stop_returns_in_time_although_the_handlers_of_all_partitions_hang(
    start: Start, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """TEZ-4277: a stop waited for ever for a handler that hung."""
    entered = threading.Semaphore(0)

    def hang(event: Keyed) -> None:
        entered.release()
        gate.handle(event)

    dispatcher = start(hang, drain_timeout_s=0.1)
    for key in (0, 1, 2, 0):
        dispatcher.post(of(key))
    assert all(entered.acquire(timeout=TIMEOUT_S) for _ in range(3))

    started = time.monotonic()
    dispatcher.stop()
    took = time.monotonic() - started
    states = [(partition.state, partition.is_stopped()) for partition in dispatcher.partitions]
    gate.opened.set()

    assert took < TIMEOUT_S / 2  # the handlers would wait for the whole of it
    assert states == [(ServiceState.STOPPED, False)] * 3
    assert "multi-0: stop discarded 1 queued event: 1 Work.DO" in caplog.text
    assert caplog.text.count("a handler is still at work on <Keyed Work.DO") == 3
    assert caplog.text.count(", in hang\n") == 3  # the stack says where it hangs
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    for partition, accepted in zip(dispatcher.partitions, (2, 1, 1), strict=True):
        assert_accounts_balance(partition, accepted)


@pytest.mark.parametrize("by_policy", [False, True])
def test_one_partition_that_fails_fails_them_all(start: Start, by_policy: bool) -> None:
    dispatcher = start()
    dispatcher.register(Work, lambda event: event.number and fail(), on_error="stop")
    for key in range(3):
        dispatcher.post(of(key))

    if by_policy:
        dispatcher.post(of(2, 1))
    else:
        dispatcher.partitions[1].mailbox_executor.execute(fail)

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert isinstance(dispatcher.failure_cause, LookupError)
    assert dispatcher.state is ServiceState.STOPPED
    until(dispatcher.is_stopped)
    assert not dispatcher.post(of(0))


@pytest.mark.parametrize(
    "await_drained",
    [
        lambda dispatcher: dispatcher.await_drained(TIMEOUT_S),
        lambda dispatcher: asyncio.run(aio.await_drained(dispatcher, TIMEOUT_S)),
    ],
    ids=["blocking", "aio"],
)
def test_await_drained_waits_for_what_partitions_post_to_each_other(
    start: Start, await_drained: Callable[[MultiDispatcher], bool]
) -> None:
    def handle(event: Keyed) -> None:
        if event.number:
            dispatcher.post(of(event.lock_key + 1, event.number - 1))

    dispatcher = start(handle)
    for number in range(1, 21):
        dispatcher.post(of(0, 50))
        assert await_drained(dispatcher)
        assert dispatcher.is_drained()
        assert sum(partition.stats().handled for partition in dispatcher.partitions) == 51 * number


@pytest.mark.parametrize("is_one", [False, True])
def test_await_drained_in_a_handler_is_refused_whichever_partition_it_is_of(start: Start, is_one: bool) -> None:
    errors: list[str] = []

    def handle(event: Keyed) -> None:
        waited = dispatcher.partitions[event.lock_key] if is_one else dispatcher
        try:
            waited.await_drained(0.01)
        except RuntimeError as error:
            errors.append(str(error))

    dispatcher = start(handle)
    for key in range(3):
        dispatcher.post(of(key))

    assert dispatcher.await_drained(TIMEOUT_S)
    names = [f"multi-{key}" if is_one else "multi" for key in range(3)]
    assert sorted(errors) == [f"{name}: a handler cannot wait until its own dispatcher is drained" for name in names]


@pytest.mark.parametrize("policy", ["block", "reject", "drop_oldest"])
def test_full_partitions_whose_handlers_post_to_each_other_never_deadlock(start: Start, policy: str) -> None:
    rounds = 50

    def handle(event: Keyed) -> None:
        if event.number:
            for step in (1, 2):
                assert dispatcher.post(of(event.lock_key + step, event.number - 1))

    dispatcher = start(handle, queue_capacity=1, queue_full_policy=policy)
    for _ in range(rounds):
        for key in range(3):
            dispatcher.post(of(key, 3))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert all(partition.core.queue.room.remaining() == 1 for partition in dispatcher.partitions)
    assert all(not partition.stats().failed for partition in dispatcher.partitions)
    if policy == "block":
        assert sum(partition.stats().handled for partition in dispatcher.partitions) == rounds * 3 * 15


def test_each_partition_has_its_metrics(start: Start) -> None:
    registry = CollectorRegistry()
    dispatcher = start(lambda _: None)
    register_metrics(dispatcher, registry)
    for key in (0, 1, 1):
        dispatcher.post(of(key))
    assert dispatcher.await_drained(TIMEOUT_S)

    accepted = [
        registry.get_sample_value("dispatcher_events_accepted_total", {"dispatcher": f"multi-{index}"})
        for index in range(4)
    ]

    assert accepted == [1, 2, 0, None]


def test_queues_are_shown_as_one(start: Start, gate: Gate) -> None:
    dispatcher = start(gate, partitions=2)
    for key in (0, 1):
        dispatcher.post(of(key))
    until(lambda: dispatcher.queue_size() == 0)
    for key, kind in ((0, Work.DO), (1, Work.DO), (1, Work.MORE)):
        dispatcher.post(of(key, type=kind))

    assert dispatcher.queue_size() == 3
    assert dispatcher.queue_contents() == {Work.DO: 2, Work.MORE: 1}
    gate.opened.set()


def test_a_handler_can_be_taken_back_from_all_partitions(start: Start) -> None:
    def handle(_: Any) -> None: ...

    dispatcher = start(handle)

    assert dispatcher.unregister(Work, handle)
    assert not dispatcher.unregister(Work, handle)
    for key in range(3):
        dispatcher.post(of(key))
    assert dispatcher.await_drained(TIMEOUT_S)
    assert [partition.stats().failed for partition in dispatcher.partitions] == [1, 1, 1]


def test_an_interrupted_stop_stops_all_partitions_all_the_same(
    start: Start, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = start(gate, drain_timeout_s=600)
    hold(dispatcher, gate, of(1))

    def interrupted(timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(dispatcher, "await_drained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dispatcher.stop()
    gate.opened.set()

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert dispatcher.is_stopped()


def test_a_multi_dispatcher_that_never_started_stops_and_discards() -> None:
    dispatcher = MultiDispatcher(partitions=2)
    dispatcher.post(of(1))

    dispatcher.stop()

    assert dispatcher.is_stopped()
    assert [partition.stats().discarded for partition in dispatcher.partitions] == [0, 1]


def test_producers_and_a_stop_at_the_same_time_lose_no_event(start: Start) -> None:
    dispatcher = start(lambda _: None, queue_capacity=5)
    accepted: list[int] = []

    def produce() -> None:
        accepted.append(sum(dispatcher.post(of(number)) for number in range(1_000)))

    in_threads(produce, produce, dispatcher.stop)

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert sum(partition.stats().handled for partition in dispatcher.partitions) == sum(accepted)
    assert sum(partition.stats().discarded for partition in dispatcher.partitions) == 0


def test_an_event_in_flight_while_all_end_is_refused_or_may_still_post_to_the_other_partitions(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was accepted by a partition that had not ended yet; the one that its handler posted to had."""
    pausing = PausingDeque.install(monkeypatch)
    accepted: list[bool] = []
    answers: list[bool] = []

    def handle(event: Keyed) -> None:
        if event.number == -1:
            answers.append(dispatcher.post(of(1)))

    dispatcher = start(handle, partitions=2)
    first, second = dispatcher.partitions
    producer = threading.Thread(target=lambda: accepted.append(dispatcher.post(of(0, -1))))
    producer.start()
    assert pausing.reached.wait(TIMEOUT_S)
    shut_first = first.core.shut_for_stop

    def shut_late() -> bool:
        if not first._mailbox.is_mailbox_thread():  # not the last act of its handler thread
            second._drain.finished.wait(1.0)
            pausing.goes_on.set()
            producer.join(TIMEOUT_S)
        return shut_first()

    monkeypatch.setattr(first.core, "shut_for_stop", shut_late)
    dispatcher.stop()

    assert (accepted, answers) in (([True], [True]), ([False], []))
