"""Dispatchers of a process that forks: multiprocessing, pre-forking servers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, ForkedProcessError, MultiDispatcher, Service, dispatchers
from dispatcher.mailbox import RejectedExecutionError, SystemProcessingTimeService
from dispatcher.testing import ManualClock

from ...kit import TIMEOUT_S, Gate, Numbered, Work, in_threads, until
from ...kit.dispatchers import Make, hold
from ...kit.forked import forks, in_child
from ...kit.holding import held

pytestmark = forks


def test_a_post_in_a_child_says_that_the_handler_thread_is_not_there(make: Make) -> None:
    dispatcher = make(name="central", handler=lambda _: None)

    kind, message = in_child(lambda: dispatcher.event_handler.handle(Numbered()))

    assert kind is ForkedProcessError
    assert message.startswith("central: this process was forked")
    assert "after the fork" in message


USES: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "post_nowait": lambda each: lambda: each.post_nowait(Numbered()),
    "post_later": lambda each: lambda: each.post_later(Numbered()),
    "await_drained": lambda each: lambda: each.await_drained(1.0),
    "cancel": lambda each: each.post_after(60, Numbered()).cancel,
    "a post that was bound before": lambda each: partial(each.event_handler.handle, Numbered()),
}
USES_OF_ONE = USES | {
    "when_drained": lambda each: lambda: each.core.when_drained(),
    "mailbox_executor": lambda each: lambda: each.mailbox_executor,
}
ONE = [(partial(AsyncDispatcher, queue_capacity=capacity), use) for capacity in (None, 2) for use in USES_OF_ONE]


@pytest.mark.parametrize(("make_one", "use"), [*ONE, *((partial(MultiDispatcher, partitions=2), use) for use in USES)])
def test_every_use_in_a_child_raises(make_one: Callable[[], Any], use: str) -> None:
    with make_one() as dispatcher:
        dispatcher.register(Work, lambda _: None)

        kind, _ = in_child(USES_OF_ONE[use](dispatcher))

    assert kind is ForkedProcessError


PATIENT = DispatcherConfig(drain_timeout_s=600)
STOPS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "of one": (partial(AsyncDispatcher, PATIENT), nullcontext),
    "of one with its own timers": (lambda: AsyncDispatcher(PATIENT, time_service=ManualClock()), nullcontext),
    "of partitions": (partial(MultiDispatcher, PATIENT, partitions=2), nullcontext),
    # As a stop of another thread does for a moment.
    "while another thread held a lock": (partial(AsyncDispatcher, PATIENT), lambda each: each._drain.finished._cond),
    "of partitions, while another thread held one": (
        partial(MultiDispatcher, PATIENT, partitions=2),
        lambda each: each._life,
    ),
}


@pytest.mark.parametrize(("make_one", "lock"), STOPS.values(), ids=STOPS)
@pytest.mark.parametrize("end", [lambda each: each.stop(), lambda each: each.__exit__(None, None, None)])
def test_a_stop_or_the_end_of_a_with_block_returns_in_a_child(
    gate: Gate, make_one: Callable[[], Any], lock: Callable[[Any], Any], end: Callable[[Any], Any]
) -> None:
    """Though a handler is at work in the parent."""

    def stop() -> tuple[str, bool, bool]:
        end(dispatcher)
        return dispatcher.state.name, dispatcher.wait_for_service_to_stop(1.0), dispatcher.is_stopped()

    dispatcher = make_one()
    dispatcher.register(Work, gate)
    with dispatcher:
        hold(dispatcher, gate)
        with lock(dispatcher):
            answer = in_child(stop)
        gate.opened.set()

    assert answer == ("STOPPED", True, True)


def test_an_executor_bound_before_the_fork_rejects(make: Make) -> None:
    executor = make().mailbox_executor

    kind, _ = in_child(lambda: executor.execute(lambda: None, "a mail"))

    assert kind is RejectedExecutionError


def test_the_parent_works_on_after_a_fork(make: Make) -> None:
    got: list[int] = []
    dispatcher = make(handler=lambda event: got.append(event.number))
    dispatcher.event_handler.handle(Numbered(1))

    in_child(dispatcher.stop)
    dispatcher.event_handler.handle(Numbered(2))

    assert dispatcher.await_drained(TIMEOUT_S)
    assert dispatcher.mailbox_executor.submit(lambda: "ran").result(TIMEOUT_S) == "ran"
    assert got == [1, 2]


@pytest.mark.parametrize("capacity", [None, 2])
def test_a_dispatcher_that_was_not_started_before_the_fork_works_in_the_child(capacity: int | None) -> None:
    got: list[int] = []
    dispatcher = AsyncDispatcher(queue_capacity=capacity)
    dispatcher.register(Work, lambda event: got.append(event.number))
    dispatcher.event_handler.handle(Numbered(1))

    def work() -> tuple[bool, list[int], bool]:
        with dispatcher:
            for number in range(2, 5):
                dispatcher.event_handler.handle(Numbered(number))
            drained = dispatcher.await_drained(TIMEOUT_S)
        return drained, got, dispatcher.is_stopped()

    assert in_child(work) == (True, [1, 2, 3, 4], True)
    with dispatcher:
        assert dispatcher.await_drained(TIMEOUT_S)
    assert got == [1]


def test_a_new_dispatcher_works_in_a_child_of_a_process_with_a_started_one(make: Make) -> None:
    """The monitor's thread, which all dispatchers share, stayed with the parent as well."""
    make(handler=lambda _: None)
    clock_looks = DispatcherConfig(handler_warn_after_s=0.001)

    def work() -> tuple[bool, int]:
        with AsyncDispatcher(clock_looks) as dispatcher:
            dispatcher.register(Work, lambda _: None)
            dispatcher.event_handler.handle(Numbered())
            drained = dispatcher.await_drained(TIMEOUT_S)
        return drained, dispatcher.stats().handled

    assert in_child(work) == (True, 1)


