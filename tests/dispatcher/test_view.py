"""The read-only view of a dispatcher, and the list of all of them."""

from __future__ import annotations

import gc
import threading

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, EventDispatcher, ServiceState, dispatchers

from ..kit import TIMEOUT_S, Gate, Numbered, OfEntity, Unreadable, Work, until
from ..kit.dispatchers import Make, hold, stopping


def test_dispatchers_are_listed_by_name_while_they_are_referred_to() -> None:
    before = dispatchers()  # kept, so that no other view gets the id of one of these
    kept = [AsyncDispatcher(name="zeta"), EventDispatcher(lambda event: None, name="alpha")]
    AsyncDispatcher(name="middle").stop()
    gc.collect()

    listed = [view for view in dispatchers() if not any(view is old for old in before)]

    assert [(view.name, view.kind, view.state) for view in listed] == [
        ("alpha", "EventDispatcher", ServiceState.NOTINITED),
        ("zeta", "AsyncDispatcher", ServiceState.NOTINITED),
    ]
    assert kept


def test_a_running_event_is_shown_with_its_type_entity_and_stack(make: Make, gate: Gate) -> None:
    dispatcher = make(name="central", handler=gate)
    hold(dispatcher, gate, OfEntity("app_17"))

    running, stack = dispatcher.view.running(), dispatcher.view.stack()

    assert running is not None
    assert (running.kind, running.event_class, running.event_type, running.entity, running.description) == (
        "event",
        "Work",
        "DO",
        "app_17",
        "",
    )
    assert running.running_s > 0
    names = [frame.name for frame in stack]
    assert running.thread_id is not None
    assert names.index("_run") < names.index("handle")  # outermost first


def test_nothing_runs_in_a_dispatcher_that_waits_or_has_ended(make: Make) -> None:
    dispatcher = make(handler=lambda event: None)
    view = dispatcher.view
    assert dispatcher.await_drained(TIMEOUT_S)
    while_waiting = view.is_thread_alive(), view.running(), view.is_drained(), view.oldest_wait_s()

    dispatcher.stop()
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    dispatcher._thread.join(TIMEOUT_S)

    assert while_waiting == (True, None, True, None)
    assert (view.state, view.is_thread_alive(), view.running(), view.stack(), view.is_draining()) == (
        ServiceState.STOPPED,
        False,
        None,
        [],
        False,
    )


def test_a_queue_is_counted_by_type_and_by_entity(make: Make, gate: Gate) -> None:
    dispatcher = make(handler=gate)
    post = dispatcher.event_handler.handle
    post(Numbered())
    assert gate.entered.wait(TIMEOUT_S)
    for entity in ["a", "b", "b", 3, 3, 3, None, Unreadable()]:
        post(OfEntity(entity))

    contents, entities = dispatcher.view.queue_contents(), dispatcher.view.queue_entities(limit=2)

    assert (contents.counts, contents.approximate) == ({Work.DO: 8}, False)
    assert (list(entities.counts.items()), entities.approximate) == ([("3", 3), ("b", 2)], False)


def test_a_snapshot_into_which_the_end_of_a_handler_comes_is_taken_again(
    make: Make, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event was in no account: the number of accepted events, a counter in Prometheus, went back by one."""
    dispatcher = make(handler=gate)
    dispatching, in_hand = dispatcher._dispatching, dispatcher._dispatching.in_hand

    def end_first() -> int:
        """What is read after the number of handled events."""
        if threading.current_thread() is threading.main_thread() and not gate.opened.is_set():
            gate.opened.set()
            until(dispatching.progress.is_at_rest, "the end of the handler")
        return in_hand()

    monkeypatch.setattr(dispatching, "in_hand", end_first)
    hold(dispatcher, gate)

    assert (dispatcher.stats().accepted, dispatcher.stats().handled) == (1, 1)


def test_the_type_of_the_last_rejected_event_is_seen(make: Make, gate: Gate) -> None:
    dispatcher = make(DispatcherConfig(queue_capacity=1, queue_full_policy="reject"), handler=gate)
    post = dispatcher.event_handler.handle
    post(Numbered())
    assert gate.entered.wait(TIMEOUT_S)
    post(Numbered())
    post(Numbered(type=Work.MORE))
    gate.opened.set()
    dispatcher.stop()
    post(Numbered())

    assert dispatcher.view.last_rejected() == {"full": ("Work", "MORE"), "stopped": ("Work", "DO")}


def test_a_full_queue_and_a_drain_are_seen(make: Make, gate: Gate) -> None:
    dispatcher = make(DispatcherConfig(queue_capacity=2, queue_full_policy="reject"), handler=gate)
    view, post = dispatcher.view, dispatcher.event_handler.handle
    post(Numbered())
    assert gate.entered.wait(TIMEOUT_S)
    before = view.full_since_s()
    post(Numbered())
    post(Numbered())
    full = view.full_since_s()
    with stopping(dispatcher):
        assert view.is_draining()
        gate.opened.set()

    assert before is None
    assert full is not None
    assert (view.queue_policy, view.queue_capacity, view.is_draining()) == ("reject", 2, False)
