"""Asking: posting an event, with a future for what its handler returns or raises.

The future belongs to the event's entry, whose end completes it, and `cancel` discards the entry. `Asks` knows the
futures that are not done. The thread that ends the dispatcher says that it `is_over` before it looks for them, and an
ask looks at that after its post: so one of the two sees the other, and no future stays undone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from time import sleep
from typing import Any, Final

from dispatcher.errors import EventDiscardedError, EventRefusedError, JournalError
from dispatcher.queue.entry import Entry
from dispatcher.queue.flags import FORKED
from dispatcher.queue.futures import LatchedFuture
from dispatcher.queue.inbox import Inbox
from dispatcher.queue.later import LaterPost, post_ahead
from dispatcher.util.threads import try_to_start

MOST_ANSWERED: Final = 100
"""Asks that a stop answers before it returns. If there are more, another thread lets the stop go on after as many."""
_SHORT_S: Final = 0.0001


class Ask(LatchedFuture):
    """The future of an ask. Any thread."""

    def __init__(self, owner: Asks, inbox: Inbox, event: Any) -> None:
        super().__init__(inbox.name, inbox.answered)
        self._owner = owner  # never changes
        self.entry: Entry | None = Entry(inbox, event, ask=self)  # None: it has ended; the thread that ends it writes
        self.on_its_way: LaterPost | None = None  # into the log; the thread that asks sets it, before it returns

    def cancel(self) -> bool:
        """Withdraw the event, unless its handling has begun; returns whether it is withdrawn.

        In write-ahead mode, that is as durable as a post when this returns.

        Raises:
            JournalError: it is withdrawn, but the journal cannot be written, so the next start may handle it.
        """
        entry, later = self.entry, self.on_its_way
        if later is not None and later.withdraw():
            self.withdrawn()
        elif entry is not None:
            if later is not None:
                later.wait_until_queued()
            entry.discard("withdrawn")
        return self.cancelled()

    def posted(self, problem: BaseException | None) -> None:
        """Its post has ended. The journal's writer."""
        if problem is not None:
            self.settle(None, problem)

    def ended(self, outcome: str, value: Any, error: Any) -> None:
        """The event has ended. Raises nothing."""
        if outcome in ("handled", "failed"):
            self._owner.give(self, value, error)
        elif outcome == "withdrawn":
            self.withdrawn()
        elif outcome == "refused":
            if error is not None:  # otherwise its post raises, or says why
                self.settle(None, EventRefusedError(self._name, error))
        else:
            self.settle(None, EventDiscardedError(self._name, outcome))

    def _complete(self, state: str, value: Any, error: BaseException | None) -> None:
        self._owner.open.pop(self, None)
        super()._complete(state, value, error)
        self.entry = None

    def _check_wait(self) -> None:
        self._owner.check_wait()

    def _give_up(self) -> None:
        with contextlib.suppress(JournalError):  # which the journal has reported
            self.cancel()


class Asks:
    """The asks of one dispatcher that are not done. Any thread.

    `check_ask(event)` raises AskError if the event cannot be asked, `check_wait()` if the caller cannot wait.
    """

    def __init__(self, inbox: Inbox, check_ask: Callable[[Any], None], check_wait: Callable[[], None]) -> None:
        self._inbox = inbox  # never changes, like all fields that do not say otherwise
        self._check_ask = check_ask
        self._check_wait = check_wait
        self.open: dict[Ask, None] = {}  # any thread adds, removes and copies, each with one call
        self._is_over = False  # the thread that ends the dispatcher sets it
        self.give: Callable[[Ask, Any, BaseException | None], None] = LatchedFuture.settle
        """What completes an ask with its handler's answer. In write-ahead mode, the row comes first. Set once, before
        the start."""

    def ask(self, event: Any, *, wait: bool = True) -> Ask:
        """Post the event; what the handler returns or raises, or why it never will, is in the future.

        `wait`: block while a bounded queue is full. In write-ahead mode, does not wait for the disk.

        Raises:
            AskError: the event cannot be asked. QueueFullError: there is no room, and the caller does not `wait`.
            What a post raises.
        """
        self._check_ask(event)
        ask = Ask(self, self._inbox, event)
        self.open[ask] = None
        try:
            self._post(ask, wait)
        except BaseException:
            self.open.pop(ask, None)
            raise
        if self._is_over:
            ask.settle(None, EventDiscardedError(self._inbox.name, "stop"))
        return ask

    def _post(self, ask: Ask, wait: bool) -> None:
        inbox, entry = self._inbox, ask.entry
        assert entry is not None
        if inbox.override.post is None:
            if inbox.write_ahead.keeps(entry.event):
                self._step(ask, entry, entry.event, wait)
            else:
                inbox.post_entry(entry, wait)
            return
        is_asked = inbox.override.run(entry.event, lambda event: self._step(ask, entry, event, wait))
        if not is_asked and not ask.done():  # a subclass's `post` has refused the event
            ask.settle(None, EventRefusedError(inbox.name, "post"))

    def _step(self, ask: Ask, entry: Entry, event: Any, wait: bool) -> bool:
        inbox = self._inbox
        entry.event = event
        if not inbox.write_ahead.keeps(event):
            return inbox.post_entry(entry, wait)
        try:
            post_ahead(inbox, entry, wait=wait, tell=ask.posted)
        except EventRefusedError:  # the entry's end has said so
            return False
        return True

    def end(self) -> None:
        """No more events are handled: discard those that were not handled to the end. Repeating it is harmless."""
        self._is_over = True
        self.discard(list(self.open.copy()))

    def discard(self, asks: list[Ask]) -> None:
        """A stop has discarded their events. Many take seconds, which it does not have, so another thread answers."""
        name = f"{self._inbox.name}-asks"
        discarding = threading.Thread(target=self._discard, args=(asks,), name=name, daemon=True)
        if len(asks) <= MOST_ANSWERED or not try_to_start(discarding):
            self._discard(asks)

    def _discard(self, asks: list[Ask]) -> None:
        for number, ask in enumerate(asks, 1):
            if not number % MOST_ANSWERED:
                sleep(_SHORT_S)
            if ask in self.open:  # otherwise another thread has answered it meanwhile
                ask.settle(None, EventDiscardedError(self._inbox.name, "stop"))

    def check_wait(self) -> None:
        if self._inbox.phase == FORKED:
            self._inbox.check_not_forked()
        self._check_wait()
