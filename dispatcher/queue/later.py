"""Posts that do not wait for the disk: in write-ahead mode, the event is between the producer and the queue meanwhile.

    any thread --post_later, ask--> journal's writer: log, queue, future

The producer takes the event's permit, so a bounded queue bounds the posts in flight as well, and encodes the event. The
journal's writer puts it into the queue once it is in the log, in the order of the posts, and completes the future. If a
thread calls post_later(a), then handle(b), the log has a before b.

A post belongs to its producer until the log has it; from then on the writer alone ends it. If a signal handler ends the
producer's call after that, the producer withdraws the event, and the writer finds it withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from dispatcher.errors import EventRefusedError, ForkedProcessError, QueueFullError
from dispatcher.journal.turns import LaterAppend, TurnGate
from dispatcher.queue.entry import NEW, Entry
from dispatcher.queue.futures import LatchedFuture
from dispatcher.queue.inbox import Inbox
from dispatcher.util.threads import is_owned


class Posted(LatchedFuture):
    """The future of a post: True once the event is accepted. Any thread."""

    def __init__(self, inbox: Inbox) -> None:
        super().__init__(inbox.name, inbox.answered)
        self._inbox = inbox  # never changes
        self.on_its_way: LaterPost | None = None  # into the log; its producer sets it, before it has the future

    def cancel(self) -> bool:
        """Withdraw the event, unless the journal's writer has begun to write it; returns whether it is withdrawn."""
        later = self.on_its_way
        if later is not None and later.withdraw():
            self.withdrawn()
        return self.cancelled()

    def _check_wait(self) -> None:
        self._inbox.check_not_forked()


def post_later(inbox: Inbox, event: Any, *, wait: bool = True) -> Future[bool]:
    """The future of a post. `wait`: block while a bounded queue is full or too many posts are in flight. Any thread.

    Raises:
        ForkedProcessError: this process is a fork of the one that made the dispatcher. All else is in the future, but
            for what a signal handler raises while the post is on its way into the log; then the event is withdrawn.
    """
    future = Posted(inbox)
    problem: BaseException | None = None
    try:
        if inbox.write_ahead.keeps(event):
            entry = Entry(inbox, event)
            post_ahead(inbox, entry, wait=wait, tell=lambda problem: future.settle(True, problem), future=future)
            return future
        if not (inbox.post(event) if wait else inbox.post_if_room(event)):
            problem = EventRefusedError(inbox.name, inbox.reason())
    except ForkedProcessError:
        raise
    except (EventRefusedError, QueueFullError) as refusal:
        # Its traceback would lead back to this future, and keep the event until the garbage collector runs.
        problem = refusal.with_traceback(None)
    except Exception as error:
        if future.on_its_way is not None and future.on_its_way.is_sent:  # raised by a signal handler
            raise
        problem = error
    # Not in the `try`: what a signal handler raises here is raised to the caller. The future is completed once.
    future.settle(True if problem is None else None, problem)
    return future


def post_nowait(inbox: Inbox, event: Any) -> bool:
    """In write-ahead mode, post without waiting for room or for the disk. Any thread.

    Raises:
        QueueFullError, EventNotDeclaredError, JournalError: as post_later's future has them. ForkedProcessError.
    """
    try:
        later = post_ahead(inbox, Entry(inbox, event), wait=False)
    except EventRefusedError:
        return False
    if later is None:
        return True
    if not later.is_done:
        return not inbox.write_ahead.is_failed()
    if later.problem is None or isinstance(later.problem, EventRefusedError):
        return later.problem is None
    raise later.problem


