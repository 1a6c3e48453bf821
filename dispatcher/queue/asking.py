"""Asking: posting an event, with a future for what its handler returns or raises.

The future travels with the event's entry. Whichever thread ends the event completes the future: the handler thread
after the handler, a producer whose event supersedes it, a stop. `Asks` knows the futures that are not done. The thread
that ends the dispatcher says that it `is_over` before it looks for them, and an ask looks at that after its post: so
one of the two sees the other, and no future stays undone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from time import sleep
from typing import Any

from dispatcher.errors import EventRefusedError
from dispatcher.queue.delivery import Ask, AskOwner, Delivery
from dispatcher.queue.entries import FORKED
from dispatcher.queue.later import post_later
from dispatcher.queue.posting import EventQueue
from dispatcher.queue.shutdown import MOST_ANSWERED, SHORT_S
from dispatcher.util.histogram import snapshot
from dispatcher.util.threads import try_to_start


class Asks(AskOwner):
    """The asks of one dispatcher that are not done. Any thread.

    `check_ask(event)` raises AskError if the event cannot be asked, `check_wait()` if the caller cannot wait.
    """

    def __init__(self, queue: EventQueue, check_ask: Callable[[Any], None], check_wait: Callable[[], None]) -> None:
        self.name = queue.name  # never changes, like all fields that do not say otherwise
        self._queue = queue
        self._check_ask = check_ask
        self._check_wait = check_wait
        self._open: dict[Ask, None] = {}  # any thread adds and removes, in single steps
        self._is_over = False  # the thread that ends the dispatcher sets it

    def ask(self, event: Any, *, wait: bool = True) -> Ask:
        """Post the event; what the handler returns or raises, or why it never will, is in the future.

        `wait`: block while a bounded queue is full. In write-ahead mode, does not wait for the disk.

        Raises:
            AskError: the event cannot be asked. QueueFullError: there is no room, and the caller does not `wait`.
            What a post raises.
        """
        self._check_ask(event)
        ask = Ask(self)
        self._open[ask] = None
        try:
            self._post(event, ask, Delivery(ask), wait)
        except BaseException:
            self.forget(ask)
            raise
        if self._is_over:
            ask.discard("stop")
        return ask

    def _post(self, event: Any, ask: Ask, delivery: Delivery, wait: bool) -> None:
        step = self._post_later if self._queue.write_ahead.is_on else self._post_now
        is_asked = self._queue.override.run(event, lambda event: step(event, ask, delivery, wait))
        if not is_asked and not ask.done():  # a subclass's `post` has refused the event
            ask.answer(None, EventRefusedError(self.name, "post"))

    def _post_now(self, event: Any, ask: Ask, delivery: Delivery, wait: bool) -> bool:
        is_accepted = self._queue.post_delivery(event, delivery, wait)
        if not is_accepted:
            ask.answer(None, EventRefusedError(self.name, self._queue.reason()))
        return is_accepted

    def _post_later(self, event: Any, ask: Ask, delivery: Delivery, wait: bool) -> bool:
        posted = post_later(self._queue, event, wait=wait, delivery=delivery)
        error = posted.exception() if posted.done() and not posted.cancelled() else None
        if error is not None and not isinstance(error, EventRefusedError):
            raise error
        posted.add_done_callback(lambda posted: self._note_posted(posted, ask))
        return error is None

    @staticmethod
    def _note_posted(posted: Future[bool], ask: Ask) -> None:
        error = posted.exception() if not posted.cancelled() else None  # cancelled: the ask was withdrawn
        if error is not None:
            ask.answer(None, error)

    def forget(self, ask: Ask) -> None:
        self._open.pop(ask, None)

    def settle(self, accepted_seq: int, *, now: bool = False) -> None:
        if now:
            self._queue.write_ahead.settle_now(accepted_seq)
        else:
            self._queue.write_ahead.settle(accepted_seq)

    def end(self) -> None:
        """No more events are handled: discard those that were not handled to the end. Repeating it is harmless.

        Many take seconds, which a stop does not have, so another thread discards those.
        """
        self._is_over = True
        left = list(snapshot(self._open.copy))
        discarding = threading.Thread(target=self._discard, args=(left,), name=f"{self.name}-asks", daemon=True)
        if len(left) <= MOST_ANSWERED or not try_to_start(discarding):
            self._discard(left)

    def _discard(self, asks: list[Ask]) -> None:
        for number, ask in enumerate(asks, 1):
            if not number % MOST_ANSWERED:
                sleep(SHORT_S)
            if ask in self._open:  # otherwise another thread has answered it meanwhile
                ask.discard("stop")

    def check_wait(self) -> None:
        if self._queue.phase == FORKED:
            self._queue.check_not_forked()
        self._check_wait()
