"""Handing over events with entries, and giving asks their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from dispatcher.dispatching.lanes import BeginsLater
from dispatcher.errors import AskError
from dispatcher.event import Handler
from dispatcher.mailbox.task_mailbox import TaskMailbox
from dispatcher.queue.asks import Ask
from dispatcher.queue.entry import Entry
from dispatcher.queue.futures import LatchedFuture
from dispatcher.routes import Route, RoutingTable
from dispatcher.util.foreign import class_name, text_of, type_of

if TYPE_CHECKING:
    from dispatcher.journal.writer import JournalWriter

Give = Callable[[Ask, Any, BaseException | None], None]


class Answers:
    """The answers of one dispatcher's asks. Handler thread.

    In write-ahead mode an answer waits until its event's row is as durable as a post is when it returns: otherwise the
    event could come again after a crash, although its caller has seen the answer.
    """

    def __init__(self, journal: JournalWriter | None) -> None:
        self._journal = journal if journal is not None and journal.config.write_ahead else None  # None: none waits
        self._waiting: list[tuple[Ask, Any, BaseException | None]] = []
        self.give: Give = LatchedFuture.settle if self._journal is None else self._give_later
        """What completes an ask with its handler's answer. Never changes."""

    def handle(self, entry: Entry, route: Route) -> None:
        """Call the handler with the event of an entry in hand, and end that.

        Raises:
            EventTaken: it waits for its turn, or is in the hands of a coroutine.
            BaseException: raised by the handler.
        """
        handle = route.handle
        if type(handle) is not BeginsLater:
            entry.begin()
        try:
            value = handle(entry.event)
            entry.end("handled", route, value)
        finally:
            del entry  # the traceback of an error, which an ask gets, refers to this frame

    def _give_later(self, ask: Ask, value: Any, error: BaseException | None) -> None:
        """The event of the ask has ended; its row comes first if the log has the event. Raises nothing."""
        if ask.entry is not None and not ask.entry.accepted_seq:
            ask.settle(value, error)
        else:
            self._waiting.append((ask, value, error))

    def give_waiting(self) -> None:
        """Write the rows, and give the answers that wait for them. Between events.

        Raises:
            JournalError: the disk failed, and the journal's policy is `stop`.
        """
        journal, waiting = self._journal, self._waiting
        if journal is None or not waiting:
            return
        self._waiting = []
        failure: BaseException | None = None
        try:
            if journal.config.durability == "sync":
                journal.flush_to_disk()
            else:
                journal.flush()
            failure = journal.failure
        except BaseException as raised:
            failure = raised
            raise
        finally:
            for ask, value, error in waiting:
                ask.settle(value, failure or error)


class Coroutined(Protocol):
    """What runs the coroutines of one dispatcher. Any thread."""

    def would_wait_for_itself(self, handler: Handler, event: Any) -> bool: ...

    def is_on_loop(self) -> bool: ...


class AskRules:
    """Which asks of one dispatcher would never be answered. Any thread."""

    def __init__(self, name: str, mailbox: TaskMailbox, routes: RoutingTable, coroutines: Coroutined) -> None:
        # None of these fields changes.
        self._name = name
        self._mailbox = mailbox
        self._routes = routes
        self._coroutines = coroutines

    def check_ask(self, event: Any) -> None:
        """Raises AskError if the event cannot be asked by the caller."""
        handlers = self._routes.handlers_of(type_of(event))
        if len(handlers) > 1:
            raise AskError(
                self._name,
                f"{class_name(type_of(event))} has {len(handlers)} handlers, so there is no one answer. Ask an event "
                "of a class that has one handler.",
            )
        if self._mailbox.is_mailbox_thread():
            raise AskError(
                self._name, "a handler cannot ask its own dispatcher, which handles the event after it. Post the event."
            )
        if handlers and self._coroutines.would_wait_for_itself(handlers[0], event):
            raise AskError(
                self._name,
                f"a coroutine cannot ask {text_of(event)}, which waits for it: both have the same key, or the "
                "handler's capacity is 1. Post the event, or give it another key.",
            )

    def check_wait(self) -> None:
        """Raises AskError if the caller, by waiting, keeps the handler from running."""
        if self._mailbox.is_mailbox_thread():
            raise AskError(self._name, "the handler thread cannot wait for an answer, which comes from this thread")
        if self._coroutines.is_on_loop():
            raise AskError(self._name, "this blocks its event loop; use `await aio.ask(dispatcher, event)`")
