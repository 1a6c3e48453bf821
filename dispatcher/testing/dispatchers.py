"""Dispatchers for tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from time import monotonic, sleep
from typing import Any

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.event import (
    DispatcherEventHandler,
    E,
    EventHandler,
    Handler,
    HandlerFunction,
    HasType,
    handling_callable,
)
from dispatcher.members import F, decorator
from dispatcher.routes import Part, RoutingTable
from dispatcher.service import Service


class DrainDispatcher(AsyncDispatcher):
    """An AsyncDispatcher whose waits fail the test when they time out."""

    def await_drained(self, timeout: float | None = 10.0) -> bool:
        """Wait until drained, `timeout` seconds at most.

        Raises:
            AssertionError: not drained in time; the message lists the events queued and in hand.
        """
        if not super().await_drained(timeout):
            raise AssertionError(
                f"{self.name} is not drained after {timeout} s: in hand {self._progress.event()!r}, "
                f"queued {self.queue_contents()}"
            )
        return True

    def wait_for_event_thread_to_wait(self, timeout: float = 10.0) -> None:
        """Wait until the handler thread is idle and waits for the next event or mail.

        Raises:
            AssertionError: it does not in time; the message says what it does instead.
        """
        deadline = monotonic() + timeout
        while not (self.is_drained() and self._mailbox.parking.is_waiting()):
            if monotonic() > deadline:
                raise AssertionError(f"{self.name}: the handler thread does not wait, it is {self._describe_handler()}")
            sleep(0)


class InlineDispatcher(Service):
    """Handles each event on the caller's thread, before `post` returns. It need not be started.

    Events that handlers post are handled in order after the current one, as on a real dispatcher. The caller gets a
    handler's error; the events queued behind it are dropped.
    """

    def __init__(self, name: str = "InlineDispatcher") -> None:
        super().__init__(name)
        self._routes = RoutingTable(name, None, lambda handler, *_: handling_callable(handler), lambda *_: None)
        self._queue: deque[Any] = deque()
        self._handling = False
        self._event_handler = DispatcherEventHandler(self.post)
        self.events: list[Any] = []
        """Everything handled so far, in order."""

    @property
    def event_handler(self) -> DispatcherEventHandler:
        return self._event_handler

    def register(self, event_type: type[E], handler: HandlerFunction[E] | EventHandler, **options: Any) -> None:
        """As AsyncDispatcher.register. The options have no effect: nothing waits, and the caller gets the errors."""
        self._routes.register(event_type, Part(handler))

    def on(self, *event_types: type[Enum] | Enum, **options: Any) -> Callable[[F], F]:
        """As AsyncDispatcher.on. The options have no effect."""
        return decorator(
            lambda event_class, members, function: self._routes.register(event_class, Part(function, members=members)),
            event_types,
        )

    def unregister(self, event_type: type[Enum], handler: Handler) -> bool:
        return self._routes.unregister(event_type, handler)

    def post(self, event: HasType[Enum]) -> bool:
        """Handle the event, and those that its handlers post; returns True."""
        self._queue.append(event)
        if self._handling:
            return True
        self._handling = True
        try:
            while self._queue:
                self._handle_one(self._queue.popleft())
        finally:
            self._handling = False
            self._queue.clear()
        return True

    def _handle_one(self, event: Any) -> None:
        route = self._routes.find(event.type)
        if route.registered:
            self.events.append(event)
        route.handle(event)
