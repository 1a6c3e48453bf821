"""Posting without waiting for the disk: a future tells when the event is in the write-ahead log and in the queue.

The producer takes the event's permit, so a bounded queue bounds the posts under way as well, and encodes the event. The
journal's writer puts it into the queue once it is in the log, in the order of the posts, and completes the future. If a
thread calls post_later(a), then handle(b), the log has a before b.

A post belongs to its producer until the log has it; from then on the writer alone gives back its permit and completes
its future. If a signal handler ends the producer's call after that, the producer withdraws the event, and the writer
finds it withdrawn.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any

from dispatcher.errors import EventRefusedError, ForkedProcessError, QueueFullError
from dispatcher.journal.turns import LaterAppend
from dispatcher.queue import nesting
from dispatcher.queue.delivery import Delivery, Withdrawable
from dispatcher.queue.entries import ClassAndKey
from dispatcher.queue.posting import EventQueue
from dispatcher.util.foreign import tell

log = logging.getLogger("dispatcher.async_dispatcher")


def post_later(queue: EventQueue, event: Any, *, wait: bool = True, delivery: Delivery | None = None) -> Future[bool]:
    """The future of a post. `wait`: block while a bounded queue is full or too many posts are under way. Any thread.

    Raises:
        ForkedProcessError: this process is a fork of the one that made the dispatcher. All else is in the future, but
            for what a signal handler raises while the post is on its way into the log; then the event is withdrawn.
    """
    future = Withdrawable(queue.name)
    later: _LaterPost | None = None
    problem: Exception | None = None
    try:
        if queue.write_ahead.is_on:
            later = _post_ahead(queue, event, future, wait, delivery)
        else:
            _post_now(queue, event, wait, delivery)
    except ForkedProcessError:
        raise
    except (EventRefusedError, QueueFullError) as refusal:
        # Its traceback would lead back to this future, and keep the event until the garbage collector runs.
        problem = refusal.with_traceback(None)
    except Exception as error:
        if not future.claim():  # raised by a signal handler, once the event was on its way
            raise
        problem = error
    # Not in the `try`: what a signal handler raises here is raised to the caller. The future is completed once.
    if problem is not None:
        future.set_exception(problem)
    elif later is None:
        future.set_result(True)
    return future


def _post_now(queue: EventQueue, event: Any, wait: bool, delivery: Delivery | None) -> None:
    if delivery is not None:
        is_accepted = queue.post_delivery(event, delivery, wait)
    else:
        is_accepted = queue.post(event) if wait else queue.post_if_room(event)
    if not is_accepted:
        raise EventRefusedError(queue.name, queue.reason())


def post_nowait(queue: EventQueue, event: Any) -> bool:
    """In write-ahead mode, post without waiting for room or for the disk. Any thread.

    It never takes the lock of the future: a signal handler that posts amid that waits for the writer, and the writer,
    to complete the future, for the lock.

    Raises:
        QueueFullError, EventNotDeclaredError, JournalError: as post_later's future has them. ForkedProcessError.
    """
    try:
        later = _post_ahead(queue, event, None, False, None)
    except EventRefusedError:
        return False
    if not later.is_done:
        return not queue.write_ahead.is_failed()
    if later.problem is None or isinstance(later.problem, EventRefusedError):
        return later.problem is None
    raise later.problem


def _post_ahead(
    queue: EventQueue, event: Any, future: Withdrawable | None, wait: bool, delivery: Delivery | None
) -> _LaterPost:
    """Take a permit, and put the event on its way."""
    if queue.refuses():
        raise EventRefusedError(queue.name, queue.reason())
    queue.state.has_deliveries |= delivery is not None
    key = queue.coalescing.key_of(event)
    held: list[Any] = []
    later: _LaterPost | None = None
    try:
        # An event that will supersede another one needs no room.
        if (key is None or key not in queue.coalescing.queued) and not queue.room.take(wait, held):
            raise EventRefusedError(queue.name, queue.reason())
        delivery = queue.in_context(event, delivery)
        later = _LaterPost(queue, event, key, held, queue.write_ahead.encode(event), future, delivery)
        if delivery is not None and delivery.ask is not None:
            delivery.ask.on_its_way = later
        queue.write_ahead.append_later(later, wait=wait)
    except BaseException:
        if later is None or not later.is_sent:
            queue.room.undo(held)
        if later is not None and future is not None:
            future.claim()  # no caller gets it
        raise
    return later


nesting.entries(_post_ahead)


class _LaterPost(LaterAppend):
    """An event on its way through the log into the queue."""

    def __init__(
        self,
        queue: EventQueue,
        event: Any,
        key: ClassAndKey | None,
        held: list[Any],
        line: bytes,
        future: Withdrawable | None,
        delivery: Delivery | None,
    ) -> None:
        super().__init__(line)
        # The post, which never changes.
        self._queue = queue
        self._event = event
        self._key = key
        self._future = future
        self._delivery = delivery
        self._held = held  # its permit; the producer, and once it is on its way the journal's writer
        # How it goes: the journal's writer.
        self._is_running = False  # the future can no longer be cancelled
        self.problem: BaseException | None = None  # the future's error

    def withdraw(self) -> None:
        """Leave the event out of the log or, if it is being written, wait until it is there. Any thread."""
        future = self._future
        if future is None or future.cancel() or self.is_done or self.is_withdrawn:
            return
        if not self._queue.write_ahead.is_writing_here():
            wait_for((future,))

    def begin(self) -> bool:
        if not self._is_running:
            self._is_running = not self.is_withdrawn and (self._future is None or self._future.claim())
        return self._is_running

    def end(self) -> None:
        try:
            self.problem = self._enqueue()
        except BaseException as error:  # raised by comparing keys
            self.problem = error
        super().end()

    def tell(self) -> None:
        queue, future = self._queue, self._future
        if not queue.write_ahead.under_way:
            queue.wake()  # a drain may wait for the last one
        if future is None or not self._is_running or self.is_withdrawn:
            return
        try:
            if self.problem is None:
                future.set_result(True)
            else:
                future.set_exception(self.problem)
        except BaseException as error:  # of a callback that ends its thread, or of a future that is no longer ours
            message = "%s: the future of a posted event could not be completed"
            tell(log, logging.ERROR, message, queue.name, error=error, extra={"dispatcher": queue.name})

    def _enqueue(self) -> EventRefusedError | None:
        queue = self._queue
        if not self._is_running or self.is_withdrawn or self.error is not None:
            queue.room.undo(self._held)
            queue.write_ahead.settle(self.seq)
            return self._refusal() if self._is_running and self.error is not None else None
        if not self._held:
            queue.room.take_or_overdraw()
        if self._delivery is not None and self._delivery.ask is not None:
            self._delivery.ask.logged(self.seq)
        queue.enqueue_logged(self._event, self._key, self.seq, self._delivery)
        return None

    def _refusal(self) -> EventRefusedError:
        queue, name = self._queue, self._queue.name
        if queue.write_ahead.is_failed():
            queue.state.reject("journal")
            return EventRefusedError(name, "journal", self.error)
        queue.state.reject_shut()
        return EventRefusedError(name, queue.reason())
