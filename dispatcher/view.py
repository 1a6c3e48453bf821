"""A view of a dispatcher, for health, metrics and the ops API.

Every method is for any thread. None takes a lock that a handler may hold, or waits until a handler returns, so a view
answers while a handler hangs. Numbers read one after another may be from slightly different moments.
"""

from __future__ import annotations

import os
import threading
import traceback
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Final, Literal

from dispatcher.dispatching.early_signs import Sign
from dispatcher.dispatching.monitor import MAIL_TYPE, current_run
from dispatcher.dispatching.recent_failures import FailureGroup, FailureKey, FailureRecord
from dispatcher.dispatching.retries import RetryingEvent
from dispatcher.queue.contents import SAMPLE, QueueCounts, sums
from dispatcher.queue.flags import DRAINING, STOPPED
from dispatcher.service import Service, ServiceState
from dispatcher.stats import DispatcherStats, take_stats
from dispatcher.util.foreign import class_name, entity_of, text_of, type_name
from dispatcher.util.frames import stack_of
from dispatcher.util.registry import Numbers, Registry

if TYPE_CHECKING:
    from dispatcher.config import DispatcherConfig, JournalConfig
    from dispatcher.dispatching.batches import BatchDispatching
    from dispatcher.dispatching.coroutines import Coroutines
    from dispatcher.dispatching.lane_counts import LaneNow
    from dispatcher.dispatching.timing import Timing
    from dispatcher.errors import JournalError
    from dispatcher.interface import ScheduledEvent
    from dispatcher.journal.format.outstanding import Loss
    from dispatcher.letter_target import LetterTarget
    from dispatcher.mailbox.processor import MailboxProcessor

_LOOK_S: Final = 0.005
"""A handler thread that has not moved for so long is in a handler."""

__all__ = [
    "DispatcherView",
    "FailureGroup",
    "FailureKey",
    "FailureRecord",
    "QueueCounts",
    "RetryingEvent",
    "RunningNow",
    "TypeNumbers",
    "dispatchers",
]


@dataclass(frozen=True, slots=True)
class RunningNow:
    """What the handler thread is doing."""

    kind: Literal["event", "mail"]
    event_class: str
    """(mail) for a mail."""
    event_type: str
    """Empty for a mail."""
    entity: str | None
    description: str
    """Of the mail; empty for an event."""
    since: float
    """Unix seconds; in a flood of quick events the start of their batch."""
    running_s: float
    thread_id: int | None


@dataclass(frozen=True, slots=True)
class TypeNumbers:
    """The numbers of one event type since the start."""

    event_class: str
    event_type: str
    handled: int
    failed: int
    slow: int
    """Runs longer than `handler_warn_after_s`."""
    timed: int
    """Events timed individually in their handlers; `handling_s` is the sum of their times."""
    handling_s: float
    queue_timed: int
    """Events timed in the queue; `queue_s` is the sum of their times."""
    queue_s: float


