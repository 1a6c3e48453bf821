"""Events that are due: the posts of timers, and the next attempts of failed events.

The handler thread fires, and makes room in a full queue. So a due event that finds none waits as a producer does, but
as an entry here, until the handler thread comes back to it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextvars import Context
from threading import get_ident
from typing import Any

from dispatcher.errors import QueueFullError
from dispatcher.mailbox.parking import NEVER
from dispatcher.queue.alarm import Alarm
from dispatcher.queue.entry import RETRYING, ClassAndKey, Entry
from dispatcher.queue.flags import DRAINING
from dispatcher.queue.inbox import Inbox
from dispatcher.util.foreign import fields_of, tell, text_of

log: logging.Logger = logging.getLogger("dispatcher.async_dispatcher")


class Overdue:
    """The due events of one dispatcher that wait for room. Any thread, unless a method says otherwise."""

    def __init__(self, inbox: Inbox, alarm: Alarm, is_handler_thread: Callable[[], bool]) -> None:
        self._is_handler_thread = is_handler_thread  # never changes
        self._inbox = inbox  # never changes
        self._alarm = alarm  # never changes
        self._entries: deque[Entry] = deque()  # oldest first; guarded by the inbox's lock
        self._has_turn = False  # there may be room; any thread sets it, the thread that fires resets it
        self._firing: set[int] = set()  # threads that post a due event; each adds and removes itself

    def unaccepted(self) -> int:
        """How many of them are to be accepted, or are in the log only."""
        with self._inbox.lock:
            return sum(entry.state != RETRYING for entry in self._entries)

    def is_inside(self, is_handler: Callable[[], bool]) -> bool:
        """Whether a post of the caller is neither refused nor delayed: a handler's, or a due event while the queue
        drains."""
        if self._firing and get_ident() in self._firing:
            return self._inbox.phase == DRAINING
        return is_handler()

    def post(self, entry: Entry) -> None:
        """Post it, or let it wait behind those that wait already. The thread that fires."""
        if self._entries or not self._has_posted(entry):
            with self._inbox.lock:
                self._entries.append(entry)
            self._line_up()

    def delay_ns(self) -> float:
        """0 once the first has its turn for room."""
        return 0 if self._entries and self._has_turn else NEVER

    def fire(self) -> bool:
        """Post those that wait, as far as there is room."""
        if self.delay_ns() == NEVER:
            return False
        self._has_turn = False
        self._post_waiting()
        return True

    def _post_waiting(self) -> None:
        while self._entries and self._inbox.phase <= DRAINING:  # after a drain, `end` reports what is left
            with self._inbox.lock:
                entry = self._entries.popleft() if self._entries else None
            if entry is not None and not self._has_posted(entry):
                with self._inbox.lock:
                    self._entries.appendleft(entry)
                self._line_up()
                return

    def release(self) -> bool:
        """A permit was returned: the handler thread has to post."""
        if self._is_handler_thread():
            Context().run(self._post_waiting)  # not in the context of the handler that may be running
        else:
            self._ring()
        return False

    def take_all(self) -> list[Entry]:
        """Those that are left at the end."""
        with self._inbox.lock:
            left, self._entries = list(self._entries), deque()
        return left

    def _line_up(self) -> None:
        self._inbox.room.enter(self)
        if self._inbox.room.permits:  # returned before this waited
            self._ring()

    def _ring(self) -> None:
        self._has_turn = True
        self._alarm.ring()

    def _has_posted(self, entry: Entry) -> bool:
        """Post, unless there is no room; returns whether that is done, or refused. Logs what else it raises."""
        try:
            return self._has_passed(entry)
        except Exception as error:  # of a function for keys, or of the journal
            self._tell("%s: %s could not be posted", entry, error)
            return True

    def _has_passed(self, entry: Entry) -> bool:
        """Post by way of a subclass's `post`, which may refuse only what was not accepted before."""
        override, answers = self._inbox.override, list[bool]()
        was_accepted = _was_accepted(entry)
        if override.post is None:
            return self._has_tried(entry)

        def step(given: Any) -> bool:
            if not was_accepted:
                entry.event = given
            answers.append(self._has_tried(entry))
            return answers[0]

        try:
            override.run(entry.event, step)
        except Exception as error:
            if answers or not was_accepted:
                raise
            self._tell("%s: its post failed for %s", entry, error)
        if answers:
            return answers[0]
        if was_accepted:
            return self._has_tried(entry)
        entry.end("refused")
        return True

    def _has_tried(self, entry: Entry) -> bool:
        inbox, thread = self._inbox, get_ident()
        try:
            self._firing.add(thread)
            if not _was_accepted(entry):
                try:
                    inbox.post_entry(entry, False)
                except QueueFullError:
                    entry.reopen()
                    return False
                return True
            if inbox.phase > DRAINING or not inbox.room.take_for_accepted(entry):
                return False
            if entry.state == RETRYING:
                inbox.post_again(entry)
            else:
                entry.key = self._key_of(entry)
                inbox.enqueue_logged(entry)
            return True
        finally:
            self._firing.discard(thread)

    def _key_of(self, entry: Entry) -> ClassAndKey | None:
        """The event's key. None as well if `coalesce_by` raises: the event is in the log, so it has to be handled."""
        try:
            return self._inbox.key_of(entry.event)
        except Exception as error:
            self._tell("%s: coalesce_by failed for %s", entry, error)
            return None

    def _tell(self, message: str, entry: Entry, error: Exception) -> None:
        name, what = self._inbox.name, text_of(entry.event)
        tell(log, logging.ERROR, message, name, what, error=error, extra=fields_of(name, entry.event))


def _was_accepted(entry: Entry) -> bool:
    """Whether its post may no longer be refused."""
    return bool(entry.accepted_seq) or entry.state == RETRYING
