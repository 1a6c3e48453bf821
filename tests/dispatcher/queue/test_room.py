"""What a post to a full queue does, and that the bound is strict under each policy.

What a single producer finds under `reject` and `drop_oldest` is in test_dispatcher_model.py.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, QueueFullError, aio

from ...kit import TIMEOUT_S, Gate, Numbered, Work, assert_accounts_balance, in_threads, until
from ...kit.dispatchers import hold
from ...kit.scenarios import play
from ..stage import Item, Rows, Stage, item, perform, scenarios

Make = Callable[..., AsyncDispatcher]
POLICIES = ["block", "reject", "drop_oldest"]


def config(capacity: int, policy: str, **others: Any) -> DispatcherConfig:
    return DispatcherConfig(queue_capacity=capacity, queue_full_policy=policy, **others)


@pytest.fixture
def full(make: Make, gate: Gate) -> Callable[..., AsyncDispatcher]:
    """Makes dispatchers of capacity 2: event 0 is in the handler's hands, 1 and 2 are queued."""

    def full(policy: str, **others: Any) -> AsyncDispatcher:
        dispatcher = make(config(2, policy, **others), name="full", handler=gate)
        hold(dispatcher, gate)
        assert dispatcher.event_handler.handle(Numbered(1))
        assert dispatcher.event_handler.handle(Numbered(2))
        return dispatcher

    return full


def place() -> Any:
    """Stands for the entry of an event that is being posted."""
    return SimpleNamespace(permit=False, dropped=None)


FULL = "hold 0 | post 1 2 | "
"""Of capacity 2."""
SCENARIOS: Rows = {
    "a post waits for room": (
        FULL + "begin post 3 -> waiting 1 ; queue_size 2 | release -> seen 0 1 2 3 ; posted True True True True",
        {"queue_capacity": 2},
    ),
    "a stop wakes the producers that wait, before it has drained, and rejects their posts": (
        FULL + "begin post 3 | begin post 4 -> waiting 2 | begin stop | end -> posted True True True False False ; "
        "rejected draining:2 | release -> seen 0 1 2",
        {"queue_capacity": 2},
    ),
    "a post is rejected after its timeout, and leaves nothing": (
        FULL + "post 3 4 -> posted True True True False False ; rejected timeout:2 ; waiting 0 "
        "| release -> seen 0 1 2 ; remaining 2",
        {"queue_capacity": 2, "queue_full_timeout_s": 0.001},
    ),
    "the oldest event is dropped for a new one": (
        FULL + "post 3 -> posted True True True True ; queue_size 2 ; discarded_by_reason drop_oldest:1 ; rejected "
        "| release -> seen 0 2 3 ; remaining 2",
        {"queue_capacity": 2, "queue_full_policy": "drop_oldest"},
    ),
    "post_nowait raises where a post would wait": (
        FULL + "nowait 3 -> posted True True True QueueFullError ; waiting 0 | release | nowait 4 | +0 -> seen 0 1 2 4",
        {"queue_capacity": 2},
    ),
    "post_nowait is rejected where a post is": (
        FULL + "nowait 3 -> posted True True True False ; rejected full:1",
        {"queue_capacity": 2, "queue_full_policy": "reject"},
    ),
    "post_nowait drops the oldest where a post does": (
        FULL + "nowait 3 -> posted True True True True ; discarded_by_reason drop_oldest:1",
        {"queue_capacity": 2, "queue_full_policy": "drop_oldest"},
    ),
    "post_nowait is rejected after a stop": (
        "stop | nowait 1 -> posted False ; rejected stopped:1",
        {"queue_capacity": 1},
    ),
}


@scenarios(SCENARIOS)
def test_scenario(script: str, options: dict[str, Any]) -> None:
    perform(script, **options)


def test_what_post_nowait_raises_tells_the_size_of_the_queue() -> None:
    stage = perform("hold | post 1 2 | nowait 3", queue_capacity=2)

    assert re.search(r"full.*2 events", str(stage.results["posted"][-1]))


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
            queue.drop_oldest(place())
        return take_last(ends=ends)

    monkeypatch.setattr(shutdown, "take_last", take_last_late)
    dispatcher.stop()

    assert dispatcher.is_stopped()
    assert dispatcher.failure_cause is None
    assert dispatcher.stats().discarded_by_reason == {"drop_oldest": 1}
    assert_accounts_balance(dispatcher, accepted=1)


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
def test_a_handler_overdraws_a_full_queue_and_the_bound_holds_again_afterwards(policy: str) -> None:
    """Invariant 8: only the handler makes room, so a handler that waits for room waits for ever."""

    def post_five(event: Item) -> int:
        posts = map(str, range(1, 6) if event.number == 0 else ())
        return all(stage.dispatcher.post(item(number)) for number in posts) and stage.dispatcher.queue_size()

    with closing(Stage(queue_capacity=2, queue_full_policy=policy, then=post_five)) as stage:
        play(
            stage,
            "ask 0 | +0 -> answers 5 ; seen 0 1 2 3 4 5 ; rejected ; discarded 0 ; remaining 2"
            " | hold 6 | post 7 8 -> remaining 0 | release -> seen 0 1 2 3 4 5 6 7 8 ; remaining 2",
        )


def test_producers_that_wait_all_get_room_although_the_handler_overdraws(make: Make, gate: Gate) -> None:
    got: list[int] = []

    def handle(event: Numbered) -> None:
        if event.number == 0:
            gate.handle(event)
            for _ in range(5):
                dispatcher.event_handler.handle(Numbered(100))
        got.append(event.number)

    dispatcher = make(config(1, "block"), handler=handle)
    hold(dispatcher, gate)
    dispatcher.event_handler.handle(Numbered(1))
    with ThreadPoolExecutor(3) as pool:
        producers = [pool.submit(dispatcher.post, Numbered(number)) for number in (2, 3, 4)]
        until(lambda: len(dispatcher.core.queue.room.waiters) == 3)
        gate.opened.set()
        assert all(producer.result(TIMEOUT_S) for producer in producers)

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

    room.take_or_overdraw(place())
    room.permits = Interrupted()
    room.give_back()

    assert (room.remaining(), room.is_crowded) == (1, False)
    gate.opened.set()