def test_a_fork_while_other_threads_post_leaves_no_lock_held_in_the_child(make: Make) -> None:
    dispatcher = make(queue_capacity=2, handler=lambda _: None)
    over = threading.Event()
    answers: list[Any] = []

    def produce() -> None:
        while not over.is_set():
            dispatcher.event_handler.handle(Numbered())

    def use() -> str:
        for call in (lambda: dispatcher.event_handler.handle(Numbered()), lambda: dispatcher.await_drained(1.0)):
            with pytest.raises(ForkedProcessError):
                call()
        dispatcher.stop()
        return dispatcher.state.name

    def fork() -> None:
        try:
            answers.extend(in_child(use) for _ in range(5))
        finally:
            over.set()

    in_threads(produce, produce, fork)

    assert answers == ["STOPPED"] * 5


def test_a_handler_may_fork(make: Make) -> None:
    answers: list[Any] = []

    def handle(_: Any) -> None:
        answers.append(in_child(lambda: dispatcher.event_handler.handle(Numbered())))
        answers.append(in_child(lambda: (dispatcher.stop(), "stopped")[1]))

    dispatcher = make(handler=handle)
    dispatcher.event_handler.handle(Numbered())

    assert dispatcher.await_drained(3 * TIMEOUT_S)
    assert answers[0][0] is ForkedProcessError
    assert answers[1] == "stopped"


def test_a_child_lists_its_own_dispatchers_and_not_those_whose_thread_is_in_the_parent(make: Make) -> None:
    make(name="started before the fork")
    unstarted = AsyncDispatcher(name="not started before the fork")

    names = in_child(lambda: [view.name for view in dispatchers()])

    assert unstarted.name in names
    assert "started before the fork" not in names
    assert "started before the fork" in [view.name for view in dispatchers()]


@pytest.mark.parametrize("hook", ["service_init", "service_start", "service_stop"])
def test_a_service_amid_another_threads_hook_can_be_stopped_in_a_child(hook: str) -> None:
    """The child waited for ever for the hook's end, which comes in the parent alone."""
    service = Service("a service")

    def live() -> None:
        service.start()
        service.stop()

    def live_until_held(hold: Callable[[], None]) -> None:
        setattr(service, hook, lambda *_: hold())
        threading.Thread(target=live).start()

    def stop() -> tuple[str, bool]:
        setattr(service, hook, lambda *_: None)
        service.stop()
        return service.state.name, service.wait_for_service_to_stop(TIMEOUT_S)

    with held(live_until_held):
        answer = in_child(stop)

    assert answer == ("STOPPED", True)
    assert service.wait_for_service_to_stop(TIMEOUT_S)


def test_a_child_does_not_wake_its_parents_handler_thread() -> None:
    """Both share the descriptor at which that thread waits."""
    turns: list[None] = []
    # In virtual time, so no tick wakes the handler thread.
    dispatcher = AsyncDispatcher(idle_action=lambda: bool(turns.append(None)), time_service=ManualClock())
    dispatcher.register(Work, lambda _: None)
    waits = dispatcher._mailbox.parking.is_waiting
    with dispatcher:
        until(waits, "the handler thread's wait")
        before = len(turns)

        in_child(dispatcher.core.queue.wake)
        dispatcher.event_handler.handle(Numbered())
        assert dispatcher.await_drained(TIMEOUT_S)
        until(waits, "the handler thread's wait")

        assert len(turns) == before + 1


@pytest.mark.parametrize("is_started", [False, True])
def test_timers_whose_thread_is_in_the_parent_take_none_in_a_child(is_started: bool) -> None:
    """The child's timer never fired, or the child waited for a lock that a thread of the parent held."""
    timers, fired = SystemProcessingTimeService("timers"), threading.Event()
    if is_started:
        timers.register_timer(0, lambda _: fired.set())
        assert fired.wait(TIMEOUT_S)

    def use() -> str:
        own = threading.Event()
        try:
            timers.register_timer(0, lambda _: own.set())
            timers.schedule_with_fixed_delay(lambda _: None, 1, 1).cancel()
        except ForkedProcessError as error:
            return f"{error}, {timers.shutdown(TIMEOUT_S)}"
        return f"fired: {own.wait(TIMEOUT_S)}, {timers.shutdown(TIMEOUT_S)}"

    with timers._tasks.lock:  # as a thread that adds a timer does for a moment
        answer = in_child(use)

    assert answer.startswith("timers: this process was forked" if is_started else "fired: True")
    assert answer.endswith(", True")
    assert timers.register_timer(0, lambda _: None).result(TIMEOUT_S) is None
    assert timers.shutdown(TIMEOUT_S)


def test_a_dispatcher_that_another_thread_was_making_leaves_no_other_one_to_a_child(make: Make) -> None:
    """It had no handler thread yet, and the child accepted events for those that came after it."""
    started = [make(handler=lambda _: None) for _ in range(8)]

    class Slow(AsyncDispatcher):
        def __init__(self, hold: Callable[[], None]) -> None:
            Service.__init__(self, "slow")
            hold()

    def post_to_all() -> None:
        for dispatcher in started:
            with pytest.raises(ForkedProcessError):
                dispatcher.event_handler.handle(Numbered())

    with held(lambda hold: threading.Thread(target=Slow, args=(hold,)).start()):
        assert in_child(post_to_all) is None
