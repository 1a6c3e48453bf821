"""Dispatchers for tests."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import Enum
from functools import partial
from time import monotonic, sleep
from typing import Any, Unpack, overload

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.dispatching.coroutines import running_loop
from dispatcher.errors import AskError, DeadlockError
from dispatcher.event import (
    A,
    Answered,
    AsyncioHandler,
    DispatcherEventHandler,
    Handler,
    HasType,
    handling_callable,
    is_async,
    unscoped,
)
from dispatcher.interface import ScheduledEvent
from dispatcher.journal.format.event_codec import EventCodec
from dispatcher.mailbox.manual_clock import ManualClock
from dispatcher.queue.rules import RuleOptions, rule_of
from dispatcher.routes import Part, RoutingTable
from dispatcher.scopes import HasScopes
from dispatcher.service import Service
from dispatcher.testing.schedule import InlineSchedule
from dispatcher.util.foreign import class_name, text_of, type_of
from dispatcher.util.functions import takes_options


class DrainDispatcher(AsyncDispatcher):
    """An AsyncDispatcher whose waits fail your test when they time out."""

    def await_drained(self, timeout: float | None = 10.0) -> bool:
        """Wait up to `timeout` seconds until drained.

        Raises:
            AssertionError: it isn't drained in time. The message lists the events queued and being handled.
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
            AssertionError: it isn't in time. The message shows what the thread is doing instead.
        """
        deadline = monotonic() + timeout
        while not (self.is_drained() and self._mailbox.parking.is_waiting()):
            if monotonic() > deadline:
                raise AssertionError(f"{self.name}: the handler thread does not wait, it is {self._describe_handler()}")
            sleep(0)


class InlineDispatcher(HasScopes, Service):
    """Handles each event on the caller's thread, before `post` returns. You don't need to start it.

    Events that your handlers post are handled in order after the current one, as on a real dispatcher. If a handler
    raises, you get the error, and the events queued behind are dropped. The options of `register` and `on` are checked,
    and have no effect: nothing waits, and `post` gives you a handler's error.

    Each `async def` handler runs to its end on an event loop of the dispatcher, one after another, whichever loop its
    AsyncioHandler names. On a thread with a running loop, for example in an `async def` test, `post` would block and
    raises DeadlockError. There, use `await asyncio.to_thread(dispatcher.post, event)`.

    Scheduled events are posted by the thread that advances `clock`, by default a new ManualClock.
    """

    def __init__(self, *, name: str = "InlineDispatcher", clock: ManualClock | None = None) -> None:
        super().__init__(name)
        self.clock: ManualClock = clock if clock is not None else ManualClock()
        self._routes = RoutingTable(name, None, lambda handler, *_: self._bind(handler), lambda *_: None)
        self._codec = EventCodec(name)
        self._schedule = InlineSchedule(name, self.clock, self.post)
        self._loop: asyncio.AbstractEventLoop | None = None  # of `async def` handlers; made for the first one
        self._queue: deque[Any] = deque()
        self._handling = False
        self._event_handler = DispatcherEventHandler(self.post)
        self.events: list[Any] = []
        """All events handled so far, in order."""

    @property
    def event_handler(self) -> DispatcherEventHandler:
        """Post as in Hadoop: `event_handler.handle(event)` is `post(event)`."""
        return self._event_handler

    def _register(self, event_class: type[Enum], part: Part) -> None:
        self._routes.register(event_class, part)
        if part.events:
            self._codec.declare(event_class, part.events)

    def unregister(self, event_type: type[Enum], handler: Handler) -> bool:
        """Remove a handler, and return whether it was registered."""
        return self._routes.unregister(event_type, handler)

    def post(self, event: HasType[Enum]) -> bool:
        """Handle the event, and those posted by its handlers, and return True."""
        return self._post(event, self._handle_one)

    def post_nowait(self, event: HasType[Enum]) -> bool:
        """Handle the event, and those posted by its handlers, and return True. No post waits here."""
        return self.post(event)

    def post_later(self, event: HasType[Enum]) -> Future[bool]:
        """Post as `post` does, and return a future that's done."""
        posted: Future[bool] = Future()
        posted.set_result(self.post(event))
        return posted

    @overload
    def ask(self, event: Answered[A]) -> Future[A]: ...
    @overload
    def ask(self, event: HasType[Enum]) -> Future[Any]: ...
    def ask(self, event: Any) -> Future[Any]:
        """Post as `post` does, and return a future, already done, for what the event's handler returns or raises.

        If the handler of another event posted meanwhile raises, you get that error.

        Raises:
            AskError: the class of the event has several handlers, or the caller is a handler.
        """
        count = len(self._routes.handlers_of(type_of(event)))
        if count > 1:
            raise AskError(self.name, f"{class_name(type_of(event))} has {count} handlers, so there is no one answer.")
        if self._handling:
            raise AskError(self.name, "a handler cannot ask its own dispatcher, which handles the event after it.")
        answer: Future[Any] = Future()
        self._post(event, partial(self._answer, answer))
        return answer

    def post_after(self, seconds: float, event: HasType[Enum], *, key: str = "") -> ScheduledEvent:
        """Post an event when the clock has advanced by `seconds`. Raises as AsyncDispatcher.post_after."""
        return self._schedule.after(seconds, event, key)

    def post_at(self, unix_s: float, event: HasType[Enum], *, key: str = "") -> ScheduledEvent:
        """Post as `post_after` does, at a time of the clock in Unix seconds."""
        return self._schedule.at(unix_s, event, key)

    @takes_options(RuleOptions, rule_of)
    def post_every(
        self,
        seconds: float | None = None,
        event: HasType[Enum] | Callable[[], HasType[Enum]] | None = None,
        *,
        key: str = "",
        **options: Unpack[RuleOptions],
    ) -> ScheduledEvent:
        """Post as AsyncDispatcher.post_every does, without the `jitter`, so that tests are reproducible.

        No time is missed, even if you advance the clock far.
        """
        return self._schedule.every(rule_of(seconds=seconds, **options), event, options.get("first"), key)

    def scheduled(self, prefix: str = "") -> Mapping[str, ScheduledEvent]:
        """Return the scheduled posts whose keys begin with `prefix`, by key, soonest first."""
        return self._schedule.scheduled(prefix)

    def cancel(self, key: str) -> bool:
        """Cancel the post scheduled under `key`, and return whether there was one."""
        return self._schedule.cancel(key)

    def attempt(self) -> int:
        """Return 1: no event is tried again."""
        return 1

    def is_redelivering(self) -> bool:
        """Return False: there is no earlier run."""
        return False

    def service_stop(self) -> None:
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def _post(self, event: Any, handle: Callable[[Any], Any]) -> bool:
        self._queue.append((event, handle))
        if self._handling:
            return True
        self._handling = True
        try:
            while self._queue:
                event, handle = self._queue.popleft()
                handle(event)
        finally:
            self._handling = False
            self._queue.clear()
        return True

    def _handle_one(self, event: Any) -> Any:
        route = self._routes.find(event.type)
        if route.registered:
            self.events.append(unscoped(event))
        return route.handle(event)

    def _answer(self, answer: Future[Any], event: Any) -> None:
        try:
            value = self._handle_one(event)
        except (Exception, asyncio.CancelledError) as error:
            answer.set_exception(error)
        else:
            answer.set_result(value)

    def _bind(self, handler: Handler) -> Callable[[Any], Any]:
        if not is_async(handler):
            return handling_callable(handler)
        function = (handler if isinstance(handler, AsyncioHandler) else AsyncioHandler(handler)).function
        return lambda event: self._run(function, event)

    def _run(self, function: Callable[[Any], Any], event: Any) -> Any:
        if running_loop() is not None:
            raise DeadlockError(
                f"{self.name}: {text_of(event)} has an `async def` handler, which cannot run on a thread that runs an "
                "event loop, because the post would block that loop. Post from another thread, with `await "
                "asyncio.to_thread(dispatcher.post, event)`, or in a plain test function."
            )
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            weakref.finalize(self, self._loop.close)
        return self._loop.run_until_complete(function(event))
