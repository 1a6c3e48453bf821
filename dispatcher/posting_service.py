"""The ways to post to a dispatcher, whether it has one handler thread or several."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Unpack, overload

from dispatcher.dispatching.error_policy import ErrorPolicy
from dispatcher.dispatching.retries import Retries
from dispatcher.dispatching.stopping import StopWait
from dispatcher.dispatching.times import BatchProgress
from dispatcher.event import A, Answered, DispatcherEventHandler, HasType
from dispatcher.interface import ScheduledEvent
from dispatcher.queue.asks import Asks
from dispatcher.queue.inbox import Inbox
from dispatcher.queue.later import post_later, post_nowait
from dispatcher.queue.rules import RuleOptions, rule_of
from dispatcher.queue.schedule import Schedule
from dispatcher.scopes import HasScopes
from dispatcher.service import Service
from dispatcher.util.foreign import is_member, type_of
from dispatcher.util.functions import takes_options

if TYPE_CHECKING:
    from dispatcher.config import AtExit
    from dispatcher.journal.writer import JournalWriter


@dataclass(kw_only=True, slots=True)
class Core:
    """What this package uses of a dispatcher: its group, `aio`, metrics, the journal's commands. Any thread.

    Its fields never change, but for the group's.
    """

    queue: Inbox
    asks: Asks
    schedule: Schedule
    retries: Retries
    progress: BatchProgress
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


def core_of(dispatcher: PostingService, event: Any) -> Core:
    """The core of the dispatcher, or of its partition, that handles the event."""
    return dispatcher._core_of(event)


class PostingService(HasScopes, Service):
    """The posting methods of AsyncDispatcher and MultiDispatcher. You can call them from any thread."""

    _event_handler: DispatcherEventHandler  # set by the constructor; never changes

    @property
    def event_handler(self) -> DispatcherEventHandler:
        """Post as in Hadoop: `event_handler.handle(event)` is `post(event)`. Thread-safe."""
        return self._event_handler

    @abstractmethod
    def _core_of(self, event: Any) -> Core:
        """The core of the dispatcher that handles the event."""

    def post_nowait(self, event: HasType[Enum]) -> bool:
        """Post as `post` does, but wait neither for room nor for the disk.

        In write-ahead mode, True means the event is on its way into the journal. A crash before it gets there loses it,
        and if the disk fails, the event is rejected and counted in `stats().rejected`. If you need to know, use
        `post_later`. Errors of `coalesce_by` are raised as they are.

        Raises:
            QueueFullError: the queue is full and its policy is `block`, or 4096 posts are on their way into the
                journal. The event was not accepted.
            EventNotDeclaredError, JournalError: the journal can't store the event.
        """
        queue = self._core_of(event).queue
        if not queue.write_ahead.keeps(event):
            return queue.post_if_room(event)
        return post_nowait(queue, event)

    def post_later(self, event: HasType[Enum]) -> Future[bool]:
        """Post without waiting for the disk, and return a future whose result is True once the event is accepted.

        In write-ahead mode, an accepted event is in the journal and, with durability `sync`, on the disk. Concurrent
        posts share a write and an fsync. In other modes, the future is done on return. Posts of one thread, through
        this and `post`, are handled in order.

        Blocks while a bounded queue is full, as its policy says. Each post in flight takes up room. If 4096 are in
        flight, it blocks until this one is done. `stop` and `await_drained` wait for posts in flight.

        You can `cancel()` the future to withdraw the event until the journal's thread begins to write it. From then on,
        `cancel()` returns False. Callbacks of the future run on that thread, so keep them short, and don't wait there
        for a post.

        The future's error is the one that `coalesce_by` raised, or one of:
            QueueFullError: the post would wait for room, and the dispatcher hasn't been started.
            EventRefusedError: `post` would return False, because of a full queue, a stop, or a disk failure. After a
                disk failure, the event can still be there at the next start.
            EventNotDeclaredError, JournalError: the journal can't store the event.

        Raises:
            ForkedProcessError: this process is a fork of the one that created the dispatcher.
        """
        return post_later(self._core_of(event).queue, event)

    @overload
    def ask(self, event: Answered[A]) -> Future[A]: ...
    @overload
    def ask(self, event: HasType[Enum]) -> Future[Any]: ...
    def ask(self, event: Any) -> Future[Any]:
        """Post an event, and return a future for what its handler returns or raises. A failed event counts as usual.

        If the event isn't handled to the end, the future's error is an EventRefusedError or an EventDiscardedError: for
        a full queue, a stop, or a newer event with its key. The future is done once the dispatcher has stopped, even if
        a handler hangs. If more than 100 are left then, the rest follow shortly. In write-ahead mode, it's done once
        the event's row is as durable as a post.

        If handling hasn't begun, `cancel()` withdraws the event, and so does a timeout of `result` or `exception`. The
        event then counts as discarded at once, and gives back its room in a bounded queue. Callbacks of the future run
        on the handler thread, so keep them short.

        Blocks while a bounded queue is full, as its policy says. You can call this on any thread, but not in a handler
        of this dispatcher, since the event would wait for that. On an event loop, use `await aio.ask(dispatcher,
        event)`.

        Raises:
            AskError: the class of the event has several handlers, or the caller is a handler that would wait for
                itself. `result` and `exception` raise it where the wait would never end.
            QueueFullError, EventNotDeclaredError, JournalError, ForkedProcessError: as `post`.
        """
        return self._core_of(event).asks.ask(event)

    def post_after(self, seconds: float, event: HasType[Enum], *, key: str = "") -> ScheduledEvent:
        """Post an event after `seconds` on the monotonic clock. Any thread can call this, and it doesn't wait for room.

        The handler thread posts the event when it's due, between two events. A full queue can then reject it, as any
        other. Under `block` it waits its turn without holding anything up. A stop still posts what falls due while it
        drains, and only reports the rest. In write-ahead mode the event is in the journal on return, as durable as with
        `post`. After a crash it's posted at its time, or at once if it's late.

        A `key` holds one scheduled post of the dispatcher, the newest: this one replaces what was scheduled under it
        and hasn't fired, also by an earlier run. See `scheduled` and `cancel`.

        Raises:
            ValueError: `seconds` is negative or more than a century. TypeError: `key` isn't a str.
            EventRefusedError: the dispatcher is stopping or has stopped, or the journal has failed.
            EventNotDeclaredError, JournalError, ForkedProcessError: as `post`.
        """
        return self._core_of(event).schedule.after(seconds, event, key)

    def post_at(self, unix_s: float, event: HasType[Enum], *, key: str = "") -> ScheduledEvent:
        """Post as `post_after` does, at a Unix time in seconds. If the wall clock is set, the post follows it."""
        return self._core_of(event).schedule.at(unix_s, event, key)

    @takes_options(RuleOptions, rule_of)
    def post_every(
        self,
        seconds: float | None = None,
        event: HasType[Enum] | Callable[[], HasType[Enum]] | None = None,
        *,
        key: str = "",
        **options: Unpack[RuleOptions],
    ) -> ScheduledEvent:
        """Post an event periodically, or at the times of a cron expression.

        With `seconds`, the first is after `first` seconds or, by default, after one period. The times are whole periods
        apart, even if a firing is late. `jitter` delays each firing by up to that fraction of the period.

        `cron` has five fields, such as `0 7 * * 1-5` for 7:00 on weekdays, in the time zone `tz`. Where clocks go
        forward, a time of day that's left out moves to that moment. Where they go back, the first of two counts. If the
        minute or the hour begins with `*`, it follows the time that passes instead.

        If you pass a factory as `event`, it makes a new event each time, on the handler thread, between two events. On
        another clock, such as a ManualClock, it runs on that clock's thread. A firing is skipped and counted while the
        event of the last one is still queued, unless `misfire` is `all`.

        `misfire` says what happens to times that have passed, after a stop, a crash or a stall: `once` posts one event
        for all of them, `all` one for each of the last 100, and `skip` none. No time is posted that's more than
        `misfire_grace_s` late: by default 1 s for `skip`, and no limit otherwise.

        A `key` holds one scheduled post, the newest. With the same seconds, or the same `cron` and `tz`, a newer one
        goes on with the times of the older one; otherwise it starts over. In write-ahead mode, the journal keeps the
        event and its rule: later runs go on posting it, until you cancel or replace it. Only a factory has to be passed
        again, with the same key. No time is posted twice. If the wall clock was ahead and is set back, it waits for the
        next time from then on, one period at most.

        Raises:
            ValueError: an argument is out of its range, or isn't a cron expression or a time zone, or two exclude each
                other.
            TypeError: `event` is neither an event nor a callable, or there is neither `seconds` nor `cron`.
            DispatcherError: `cron` needs the extra of this name, which isn't installed.
            EventRefusedError, EventNotDeclaredError, JournalError, ForkedProcessError: as `post_after`.
        """
        rule = rule_of(seconds=seconds, **options)
        is_event = is_member(type_of(event))
        core = self._core_of(event)  # of a factory, some partition
        place = None if is_event else (lambda event: self._core_of(event).schedule)
        return core.schedule.every(rule, event, first_s=options.get("first"), key=key, place=place)

    def scheduled(self, prefix: str = "") -> Mapping[str, ScheduledEvent]:
        """Return what is scheduled under keys that begin with `prefix`, by key, soonest first. Thread-safe.

        In write-ahead mode that includes what earlier runs have scheduled.

        Raises:
            JournalError: a MultiDispatcher in write-ahead mode hasn't been started.
        """
        return self._core_of(None).schedule.scheduled(prefix)

    def cancel(self, key: str) -> bool:
        """Cancel the post scheduled under `key`, and return whether there was one. Thread-safe.

        In write-ahead mode, the cancellation is in the journal on return, as durable as a post. It also ends a
        `post_every` of an earlier run.

        Raises:
            TypeError: `key` isn't a str.
            JournalError: the journal can't be written, so the next start can post the event; or a MultiDispatcher in
                write-ahead mode hasn't been started.
            ForkedProcessError: as `post`.
        """
        return self._core_of(None).schedule.cancel_key(key)
