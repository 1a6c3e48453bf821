"""Stops that begin inside: in a handler, by an error policy, on a loop's thread, in a listener."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    CompositeService,
    DispatcherConfig,
    DispatcherGroup,
    Event,
    MultiDispatcher,
    Service,
    ServiceState,
    run_until_signal,
)

from ...kit import TIMEOUT_S, Gate, Numbered, Work, assert_accounts_balance, until
from ...kit.dispatchers import Make, hold
from ...kit.services import fail


class Store(Service):
    """What handlers need, so it stops after their dispatcher."""

    is_open = True

    def service_stop(self) -> None:
        self.is_open = False


class Stopping:
    """A handler that stops `service` at its first event, and notes whether the store is open at the others.

    It stays in the first event until all events are posted.
    """

    def __init__(self, stop: Callable[[], None], store: Store) -> None:
        self.all_posted = threading.Event()
        self.seen: list[bool] = []
        self._stop, self._store = stop, store

    def handle(self, event: Numbered) -> None:
        if event.number == 0:
            assert self.all_posted.wait(TIMEOUT_S)
            self._stop()
        else:
            self.seen.append(self._store.is_open)


def daemon_of(*services: Service) -> CompositeService:
    daemon = CompositeService("daemon")
    for service in services:
        daemon.add_service(service)
    return daemon


@pytest.mark.parametrize("who", ["dispatcher", "policy", "daemon", "outer"])
def test_a_daemon_waits_for_the_drain_before_it_stops_what_is_below(who: str) -> None:
    """The child counted as stopped while it drained, so the store was closed under its handlers."""
    store, central = Store(), AsyncDispatcher(name="central")
    daemon = daemon_of(store, central)
    outer = daemon_of(daemon)
    stops = {"dispatcher": central.stop, "policy": fail, "daemon": daemon.stop, "outer": outer.stop}
    handler = Stopping(stops[who], store)
    central.register(Work, handler, on_error="stop")

    with outer:
        for number in range(10):
            assert central.event_handler.handle(Numbered(number))
        handler.all_posted.set()
        until(lambda: central.in_state(ServiceState.STOPPED))

    assert handler.seen == [True] * 9
    assert central.is_stopped()
    assert not store.is_open
    assert_accounts_balance(central, accepted=10)


def test_run_until_signal_waits_for_a_stop_that_a_handler_began() -> None:
    """It waited for 5 s, and returned 0 with events in the queue."""
    store, central = Store(), AsyncDispatcher(name="central")
    handler = Stopping(central.stop, store)
    central.register(Work, handler)
    for number in range(10):
        assert central.event_handler.handle(Numbered(number))
    handler.all_posted.set()

    code = run_until_signal(central)

    assert (code, central.queue_size(), central.stats().handled) == (0, 0, 10)


class BehindGate(threading.Event):
    """The end of a handler thread, for which a stop begins to wait once that thread is in the gate."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def wait(self, timeout: float | None = None) -> bool:
        assert self._gate.entered.wait(TIMEOUT_S)
        return super().wait(timeout)


def test_a_stop_that_a_handler_began_keeps_the_drain_timeout(caplog: pytest.LogCaptureFixture, gate: Gate) -> None:
    """A handler that hung later was never reported, and the queue never discarded."""
    dispatcher = AsyncDispatcher(DispatcherConfig(drain_timeout_s=0.2), name="jobs")
    dispatcher._drain.finished = BehindGate(gate)

    def handle(event: Numbered) -> None:
        if event.number == 0:
            dispatcher.stop()
        else:
            gate.handle(event)

    dispatcher.register(Work, handle)
    for number in range(5):
        assert dispatcher.event_handler.handle(Numbered(number))
    dispatcher.start()

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)

    assert (dispatcher.stats().handled, dispatcher.stats().discarded, dispatcher.queue_size()) == (1, 3, 0)
    assert "jobs: stop discarded 3 queued events: 3 Work.DO" in caplog.text
    assert "a handler is still at work on <Numbered Work.DO>" in caplog.text
    gate.opened.set()
    until(dispatcher.is_stopped)
    assert_accounts_balance(dispatcher, accepted=5)


