"""A daemon of any shape, stopped from anywhere, with handlers that are quick or hang: the accounts stay exact.

The accounts of the dispatchers are compared with what the producers counted themselves.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dispatcher import (
    AsyncDispatcher,
    CompositeService,
    DispatcherConfig,
    DispatcherGroup,
    Service,
    ServiceState,
    ServiceStateError,
)

from ...kit import TIMEOUT_S, Numbered, Work, assert_accounts_balance, in_threads, no_thread_is_left, until

pytestmark = pytest.mark.long

EVENTS = 30


class Store(Service):
    """What the handlers need: it starts before the dispatchers, and stops after them."""

    def __init__(self, above: list[AsyncDispatcher], started: threading.Event | None) -> None:
        super().__init__("store")
        self._above, self._held = above, started
        self.is_starting_up = threading.Event()
        self.stopped_early = False

    def service_start(self) -> None:
        self.is_starting_up.set()
        assert self._held is None or self._held.wait(TIMEOUT_S)

    def service_stop(self) -> None:
        self.stopped_early = any(
            dispatcher.is_stopping() or dispatcher.in_state(ServiceState.STARTED) for dispatcher in self._above
        )


@dataclass
class Daemon:
    whole: CompositeService
    dispatchers: list[AsyncDispatcher]
    store: Store
    hang: threading.Event = field(default_factory=threading.Event)
    all_posted: threading.Event = field(default_factory=threading.Event)
    accepted: dict[str, int] = field(default_factory=dict)

    def produce(self, dispatcher: AsyncDispatcher) -> None:
        """Each dispatcher has one producer."""
        post = dispatcher.event_handler.handle
        self.accepted[dispatcher.name] = sum(post(Numbered(number)) for number in range(EVENTS))


def make(shape: str, *, hangs: bool, held: threading.Event | None) -> Daemon:
    config = DispatcherConfig(drain_timeout_s=0.1 if hangs else 30.0)
    dispatchers = [AsyncDispatcher(config, name=name) for name in ("first", "second")]
    whole, store = CompositeService("daemon"), Store(dispatchers, held)
    whole.add_service(store)
    if shape == "flat":
        for dispatcher in dispatchers:
            whole.add_service(dispatcher)
    elif shape == "nested":
        inner = CompositeService("inner")
        inner.add_service(dispatchers[0])
        whole.add_service(inner)
        whole.add_service(dispatchers[1])
    else:
        whole.add_service(DispatcherGroup(dispatchers, name="group", drain_timeout_s=config.drain_timeout_s))
    return Daemon(whole, dispatchers, store)


def handlers(daemon: Daemon, who: str, at: int, hangs_at: int | None) -> None:
    """Register handlers: one of `first` begins the stop at its event `at`; one of `second` hangs at `hangs_at`."""
    first, second = daemon.dispatchers
    begin = {"handler": first.stop, "handler of the daemon": daemon.whole.stop}.get(who)

    def handle(event: Numbered) -> None:
        if event.number == at:
            if begin is not None:
                assert daemon.all_posted.wait(TIMEOUT_S)
                begin()
            if who == "policy":
                raise LookupError("lost")

    def handle_slowly(event: Numbered) -> None:
        if event.number == hangs_at:
            assert daemon.hang.wait(TIMEOUT_S)

    first.register(Work, handle, on_error="stop")
    second.register(Work, handle_slowly)
    if who == "listener":

        def stop(service: Service) -> None:
            if service.in_state(ServiceState.STARTED):
                daemon.whole.stop()

        second.register_service_listener(stop)


WHO = ["outside", "handler", "handler of the daemon", "policy", "listener", "signal", "amid start", "two threads"]


@settings(max_examples=40, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    who=st.sampled_from(WHO),
    shape=st.sampled_from(["flat", "nested", "group"]),
    at=st.integers(0, EVENTS - 1),
    hangs_at=st.none() | st.integers(0, EVENTS - 1),
    drains=st.booleans(),
)
def test_a_stop_from_anywhere_is_waited_for_and_leaves_nothing_uncounted(
    who: str, shape: str, at: int, hangs_at: int | None, drains: bool
) -> None:
    held = threading.Event() if who == "amid start" else None
    daemon = make(shape, hangs=hangs_at is not None, held=held)
    whole, first, second = daemon.whole, *daemon.dispatchers
    handlers(daemon, who, at, hangs_at)
    for dispatcher in daemon.dispatchers:
        dispatcher.set_drain_events_on_stop(drains)

    with no_thread_is_left("dispatcher-monitor"):
        whole.init()
        starter = threading.Thread(target=start, args=(whole,))
        starter.start()
        if held is not None:
            assert daemon.store.is_starting_up.wait(TIMEOUT_S)
            whole.stop()
            held.set()
        starter.join(TIMEOUT_S)
        in_threads(lambda: daemon.produce(first), lambda: daemon.produce(second))
        daemon.all_posted.set()
        if who == "signal":
            before = signal.signal(signal.SIGUSR1, lambda *_: whole.stop())
            signal.raise_signal(signal.SIGUSR1)
            signal.signal(signal.SIGUSR1, before)
        elif who == "two threads":
            in_threads(whole.stop, second.stop)
        whole.stop()
        assert whole.wait_for_service_to_stop(TIMEOUT_S)

        # A group that has given up on a handler does not wait for another thread that stops the same dispatcher.
        assert not daemon.store.stopped_early or (who == "two threads" and shape == "group" and hangs_at is not None)
        assert daemon.store.in_state(ServiceState.STOPPED)
        for dispatcher in daemon.dispatchers:
            assert dispatcher.queue_size() == 0
        daemon.hang.set()
        for dispatcher in daemon.dispatchers:
            until(dispatcher.is_stopped)
            assert_accounts_balance(dispatcher, accepted=daemon.accepted[dispatcher.name])
            if drains and hangs_at is None:
                assert dispatcher.stats().discarded == 0
    assert whole.failure_cause is None or (who == "policy" and shape == "group")
    assert (first.failure_cause is not None) == (who == "policy" and first.stats().failed > 0)


def start(whole: CompositeService) -> None:
    try:
        whole.start()
    except ServiceStateError:
        assert whole.in_state(ServiceState.STOPPED)


SCRIPT = """
    import atexit, sys, threading
    from enum import Enum
    from dispatcher import AsyncDispatcher, CompositeService, DispatcherGroup, Event
    class Work(Enum):
        DO = 1
    handled, begun = [], threading.Event()
    def handle(event):
        handled.append(event)
        if len(handled) == 1:
            begun.wait(60)
            {inside}
    dispatchers = [AsyncDispatcher(name=name) for name in ("first", "second")]
    daemon = {whole}
    dispatchers[0].register(Work, handle)
    daemon.start()
    accepted = sum(dispatchers[0].event_handler.handle(Event(Work.DO)) for _ in range(6000))
    def end():
        {outside}
        assert daemon.wait_for_service_to_stop(60)
        print(accepted, len(handled), dispatchers[0].stats().discarded, dispatchers[0].failure_cause)
    atexit.register(end)
    atexit.register(begun.set)
"""


@pytest.mark.parametrize("whole", ["dispatchers[0]", "DispatcherGroup(dispatchers, name='group')"])
@pytest.mark.parametrize("begins", ["inside", "outside"])
def test_a_stop_in_an_exit_hook_drains_although_no_thread_can_start(whole: str, begins: str) -> None:
    """On Python 3.12 and later, no thread starts in an exit hook."""
    stop: dict[str, Any] = {"inside": "pass", "outside": "daemon.stop()"}
    if begins == "inside":
        stop["inside"] = "daemon.stop()"
    script = textwrap.dedent(SCRIPT).format(whole=whole, **stop)

    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )

    assert (ended.returncode, ended.stdout.strip()) == (0, "6000 6000 0 None"), ended.stderr