class DispatcherView:
    """A view of one dispatcher. Only `cancel` and `stop` change it. You can use it from any thread."""

    def __init__(
        self,
        dispatcher: Service,
        config: DispatcherConfig,
        thread: threading.Thread,
        dispatching: BatchDispatching,
        processor: MailboxProcessor,
        timing: Timing,
        coroutines: Coroutines,
    ) -> None:
        self._dispatcher = dispatcher  # never changes, like all fields that do not say otherwise
        self._thread = thread
        self._dispatching = dispatching
        self._processor = processor
        self._schedule = timing.schedule
        self._coroutines = coroutines
        self._queue = dispatching.queue
        self._drain = dispatching.drain
        self._journal = journal = dispatching.journal
        self.queue_policy: str = config.queue_full_policy
        """How a post to a full queue behaves: block, reject or drop_oldest."""
        self.queue_capacity: int | None = dispatching.queue.room.capacity
        """Maximum events in the queue, or None."""
        self.handler_warn_after_s: float | None = config.handler_warn_after_s
        """A run longer than this many seconds is slow. None disables it."""
        self.liveness_stuck_after_s: float | None = config.liveness_stuck_after_s
        """A run longer than this many seconds calls for a restart of the process. None disables it."""
        self.journal_path: Path | None = journal.path if journal is not None else None
        self.journal_config: JournalConfig | None = journal.config if journal is not None else None
        self.kind: str = class_name(dispatcher)
        """The name of the dispatcher's class."""
        self.group: Service | None = None
        """The dispatcher of which this one is a partition, or None. Set before the start."""
        self._namesakes = _Namesakes.of(dispatcher.name)
        # When the dispatcher ended, in the order of `_steps`; 0: it has not.
        self._ended = 0  # the thread that ends it writes, any reads
        _views.add(self)

    @property
    def name(self) -> str:
        """The dispatcher's name."""
        return self._dispatcher.name

    @property
    def state(self) -> ServiceState:
        """The dispatcher's state."""
        return self._dispatcher.state

    @property
    def failure_cause(self) -> BaseException | None:
        """The error that made the dispatcher fail, or None."""
        return self._dispatcher.failure_cause

    def stats(self) -> DispatcherStats:
        """Return a snapshot of all counts and times.

        The handler thread takes the snapshot between two events. While that thread waits, or is in a handler, the
        caller takes it.
        """
        run = current_run(self._dispatching.progress, self._processor)
        is_failed = self.failure_cause is not None

        def take() -> DispatcherStats:
            return take_stats(self._dispatching, self._processor, self._schedule, run=run, is_failed=is_failed)

        if not self._thread.is_alive() or self._drain.finished.is_set() or self._thread is threading.current_thread():
            return take()
        before = self._moves()
        if not self._dispatching.is_at_work():
            stats = take()
            if self._moves() == before and not self._dispatching.is_at_work():  # it has waited all the while
                return stats
        taken: list[DispatcherStats] = []  # the handler thread appends
        is_taken = threading.Lock()  # the handler thread releases it afterwards
        is_taken.acquire()

        def answer() -> None:
            """Mail, which does not count as such."""
            self._processor.mails_run -= 1
            try:
                taken.append(take())
            finally:
                is_taken.release()

        self._processor.send_control_mail_if_open(answer, "take a snapshot")
        while not is_taken.acquire(timeout=_LOOK_S):
            if (moved := self._moves()) == before:  # it is in a handler, so nothing moves but posts
                stats = take()
                if (moved := self._moves()) == before:  # and still is
                    return stats
            before = moved
        return taken[0]

    def _moves(self) -> tuple[int, ...]:
        """How far the handler thread has got. Any thread."""
        dispatching, processor = self._dispatching, self._processor
        progress = dispatching.progress
        return progress.begun, progress.done, progress.since_ns, processor.mails_run, dispatching.ended()

    def scheduled(self, limit: int = 10, prefix: str = "") -> Sequence[ScheduledEvent]:
        """List the upcoming posts of `post_after`, `post_at` and `post_every`, soonest first.

        `prefix`: only those whose keys begin with it.
        """
        return self._schedule.first(limit, prefix)

    def cancel(self, key: str) -> bool:
        """Cancel what is scheduled under `key`, as the dispatcher's `cancel` does. Waits for the disk.

        Raises:
            JournalError: it won't fire in this run, but can after the next start.
        """
        return self._schedule.cancel_key(key)

    def retrying(self, limit: int = 10) -> list[RetryingEvent]:
        """List the events that have failed and wait for their next attempt, soonest first."""
        return self._dispatching.errors.retries.waiting(limit)

    def running(self) -> RunningNow | None:
        """Return the handler thread's current event or mail, or None while it waits or is between two."""
        run = current_run(self._dispatching.progress, self._processor)
        if run is None:
            return None
        running_s = run.seconds()
        event_class, event_type = run.type_labels()
        return RunningNow(
            kind=run.kind,
            event_class=event_class,
            event_type=event_type,
            entity=entity_of(run.subject) if run.kind == "event" else None,
            description=run.what() if run.kind == "mail" else "",
            since=time() - running_s,
            running_s=running_s,
            thread_id=self._thread.ident,
        )

    def running_s(self) -> float:
        """Return how long the handler thread has been running its event or mail, in seconds, or 0.0 if it runs none.

        Unlike `running`, this reads nothing that belongs to the event.
        """
        run = current_run(self._dispatching.progress, self._processor)
        return run.seconds() if run is not None else 0.0

    def stack(self) -> list[traceback.FrameSummary]:
        """Return the frames of the handler thread, if any, outermost first. Source lines are read lazily."""
        return stack_of(self._thread.ident) or [] if self._thread.is_alive() else []

    def types(self) -> list[TypeNumbers]:
        """Return the numbers of every event type handled or failed so far."""
        stats = self.stats()
        return [
            TypeNumbers(
                *key,
                handled=stats.handled_by_type.get(key, 0),
                failed=stats.failed_by_type.get(key, 0),
                slow=slow,
                timed=handling[0],
                handling_s=handling[1],
                queue_timed=queueing[0],
                queue_s=queueing[1],
            )
            for key, slow in stats.slow_by_type.items()
            if key != MAIL_TYPE
            for handling in [stats.handling_by_type.get(key, (0, 0.0))]
            for queueing in [stats.queue_time_by_type.get(key, (0, 0.0))]
        ]

    def failures(self, after: int = 0) -> list[FailureRecord]:
        """Return the last 100 failures, newest first: those whose number is greater than `after`.

        Reads the source files of their frames, unless they're cached.
        """
        return self._dispatching.errors.failures.newest_first(after)

    def last_failure(self) -> int:
        """Return the number of the last failure, or 0. It reads no files."""
        return self._dispatching.errors.failures.last_number()

    def failure_groups(self) -> list[FailureGroup]:
        """Return the failures grouped by event type and error class, of up to 100 groups, the last to fail first.

        Attempts followed by another count too. Reads the source files of their frames, unless they're cached.
        """
        return self._dispatching.errors.failures.groups()

    def failure_counts(self) -> dict[FailureKey, int]:
        """Return the number of failures of each of these groups, attempts included."""
        return self._dispatching.errors.failures.counts()

    def lanes(self, limit: int = 3) -> list[LaneNow]:
        """Return what each `async def` handler has in hand, with its `limit` keys with the most waiting events."""
        return self._coroutines.lanes(limit)

    def newest_queued(self, last: int, most: int) -> QueueCounts[Enum]:
        """Count the `last` queued events by type. If that's more than `most`, count as many random ones of them."""
        return QueueCounts(sums(self._queue.contents.newest(last, most)), last > most)

    def queue_contents(self, sample: int = SAMPLE) -> QueueCounts[Enum]:
        """Count the queued events by type, except unhashable types. More than `sample` are sampled."""
        counted, approximate = self._queue.contents.by_type(sample)
        return QueueCounts(sums(counted), approximate)

    def queue_entities(self, limit: int = 20, sample: int = SAMPLE) -> QueueCounts[str]:
        """Count as `queue_contents` does, by `entity`: the `limit` entities with the most events, largest first."""
        return self._queue.contents.by_entity(limit, sample)

    def oldest_wait_s(self) -> float | None:
        """Return how long the oldest queued event has waited, in seconds, or None if the queue is empty.

        Exact if posts note their time (`measure_times: all`, or a journal), otherwise up to a second too low.
        """
        return self._dispatching.backlog.oldest_wait_s()

    def last_rejected(self) -> dict[str, tuple[str, str]]:
        """Return the class and name of the type of the last event rejected for each reason, as far as known."""
        found = self._queue.last_rejected.copy()
        return {reason: (class_name(event_type), type_name(event_type)) for reason, event_type in found.items()}

    @property
    def dead_letters(self) -> LetterTarget | None:
        """None if the dispatcher keeps no dead letters."""
        return self._dispatching.errors.dead_letters

    def is_starting(self) -> bool:
        """Whether the dispatcher isn't started yet."""
        return self._dispatcher.is_starting()

    def is_draining(self) -> bool:
        """Whether a stop is waiting for the queued events to be handled."""
        return self._queue.phase in (DRAINING, STOPPED) and not self._drain.finished.is_set()

    def is_drained(self) -> bool:
        """Whether the queue is empty and no event is being handled."""
        return self._drain.is_drained()

    def is_thread_alive(self) -> bool:
        """Whether the handler thread has been started and hasn't ended."""
        return self._thread.is_alive()

    def full_since_s(self) -> float | None:
        """Return for how many seconds a bounded queue has been full, up to a second too low, or None if it isn't."""
        return self._dispatching.backlog.full_since_s()

    def signs(self) -> tuple[Sign, ...]:
        """Return the signs that it is getting into trouble. They are up to a second old."""
        return self._dispatching.signs.present

    def journal_is_failed(self) -> bool:
        """Whether a write to the journal failed, which ended the journal."""
        return self._journal is not None and self._journal.is_failed

    def journal_failure(self) -> JournalError | None:
        """Return the error that ended the journal, if one did."""
        return self._journal.failure if self._journal is not None else None

    def stop(self) -> None:
        """Stop the dispatcher, or the whole of which it is a partition, as their `stop` does."""
        (self.group or self._dispatcher).stop()

    def note_start(self) -> None:
        """Note the start. Called by the starting thread."""
        self._namesakes.last_start = _steps.next()

    def note_end(self) -> None:
        """Note the end. Called by the handler thread, or by the stopping thread if that never ran."""
        self._ended = _steps.next()

    def was_replaced(self) -> bool:
        """Whether the dispatcher has ended and another one of its name has been started since."""
        return 0 < self._ended < self._namesakes.last_start

    def journal_losses(self) -> tuple[Loss, ...]:
        """Return the accepted events of an earlier run lost with a segment of the journal, as found by the start."""
        return self._journal.losses if self._journal is not None else ()

    def forget(self) -> None:
        """Leave `dispatchers()`. For a forked child, which has no handler thread."""
        _views.discard(self)

    def __repr__(self) -> str:
        return f"<DispatcherView of {text_of(self._dispatcher)}>"


class _Namesakes:
    """The dispatchers of one name. Their views keep it alive, so that a replacement may come and go."""

    __slots__ = ("__weakref__", "last_start")

    def __init__(self) -> None:
        self.last_start = 0  # when one was started last, in the order of `_steps`; each starting thread writes

    @staticmethod
    def of(name: str) -> _Namesakes:
        """Those of this name. Any thread."""
        with _lock:
            return _namesakes.setdefault(name, _Namesakes())


_lock = threading.Lock()  # leaf lock; replaced in a forked child
_namesakes: weakref.WeakValueDictionary[str, _Namesakes] = weakref.WeakValueDictionary()  # changed under _lock
_steps: Final = Numbers()  # of starts and ends of dispatchers

_views: Registry[DispatcherView] = Registry()
"""The views of all dispatchers. A dispatcher keeps its view alive."""


def dispatchers() -> list[DispatcherView]:
    """Return every dispatcher of the process still referred to, by name, in any state. Thread-safe."""
    return sorted(_views.all(), key=lambda view: view.name)


def _after_fork() -> None:
    """In a forked child, which has no thread that could release the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