@pytest.mark.parametrize("of", ["dispatcher", "daemon"])
def test_a_handler_that_waits_for_the_stop_of_its_own_dispatcher_is_told(of: str) -> None:
    """It waited for itself, without a word."""
    errors: list[BaseException] = []
    central = AsyncDispatcher(name="central")
    daemon = daemon_of(central)
    waited = {"dispatcher": central, "daemon": daemon}[of]

    def handle(_: Any) -> None:
        waited.stop()
        try:
            waited.wait_for_service_to_stop(1)
        except RuntimeError as error:
            errors.append(error)

    central.register(Work, handle)
    with daemon:
        central.event_handler.handle(Numbered())
        assert daemon.in_state(ServiceState.STARTED, ServiceState.STOPPED)
        until(lambda: errors)

    assert "a handler cannot wait until its own dispatcher has stopped" in str(errors[0])


@pytest.mark.parametrize("kind", ["one", "group", "multi"])
def test_a_stop_on_the_loop_s_thread_drains_in_the_background(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """A group raised RuntimeError and discarded what it had accepted."""
    handled: list[Any] = []

    async def handle(event: Any) -> None:
        await asyncio.sleep(0)
        handled.append(event)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        dispatchers = [AsyncDispatcher(name=str(number), loop=loop) for number in range(2)]
        group: Any = {
            "one": lambda: dispatchers[0],
            "group": lambda: DispatcherGroup(dispatchers, name="group"),
            "multi": lambda: MultiDispatcher(partitions=2, loop=loop),
        }[kind]()
        partitions = [group] if kind == "one" else group.partitions
        for partition in partitions:
            partition.register(Work, handle)
        group.start()
        for number in range(10):
            assert partitions[number % len(partitions)].post(Numbered(number))
        group.stop()
        assert group.in_state(ServiceState.STOPPED)
        with pytest.raises(RuntimeError, match="blocks the event loop"):
            group.wait_for_service_to_stop()
        assert await asyncio.wait_for(asyncio.to_thread(group.wait_for_service_to_stop), TIMEOUT_S)
        assert group.is_stopped()
        assert sum(partition.stats().discarded for partition in partitions) == 0

    asyncio.run(main())
    assert len(handled) == 10
    assert kind != "one" or "await aio.stop(dispatcher)" in caplog.text


@pytest.mark.parametrize("who", ["handler", "daemon"])
def test_a_stop_whose_thread_cannot_start_goes_on_without_it(
    who: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, central = Store(), AsyncDispatcher(name="central")
    daemon = daemon_of(store, central)
    handler = Stopping(central.stop if who == "handler" else daemon.stop, store)
    central.register(Work, handler)
    with daemon:
        for number in range(5):
            assert central.event_handler.handle(Numbered(number))
        monkeypatch.setattr(threading.Thread, "start", _refuse)
        handler.all_posted.set()
        until(central.is_stopped)
        if who == "daemon":
            until(lambda: not store.is_open)  # the handler thread went on with the stop of the daemon

    assert handler.seen == [True] * 4
    assert "no thread could be started for its stop" in caplog.text
    assert_accounts_balance(central, accepted=5)


def _refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_stop_whose_thread_cannot_start_gets_it_later(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    """Its drain timeout is kept as soon as the system has a thread again."""
    dispatcher = AsyncDispatcher(DispatcherConfig(drain_timeout_s=0.1), name="jobs")
    dispatcher.register(Work, lambda event: dispatcher.stop() if event.number == 0 else gate.handle(event))
    for number in range(3):
        assert dispatcher.event_handler.handle(Numbered(number))
    start = threading.Thread.start
    monkeypatch.setattr(
        threading.Thread, "start", lambda thread: _refuse(thread) if thread.name == "jobs-stop" else start(thread)
    )
    dispatcher.start()
    assert gate.entered.wait(TIMEOUT_S)

    monkeypatch.undo()

    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert dispatcher.stats().discarded == 1


def test_a_group_stops_without_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as stopped, and its partitions ran on. Python 3.12 starts no thread in an exit hook."""
    group = MultiDispatcher(name="group", partitions=2)
    group.register(Work, lambda _: None)
    group.start()
    for number in range(10):
        assert group.partitions[number % 2].event_handler.handle(Numbered(number))
    monkeypatch.setattr(threading.Thread, "start", _refuse)

    group.stop()

    assert group.is_stopped()
    assert [partition.stats().handled for partition in group.partitions] == [5, 5]


class Proxy:
    """A processor whose loop is replaced."""

    def __init__(self, processor: Any, run: Callable[[], None]) -> None:
        self._processor = processor
        self.run_mailbox_loop = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processor, name)


class Thrown(BaseException):
    """Comes from another thread."""


def _run_and_throw(run: Callable[[], None], calls: int, moments: list[str]) -> None:
    """Run the mailbox loop, and throw `Thrown` into its thread at one of the calls after it; `moments` tells which."""
    left = calls

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal left
        if event in ("call", "c_call") and "async_dispatcher" in frame.f_code.co_filename:
            left -= 1
            if left == 0:
                moments.append(frame.f_code.co_qualname)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Thrown)
                )

    run()
    sys.setprofile(profile)


def test_an_exception_thrown_into_the_thread_while_it_ends_does_not_keep_the_dispatcher_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`is_stopped` was False for ever."""
    calls = 1
    while True:
        moments: list[str] = []
        dispatcher = AsyncDispatcher()
        monkeypatch.setattr(threading, "excepthook", lambda _: None)
        processor = dispatcher._processor
        run = partial(_run_and_throw, processor.run_mailbox_loop, calls, moments)
        monkeypatch.setattr(dispatcher, "_processor", Proxy(processor, run))
        dispatcher.start()
        dispatcher.stop()
        until(lambda: not dispatcher._thread.is_alive())  # noqa: B023

        assert dispatcher.is_stopped(), moments
        assert dispatcher.wait_for_service_to_stop(TIMEOUT_S), moments
        if not moments:
            return
        calls += 1


def test_a_listener_is_removed_and_may_remove_itself_while_it_is_told() -> None:
    told: list[str] = []
    service = Service("service")

    def once(_: Service) -> None:
        told.append("once")
        assert service.unregister_service_listener(once)

    class Listener:
        def state_changed(self, service: Service) -> None:
            told.append(service.state.name)

    listener = Listener()
    service.register_service_listener(once)
    service.register_service_listener(listener)
    service.init()
    assert service.unregister_service_listener(listener)
    assert not service.unregister_service_listener(listener)

    service.start()
    service.stop()

    assert told == ["once", "INITED"]


@pytest.mark.parametrize("coalesce", [False, True])
def test_a_long_queue_is_discarded_whole_and_told_by_a_sample(
    make: Make, gate: Gate, caplog: pytest.LogCaptureFixture, coalesce: bool
) -> None:
    """Each event's type was named on its own: 2 million took 7.5 s of a timeout of 1 s."""
    dispatcher = make(DispatcherConfig(drain_timeout_s=0.1))
    dispatcher.register(Work, gate, coalesce_by=(lambda event: id(event)) if coalesce else None)
    hold(dispatcher, gate, Event(Work.DO))
    events = [Event(Work.DO) for _ in range(50_001)]
    with caplog.at_level(logging.ERROR):
        for event in events:
            assert dispatcher.event_handler.handle(event)

    dispatcher.stop()
    gate.opened.set()

    until(dispatcher.is_stopped)
    stats = dispatcher.stats()
    assert stats.discarded + stats.handled == 50_002
    assert "queued events: about, by a sample of 10000: " in caplog.text
