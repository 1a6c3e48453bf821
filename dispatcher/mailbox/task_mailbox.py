"""The mailbox of one thread, after Flink's TaskMailboxImpl.

Any thread puts mail into the queue, under the lock. The mailbox thread moves the queue's content to its own batch and
takes from there without a lock. An OPEN mailbox allows puts and takes, a QUIESCED one only takes, a CLOSED one neither.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from operator import attrgetter
from typing import ClassVar, Final, TypeVar

from dispatcher.errors import MailboxClosedError, MailboxStateError
from dispatcher.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions
from dispatcher.mailbox.parking import Parking
from dispatcher.util.functions import require_kind

T = TypeVar("T")


class MailboxState(Enum):
    """OPEN, then QUIESCED (accepts no more mail), then CLOSED."""

    OPEN = "OPEN"
    QUIESCED = "QUIESCED"
    CLOSED = "CLOSED"


_OPEN: Final = MailboxState.OPEN  # looking up an Enum member is slow, and mail is put often
_effective_priority: Callable[[Mail], int] = attrgetter("priority")
_original_priority: Callable[[Mail], int] = attrgetter("original_priority")


class TaskMailbox:
    """Mail for one thread: the one that creates the mailbox, or `mailbox_thread`.

    Only the mailbox thread can call `has_mail`, the takes, `create_batch`, `quiesce` and `close`. On other threads they
    raise MailboxStateError. Any thread can call the rest, `drain` only once the mailbox thread has ended. That thread
    waits in `parking`, where its default action can also wait.
    """

    MIN_PRIORITY: ClassVar[int] = MIN_PRIORITY
    MAX_PRIORITY: ClassVar[int] = MAX_PRIORITY

    def __init__(self, mailbox_thread: threading.Thread | None = None) -> None:
        if mailbox_thread is not None:
            require_kind(mailbox_thread, "mailbox_thread", threading.Thread)
        self._owner = mailbox_thread or threading.current_thread()  # never changes; any thread reads it
        # None until a given thread starts; any thread writes it, always the same value.
        self._ident = self._owner.ident
        self._lock = threading.RLock()  # any thread; re-entrant, for run_exclusively; replaced in a forked child
        self.parking: Parking = Parking()  # where the mailbox thread waits; never changes
        self._queue: deque[Mail] = deque()  # guarded by _lock; urgent mail first, the newest first of all
        self.batch: deque[Mail] = deque()  # mailbox thread only; urgent mail first, the oldest first of all
        # Hints for loops that cannot afford the calls of `has_mail`: mail waits if `new_mail or batch`.
        self.new_mail: bool = False  # == bool(_queue); written under _lock, read by any thread without it
        self.new_urgent_mail: bool = False  # _queue has urgent mail; written under _lock, read by any thread without it
        # Written under _lock, read by any thread; OPEN -> QUIESCED -> CLOSED, never back.
        self.state: MailboxState = MailboxState.OPEN

    def is_mailbox_thread(self) -> bool:
        """Whether the caller is the thread that owns the mailbox."""
        ident = self._ident
        if ident is None:
            ident = self._ident = self._owner.ident
        # The ident alone is not enough: a new thread may get the ident of one that has ended.
        return threading.get_ident() == ident and threading.current_thread() is self._owner

    def put(self, mail: Mail) -> None:
        """Append `mail` for the mailbox thread, urgent mail before all other. Thread-safe. It never blocks.

        Once this returns, the mail is either taken or handed back by `drain` or `close`, and never lost.

        Raises:
            MailboxClosedError: the mailbox is quiesced or closed. The mail was not kept.
        """
        if mail.options.is_urgent:
            self._put_urgent(mail)
            return
        # Check and append under one lock: a close() in between would strand the mail.
        with self._lock:
            if self.state is not _OPEN:
                raise MailboxClosedError(self.state, "put mail")
            # Wake first, which may meet the limit of recursion. The mailbox thread waits for the lock, then has mail.
            self.new_mail = True
            if self.parking.duties:
                self.parking.unpark()
            self._queue.append(mail)

    def put_first(self, mail: Mail) -> None:
        """Put `mail` before all mail that isn't urgent. The mail put first last is taken first."""
        if mail.is_urgent:
            self._put_urgent(mail)
        elif self.is_mailbox_thread():
            self._check_put()
            self.batch.insert(_urgent_mails(self.batch), mail)
        else:
            with self._lock:
                self._check_put()
                self.new_mail = True
                self.parking.unpark()
                self._queue.insert(_urgent_mails(self._queue), mail)

    def has_mail(self) -> bool:
        """Whether mail of any priority is waiting."""
        self._check_thread("ask for mail")
        return bool(self.batch) or self.new_mail

    def size(self) -> int:
        """The number of mails in the batch and the queue, as a snapshot. Thread-safe."""
        with self._lock:  # mail that moves between the two would otherwise be counted twice or not at all
            return len(self.batch) + len(self._queue)

    def try_take(self, priority: int, *, ignore_deferrable: bool = False) -> Mail | None:
        """Take the first mail with `priority` or higher, or return None. Never blocks.

        With `ignore_deferrable`, deferrable mail counts with its original priority.

        Raises:
            MailboxStateError: you're not on the mailbox thread.
            MailboxClosedError: the mailbox is closed.
        """
        self._check_thread("take mail")
        self._check_take()
        self.pull(urgent_only=True)
        of = _original_priority if ignore_deferrable else _effective_priority
        mail = _take_first(self.batch, priority, of)
        if mail is not None or not self.new_mail:
            return mail
        with self._lock:
            return self._take_from_queue(priority, of)

    def take(self, priority: int) -> Mail:
        """Take the first mail with `priority` or higher, waiting for one if necessary.

        Raises:
            MailboxStateError: you're not on the mailbox thread.
            MailboxClosedError: the mailbox is closed, even during the wait.
        """
        mail = self.try_take(priority)
        try:
            while mail is None:
                with self._lock:
                    self._check_take()
                    mail = self._take_from_queue(priority)
                    if mail is None:
                        self.parking.announce()
                if mail is None:
                    self.parking.wait()
        finally:
            self.parking.withdraw()  # after a KeyboardInterrupt
        return mail

    def create_batch(self) -> bool:
        """Move the queue to the batch if that's empty, urgent mail in any case, and return whether there's a batch."""
        self._check_thread("create a batch")
        self._check_take()
        self.pull(urgent_only=False)
        return bool(self.batch)

    def try_take_from_batch(self) -> Mail | None:
        """Take the batch's next mail of any priority, or None. Urgent mail in the queue goes first. Never blocks."""
        self._check_thread("take mail")
        self._check_take()
        self.pull(urgent_only=True)
        return self.batch.popleft() if self.batch else None

    def drain(self) -> list[Mail]:
        """Remove and return all mail, the batch and then the queue as stored, without changing the state.

        The thread isn't checked, but no other can call this while the mailbox thread runs: the batch has no lock.
        """
        batch, queue = self.take_all()
        return [*batch, *queue]

    def take_all(self) -> tuple[deque[Mail], deque[Mail]]:
        """Empty the batch and the queue, and return their mail."""
        with self._lock:
            taken = self.batch.copy(), self._queue.copy()
            self.batch.clear()
            self._queue.clear()
            self.new_mail = self.new_urgent_mail = False
            return taken

    def give_back(self, batch: deque[Mail], queue: deque[Mail]) -> bool:
        """Put back the rest after `take_all`. If the mailbox is closed, do nothing and return False."""
        with self._lock:
            if self.state is MailboxState.CLOSED:
                return False
            self.batch.extendleft(reversed(batch))
            since = [self._queue.popleft() for _ in range(_urgent_mails(self._queue))]  # newer than the mail put back
            self._queue.extendleft(reversed(queue))
            self._queue.extendleft(reversed(since))
            self._note_queue()
            return True

    def quiesce(self) -> None:
        """Reject new mail. Waiting mail can still be taken."""
        self._check_thread("quiesce")
        with self._lock:
            if self.state is MailboxState.OPEN:
                self.state = MailboxState.QUIESCED

    def close(self) -> list[Mail]:
        """Reject puts and takes, and return the mail not taken. Closing again returns nothing."""
        self._check_thread("close")
        with self._lock:
            if self.state is MailboxState.CLOSED:
                return []
            left = self.drain()
            self.state = MailboxState.CLOSED
            self.parking.unpark()
            return left

    def run_exclusively(self, action: Callable[[], T]) -> T:
        """Run `action` under the lock, so that checking the state and putting mail are one step."""
        with self._lock:
            return action()

    def after_fork(self, fail: Callable[[], None]) -> None:
        """In a forked child without a mailbox thread, reject mail, and replace a lock that could be held.

        If the mailbox thread itself forked and continues in the child, its loop ends with the error that `fail` raises.
        """
        self._lock = threading.RLock()
        self.parking.after_fork()
        self._queue.appendleft(Mail(fail, MAX_PRIORITY, "end the loop in a forked child", options=MailOptions.URGENT))
        self.new_mail = self.new_urgent_mail = True
        self.state = MailboxState.QUIESCED

    def _put_urgent(self, mail: Mail) -> None:
        batch = self.batch
        if self.is_mailbox_thread() and batch and not batch[0].is_urgent and not self.new_urgent_mail:
            # No lock: the batch belongs to this thread, and neither it nor the queue has older urgent mail.
            self._check_put()
            batch.appendleft(mail)
            return
        with self._lock:
            self._check_put()
            self.new_mail = True
            self.new_urgent_mail = True
            self.parking.unpark()
            self._queue.appendleft(mail)

    def pull(self, *, urgent_only: bool) -> None:
        """Move mail from the queue to the batch, urgent mail first, in the order of arrival."""
        batch = self.batch
        if batch:
            # Finish the urgent mail in the batch first, or urgent mail that came later would overtake it.
            if batch[0].is_urgent or not self.new_urgent_mail:
                return
        elif not self.new_mail or (urgent_only and not self.new_urgent_mail):
            return
        only_urgent = urgent_only and bool(batch)
        with self._lock:
            queue = self._queue
            if not self.new_urgent_mail and not only_urgent:
                batch.extend(queue)
                queue.clear()
            while queue:
                if queue[0].is_urgent:
                    batch.appendleft(queue.popleft())
                elif only_urgent:
                    break
                else:
                    batch.append(queue.popleft())
            self.new_urgent_mail = False
            self.new_mail = bool(queue)

    def _take_from_queue(self, priority: int, of: Callable[[Mail], int] = _effective_priority) -> Mail | None:
        # Urgent mail is stored newest first, but taken in the order of its arrival: look for the oldest.
        mail = _take_oldest_urgent(self._queue, priority, of) or _take_first(self._queue, priority, of)
        if mail is not None:
            self._note_queue()
        return mail

    def _note_queue(self) -> None:
        self.new_mail = bool(self._queue)
        self.new_urgent_mail = self.new_mail and self._queue[0].is_urgent

    def _check_thread(self, action: str) -> None:
        # Until a given thread starts, the thread that prepares it may act for it.
        if not self.is_mailbox_thread() and self._ident is not None:
            raise MailboxStateError(
                f"cannot {action} on thread {threading.current_thread().name}: "
                f"the mailbox belongs to thread {self._owner.name}. Send it a mail instead."
            )

    def _check_put(self) -> None:
        if self.state is not _OPEN:
            raise MailboxClosedError(self.state, "put mail")

    def _check_take(self) -> None:
        if self.state is MailboxState.CLOSED:
            raise MailboxClosedError(self.state, "take mail")


def _urgent_mails(mails: deque[Mail]) -> int:
    """The number of urgent mails, which come first."""
    return sum(1 for _ in itertools.takewhile(lambda mail: mail.is_urgent, mails))


def _take_oldest_urgent(mails: deque[Mail], priority: int, of: Callable[[Mail], int]) -> Mail | None:
    found = None
    for index, mail in enumerate(mails):
        if not mail.is_urgent:
            break
        if of(mail) >= priority:
            found = index
    if found is None:
        return None
    mail = mails[found]
    del mails[found]
    return mail


def _take_first(mails: deque[Mail], priority: int, of: Callable[[Mail], int]) -> Mail | None:
    if not mails:
        return None
    if priority <= MIN_PRIORITY or of(mails[0]) >= priority:
        return mails.popleft()
    for index, mail in enumerate(mails):
        if of(mail) >= priority:
            del mails[index]
            return mail
    return None