def post_ahead(
    inbox: Inbox,
    entry: Entry,
    *,
    wait: bool,
    tell: Callable[[BaseException | None], None] | None = None,
    future: Posted | None = None,
) -> LaterPost | None:
    """Take a permit, and put the event on its way; None: the handler thread will.

    `tell(problem)` is called once the event is in the queue, or is not accepted.

    Raises:
        EventRefusedError, QueueFullError, ForkedProcessError: as a post. Exception: raised by the user's function for
            the key, or because the journal cannot keep the event.
    """
    later: LaterPost | None = None
    reason = inbox.closed_to()
    try:
        if not reason:
            inbox.set_up(entry)
            line = inbox.write_ahead.encode(entry.event, inbox.write_ahead.marked(entry.context))
            if is_owned(inbox.lock):
                reason = inbox.put_aside(entry)
                if not reason:
                    if tell is not None:
                        tell(None)
                    return None
        if not reason:
            with inbox.in_post() as is_nested:
                # An event that will supersede another one needs no room.
                if entry.key is None or not inbox.is_queued(entry.key):
                    reason = inbox.room.take(entry, wait, is_nested)
                if not reason:
                    later = LaterPost(inbox, entry, line, tell)
                    for each in (future, entry.ask):
                        if each is not None:
                            each.on_its_way = later
                    inbox.write_ahead.append_later(later, wait=wait)
                    return later
    except BaseException:
        if later is None or not later.is_sent:
            if entry.permit and entry.state == NEW:  # here, as the limit of recursion may be near
                inbox.room.permits.append(None)
                entry.permit = False
            inbox.undo_or_finish(entry)
        raise
    inbox.refuse(entry, reason)
    raise EventRefusedError(inbox.name, reason)


class LaterPost(LaterAppend):
    """An event on its way through the log into the queue."""

    def __init__(
        self, inbox: Inbox, entry: Entry, line: bytes, tell: Callable[[BaseException | None], None] | None
    ) -> None:
        super().__init__(line)
        self._entry = entry  # never changes
        self._inbox = inbox  # never changes
        self._tell = tell  # never changes
        # Guarded by the inbox's lock: once it is being written, it is not withdrawn.
        self._is_running = False
        self._is_left_out = False  # by its caller
        self._queued: TurnGate | None = None  # opened once it is queued, if somebody waits for that
        self.problem: BaseException | None = None  # why it is not accepted; the journal's writer

    def withdraw(self) -> bool:
        """Leave the event out of the log; False: it is being written, or is there. Any thread."""
        with self._inbox.lock:
            self._is_left_out |= not self._is_running
            return self._is_left_out

    def wait_until_queued(self) -> None:
        """It is being written: wait until it is in the queue. Any thread but the journal's writer."""
        with self._inbox.lock:
            if self.is_done or self._inbox.write_ahead.is_writing_here():
                return
            gate = self._queued = self._queued or TurnGate()
        gate.wait()

    def begin(self) -> bool:
        """The journal's writer."""
        with self._inbox.lock:
            self._is_running |= not (self.is_withdrawn or self._is_left_out)
            return self._is_running

    def end(self) -> None:
        """The journal's writer."""
        try:
            self.problem = self._enqueue()
        except BaseException as error:  # raised by comparing keys
            self.problem = error
        with self._inbox.lock:
            super().end()
            gate = self._queued
        if gate is not None:
            gate.open()

    def tell(self) -> None:
        """The journal's writer."""
        if not self._inbox.write_ahead.under_way:
            self._inbox.wake()  # a drain may wait for the last one
        if self._tell is not None and self._is_running and not self.is_withdrawn:
            self._tell(self.problem)

    def _enqueue(self) -> EventRefusedError | None:
        entry, inbox = self._entry, self._inbox
        if entry.state != NEW:  # a repetition
            return None
        is_written = self._is_running and self.error is None
        if is_written:
            entry.accepted_seq = self.seq
        if not is_written or self.is_withdrawn:
            entry.end("refused")  # `_refusal` counts it, if its caller still waits
            return self._refusal() if self._is_running and self.error is not None else None
        inbox.enqueue_logged(entry)
        return None

    def _refusal(self) -> EventRefusedError:
        inbox = self._inbox
        reason = "journal" if inbox.write_ahead.is_failed() else inbox.shut_reason()
        inbox.reject(reason)
        return EventRefusedError(inbox.name, reason, self.error if reason == "journal" else None)
