"""The ways to post to a dispatcher, whether it has one handler thread or several."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dispatcher.config import AtExit
from dispatcher.dispatching.error_policy import ErrorPolicy
from dispatcher.dispatching.stopping import StopWait
from dispatcher.dispatching.times import Progress
from dispatcher.errors import EventRefusedError
from dispatcher.event import DispatcherEventHandler, HasType
from dispatcher.journal.writer import JournalWriter
from dispatcher.queue.asking import Asks
from dispatcher.queue.later import post_later
from dispatcher.queue.posting import EventQueue
from dispatcher.queue.schedule import Schedule, Scheduled
from dispatcher.service import Service
from dispatcher.util.foreign import is_member, type_of


@dataclass(kw_only=True, slots=True)
class Core:
    """What this package uses of a dispatcher: its group, `aio`, metrics, the journal's commands. Any thread.

    Its fields never change, but for the group's.
    """

    queue: EventQueue
    asks: Asks
    schedule: Schedule
    progress: Progress
    """How far the handler thread has got."""
    journal: JournalWriter | None
    errors: ErrorPolicy
    stop_wait: StopWait
    at_exit: AtExit
    is_handling: Callable[[], bool]
    """Whether the caller is a handler of this dispatcher: on its thread, or in a coroutine that has not ended."""
    when_drained: Callable[[], Future[bool]]
    """A future: True once drained, False if the dispatcher ends first. Does not block.

    Raises ForkedProcessError: the handler thread is in the parent process.
    """
    shut_for_stop: Callable[[], bool]
    """Refuse posts from outside; returns whether the handler thread has run, and so has to end. Does not wait."""
    siblings: tuple[Core, ...] = ()
    """Those of the group, this one among them; set by the group before the start."""
    group: Service | None = None
    """Set by the group before the start."""

    def is_inside(self) -> bool:
        """Whether the caller is a handler of this dispatcher or of a sibling that drains with it."""
        return any(each.is_handling() for each in self.siblings or (self,))


class PostingService(Service):
    """What AsyncDispatcher and MultiDispatcher post with. Any thread."""

    _event_handler: DispatcherEventHandler  # set by the constructor; never changes

    @property
    def event_handler(self) -> DispatcherEventHandler:
        """Hadoop's way to post: `event_handler.handle(event)` is `post(event)`. Any thread."""
        return self._event_handler

    @abstractmethod
    def core_of(self, event: Any) -> Core:
        """The core of the dispatcher that handles the event. Private to the package."""

    def post_nowait(self, event: HasType[Enum]) -> bool:
        """As `post`, for a thread that must not wait, neither for room nor for the disk.

        In write-ahead mode, True says that the event is on its way into the journal: a crash before it is there loses
        it, and a disk that fails refuses it, which `stats().rejected` counts. Use `post_later` to learn of that.

        Raises:
            QueueFullError: the queue is full and its policy is `block`, or 4096 posts are on their way into the
                journal. The event was not accepted.
            EventNotDeclaredError, JournalError: the event cannot be kept in the journal.
            What `coalesce_by` raised.
        """
        queue = self.core_of(event).queue
        if not queue.write_ahead.is_on:
            return queue.post_if_room(event)
        posted = post_later(queue, event, wait=False)
        try:
            return posted.result() if posted.done() else not queue.write_ahead.is_failed()
        except EventRefusedError:
            return False
        finally:
            del posted  # it refers to the error, whose traceback leads here and to the event

    def post_later(self, event: HasType[Enum]) -> Future[bool]:
        """Post without waiting for the disk: the future's result is True once the event is accepted.

        In write-ahead mode, the event is in the journal then, and under `sync` on the disk; posts that are under way at
        the same time share a write and an fsync. Otherwise the future is done on return. Posts of a thread, by this and
        by `post`, are handled in their order.

        Blocks while a bounded queue is full, as its policy says; each post under way takes up room. If 4096 are under
        way, blocks until this one is done. `stop` and `await_drained` wait for those under way.

        `cancel()` of the future withdraws the event as long as the journal's thread has not begun to write it, and
        returns False from then on. Callbacks of the future run on that thread: they must be short, and must not wait
        for a post.

        The future's error is one of:
            QueueFullError: it would wait for room, and the dispatcher is not started.
            EventRefusedError: what `post` returns False for: a full queue, a stop, or a disk that failed. After an
                error of the disk, the event may be there after the next start.
            EventNotDeclaredError, JournalError: the event cannot be kept in the journal.
            What `coalesce_by` raised.

        Raises:
            ForkedProcessError: this process is a fork of the one that made the dispatcher.
        """
        return post_later(self.core_of(event).queue, event)

    def ask(self, event: HasType[Enum]) -> Future[Any]:
        """Post an event, and get a future for what its handler returns or raises. An event that fails counts as ever.

        The future's error, if the event is not handled to the end, is an EventRefusedError or an EventDiscardedError:
        a queue that is full, a stop, a newer event of its key. The future never stays undone once the dispatcher has
        stopped, even if a handler hangs. In write-ahead mode it is done once the event's row is as durable as a post.

        `cancel()` withdraws the event if its handling has not begun, and so does a timeout of `result` or `exception`;
        then the event counts as discarded. Callbacks of the future run on the handler thread: they must be short.

        Blocks while a bounded queue is full, as its policy says. Any thread, but not a handler of this dispatcher, for
        which the event would wait; on an event loop, use `await aio.ask(dispatcher, event)`.

        Raises:
            AskError: the class of the event has several handlers, or the caller is a handler that would wait for
                itself. `result` and `exception` raise it where the wait would never end.
            QueueFullError, EventNotDeclaredError, JournalError, ForkedProcessError: as `post`.
        """
        return self.core_of(event).asks.ask(event)

    def post_after(self, seconds: float, event: HasType[Enum]) -> Scheduled:
        """Post an event in that many seconds of the monotonic clock. Any thread; does not wait for room.

        It is posted as by any producer: a full queue may refuse it, and under `block` it waits for its turn, holding
        nothing up. A stop posts what falls due while it drains, and leaves and reports the rest. In write-ahead mode
        the event is in the journal on return, as durable as by `post`: after a crash it is posted at its time, or at
        once if that has passed.

        Raises:
            ValueError: `seconds` is negative or more than a century.
            EventRefusedError: the dispatcher stops or has stopped, or the journal has failed.
            EventNotDeclaredError, JournalError, ForkedProcessError: as `post`.
        """
        return self.core_of(event).schedule.after(seconds, event)

    def post_at(self, unix_s: float, event: HasType[Enum]) -> Scheduled:
        """As `post_after`, at a time of the wall clock in Unix seconds. If that clock is set, the post follows it."""
        return self.core_of(event).schedule.at(unix_s, event)

    def post_every(
        self,
        seconds: float,
        event_or_factory: HasType[Enum] | Callable[[], HasType[Enum]],
        *,
        first: float | None = None,
        jitter: float = 0.0,
        key: str = "",
    ) -> Scheduled:
        """Post an event again and again, the first time in `first` seconds (None: after one period).

        A factory, called on the timers' thread, makes a new event each time. The times are whole periods apart,
        whenever they are kept; each firing comes up to the part `jitter` of the period later. While the event of the
        last firing waits in the queue, the next one is left out and counted as skipped, like one a whole period late.

        With a `key`, the rhythm lasts over restarts in write-ahead mode: call this with the same key after a restart,
        and it goes on from the time that was due next, and posts once for those it has missed. No time is posted twice.

        Raises:
            ValueError: `seconds` is less than 0.001, `first` is negative, `jitter` is not between 0 and 1, or `key`
                is in use. TypeError: neither an event nor a callable. Otherwise as `post_after`.
        """
        is_event = is_member(type_of(event_or_factory))
        core = self.core_of(event_or_factory)  # of a factory, some partition
        place = None if is_event else (lambda event: self.core_of(event).schedule)
        return core.schedule.every(seconds, event_or_factory, first_s=first, jitter=jitter, key=key, place=place)
