"""What a dispatcher runs and since when, how long events wait, and the checks that log what takes too long.

The checks run on the timers' thread, so they go on when no producer posts and the handler hangs. They block neither
producers nor the handler thread: work that takes longer than a log line runs on a thread of its own.

While a handler yields to mail, its event remains the run.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from dispatcher.dispatching.early_signs import EarlySigns
from dispatcher.dispatching.times import BatchProgress
from dispatcher.mailbox.mail import Mail
from dispatcher.mailbox.processor import MailboxProcessor
from dispatcher.mailbox.system_timers import SystemProcessingTimeService
from dispatcher.mailbox.time_service import ProcessingTimeService
from dispatcher.queue.entry import enqueued_ns_of
from dispatcher.queue.inbox import Inbox
from dispatcher.routes import Route
from dispatcher.util.figures import plain_seconds
from dispatcher.util.foreign import class_name, cut_text, fields_of, kind_of, tell_of, text_of, type_name, type_of
from dispatcher.util.frames import stack_of
from dispatcher.util.log_throttle import LogThrottle
from dispatcher.util.registry import each_of
from dispatcher.util.threads import start_or_postpone, try_to_start

if TYPE_CHECKING:
    from dispatcher.config import DispatcherConfig

log: logging.Logger = logging.getLogger("dispatcher.async_dispatcher")

MAIL_TYPE: Final = ("(mail)", "")
"""The event class and event type under which mail is counted."""
_NEVER_NS: Final = 1 << 62
"""Longer than any run."""
SIZE_STEP: Final = 1000
"""Events between two log lines of the queue's size; also the remaining capacity below which it is low."""
_WARN_EVERY_NS: Final = 30_000_000_000
_SIZE_EVERY_NS: Final = 1_000_000_000
_CHECK_EVERY_MS: Final = 1000
_MOST_CHECKS: Final = 1000
"""Checks that a Backlog keeps. Beyond that number it forgets every second one."""
_MOST_LOOKED_AT: Final = 1000
_NAMES: Final = {"event": "a handler", "mail": "a mail"}


@dataclass(frozen=True, slots=True)
class Run:
    """One run. `subject` is the event or the Mail; `since_ns` is by perf_counter_ns, in a flood of the batch."""

    kind: Literal["event", "mail"]
    subject: Any
    since_ns: int

    def seconds(self) -> float:
        """How long it has run."""
        return max(0, perf_counter_ns() - self.since_ns) / 1e9

    def type_labels(self) -> tuple[str, str]:
        """The class and name of the event's type; `MAIL_TYPE` for a mail."""
        if self.kind == "mail":
            return MAIL_TYPE
        event_type = type_of(self.subject)
        return class_name(event_type), type_name(event_type)

    def fields(self, dispatcher: str, seconds: float) -> dict[str, Any]:
        """Those of a log record about the run."""
        about = {"dispatcher": dispatcher} if self.kind == "mail" else fields_of(dispatcher, self.subject)
        return {**about, "seconds": seconds}

    def what(self) -> str:
        """The event, or the mail's description, as text."""
        return mail_text(self.subject) if self.kind == "mail" else text_of(self.subject)


def mail_text(mail: Mail) -> str:
    """A mail's description; raises nothing."""
    return cut_text(lambda: mail.description)


def current_run(progress: BatchProgress, processor: MailboxProcessor) -> Run | None:
    """What the handler thread is running; None: it waits, or is between two runs. Any thread."""
    running = processor.running()
    if running is not None:
        return Run("mail", *running)
    since_ns, event = progress.since_ns, progress.event()
    return Run("event", event, since_ns) if since_ns and event is not None else None


class SlowRuns:
    """Runs longer than a limit (None: no run is). The handler thread reports them when they end.

    A run that was logged while it ran is logged again, with its duration, when it has ended: by the handler thread or
    by the thread that logged it, whichever comes later.
    """

    def __init__(self, name: str, limit_s: float | None) -> None:
        self._name = name
        self.limit_ns: Final = _NEVER_NS if limit_s is None else int(limit_s * 1e9)
        # Starts of runs that were logged and have not ended; any thread adds, looks and removes, each with one call.
        self._announced: deque[int] = deque(maxlen=4)
        # The start, duration, text and fields of the last slow run; the handler thread replaces it whole.
        self._ended: tuple[int, int, str, dict[str, Any]] = (0, 0, "", {})

    def event_ended(self, route: Route, event: Any, since_ns: int, ended_ns: int) -> None:
        """The run of an event that took longer than the limit has ended: count it. Handler thread."""
        route.slow += 1
        self._end(Run("event", event, since_ns), ended_ns)

    def mail_ended(self, mail: Mail, since_ns: int, ended_ns: int) -> None:
        """The run of a mail that took longer than the limit has ended; the mailbox counts it. Handler thread."""
        self._end(Run("mail", mail, since_ns), ended_ns)

    def announced(self, since_ns: int) -> None:
        """The run that began at `since_ns` was logged while it ran. The timers' thread."""
        self._announced.append(since_ns)
        self._log_end()

    def _end(self, run: Run, ended_ns: int) -> None:
        took_ns = ended_ns - run.since_ns
        text = f"{_NAMES[run.kind]} has ended: {run.what()}"
        self._ended = (run.since_ns, took_ns, text, run.fields(self._name, took_ns / 1e9))
        self._log_end()

    def _log_end(self) -> None:
        """Log the end of a run that was announced and has ended.

        handler thread    `_ended` = the run, then looks at `_announced`
        timers' thread    `_announced` += the run, then looks at `_ended`

        At least one of them finds both; `remove` lets only one log.
        """
        since_ns, took_ns, what, fields = self._ended
        if since_ns in self._announced:
            try:
                self._announced.remove(since_ns)
            except ValueError:  # the other thread was faster
                return
            tell_of(log, logging.WARNING, self._name, "%s took %s", what, plain_seconds(took_ns / 1e9), **fields)


class Backlog:
    """How long the oldest queued event has waited, and how long a bounded queue has been full.

    Most posts note no time, so both are estimated from checks. A check notes how many events had been queued by then.
    An event that is still queued and among those has waited since that check, or longer. One thread calls `check`, any
    thread the other methods; no lock is taken.
    """

    def __init__(self, queue: Inbox, left: Callable[[], int], clock_ns: Callable[[], int] = perf_counter_ns) -> None:
        """`left()`: how many events have left the queue at its front."""
        self._queue = queue
        self._left = left
        self._clock_ns = clock_ns
        # Times and the numbers of events queued by then, oldest first; the checking thread replaces it, any reads.
        self._checks: tuple[tuple[int, int], ...] = ()
        self._full_since_ns: int | None = None  # the checking thread writes, any reads

    def check(self) -> None:
        """Note the length of the queue. Periodically, on one thread."""
        now_ns, left = self._clock_ns(), self._left()
        queued = left + len(self._queue.entries)
        checks = tuple(check for check in self._checks if check[1] > left)
        if not checks or checks[-1][1] < queued:  # only the first check that saw an event matters
            checks = (*checks, (now_ns, queued))
        self._checks = checks if len(checks) <= _MOST_CHECKS else checks[::2]  # a long wait need not be exact
        if not self._queue.room.is_full():
            self._full_since_ns = None
        elif self._full_since_ns is None:
            self._full_since_ns = now_ns

    def oldest_wait_s(self) -> float | None:
        """How long the oldest event has waited, at least; None: the queue is empty.

        It is exact if the event's post noted the time, and otherwise lacks at most the time between two checks.
        """
        first = list(islice(each_of(self._queue.entries), _MOST_LOOKED_AT))
        if not first:
            return None
        now_ns, left = self._clock_ns(), self._left()
        checked_ns = next((at_ns for at_ns, queued in self._checks if queued > left), now_ns)
        # An event behind the oldest one has not waited longer.
        stamped_ns = next(filter(None, map(enqueued_ns_of, first)), now_ns)
        return max(0, now_ns - min(checked_ns, stamped_ns)) / 1e9

    def full_since_s(self) -> float | None:
        """How long the queue has been at its capacity, at least; None: it is not, or has none."""
        since_ns = self._full_since_ns
        if not self._queue.room.is_full():
            return None
        return 0.0 if since_ns is None else max(0, self._clock_ns() - since_ns) / 1e9


class QueueSizeLog:
    """Logs a queue's size, low capacity and contents, as YARN's dispatcher does. Any thread may call.

    Two threads at the same moment may log the same size.
    """

    def __init__(
        self,
        name: str,
        config: DispatcherConfig,
        contents: Callable[[], list[tuple[Enum, int]]],
        in_hand: Callable[[], Any],
        clock_ns: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._name = name
        self._contents = contents
        self._in_hand = in_hand
        self._threshold = config.print_events_info_threshold
        capacity = config.queue_capacity
        self._low = 0 if capacity is None else min(SIZE_STEP, max(1, capacity // 10))
        self._logged_step = 0  # any thread writes
        self._sizes: LogThrottle[str] = LogThrottle(_SIZE_EVERY_NS, clock_ns)  # never changes; any thread
        self._others: LogThrottle[str] = LogThrottle(_WARN_EVERY_NS, clock_ns)  # never changes; any thread

    def __call__(self, size: int, remaining: int | None) -> None:
        """The queue holds `size` events, and `remaining` more would fit."""
        step = size // SIZE_STEP
        # In a flood the size is sampled rarely, and changes faster than a user can read.
        if step and step != self._logged_step and (size % SIZE_STEP == 0 or self._sizes.admit("size") is not None):
            self._logged_step = step
            tell_of(log, logging.INFO, self._name, "Size of event-queue is %d", size)
        if remaining is not None and remaining < self._low and self._others.admit("low") is not None:
            tell_of(log, logging.WARNING, self._name, "Very low remaining capacity in the event-queue: %d", remaining)
        if (
            size >= self._threshold
            and log.isEnabledFor(logging.INFO)  # do not count a long queue for a line that is not logged
            and self._others.admit("details") is not None
        ):
            details = threading.Thread(target=self._print_details, name=f"{self._name}-details", daemon=True)
            if not try_to_start(details):
                self._others.admit_in("details", _SIZE_EVERY_NS)

    def _print_details(self) -> None:
        in_hand = self._in_hand()
        for event_type, count in sorted(self._contents(), key=lambda item: -item[1]):
            message, what = "Event type: %s, Event record counter: %d", kind_of(event_type)
            fields: dict[str, Any] = {"event_class": class_name(event_type), "event_type": type_name(event_type)}
            tell_of(log, logging.INFO, self._name, message, what, count, count=count, **fields)
        if in_hand is not None:
            fields = fields_of(self._name, in_hand)
            tell_of(log, logging.INFO, self._name, "Latest dispatch event: %s", text_of(in_hand), **fields)


class HandlerWatch:
    """Logs a handler or a mail that runs longer than the limit of `slow`, once, with its stack; and a producer that has
    waited that long for room while no event leaves the queue.

    `current` returns what runs, `stack` where it is. `end_batch` ends the batch after the current event, so that the
    times of quick events before it do not count as its own; it is called once a run lasts for `batch_ns`. `coroutines`
    tells where the coroutines are that have kept events in the queue for that long; None: they have not.
    """

    def __init__(
        self,
        name: str,
        slow: SlowRuns,
        current: Callable[[], Run | None],
        stack: Callable[[], str],
        coroutines: Callable[[], str | None],
        end_batch: Callable[[], None],
        batch_ns: int,
        clock_ns: Callable[[], int] = perf_counter_ns,
    ) -> None:
        # A field that does not say otherwise never changes.
        self._name = name
        self._slow = slow
        self._current = current
        self._stack = stack
        self._coroutines = coroutines
        self._end_batch = end_batch
        self._batch_ns = batch_ns
        self._clock_ns = clock_ns
        self._cut_short_ns = 0  # start of the last batch that was cut short; the timers' thread only
        self._warned_of_ns = 0  # start of the last run that was logged; the timers' thread only
        self._long_waits: LogThrottle[str] = LogThrottle(_WARN_EVERY_NS, clock_ns)  # any thread

    def check(self) -> None:
        """Check what runs now. The timers' thread."""
        run = self._current()
        if run is None or run.since_ns == self._warned_of_ns:
            return
        running_ns = self._clock_ns() - run.since_ns
        if running_ns >= self._batch_ns and run.kind == "event" and run.since_ns != self._cut_short_ns:
            self._cut_short_ns = run.since_ns
            self._end_batch()
        if running_ns < self._slow.limit_ns:
            return
        self._warned_of_ns = run.since_ns
        message = "a mail has run for %s: %s%s" if run.kind == "mail" else "a handler has run for %s, at work on %s%s"
        running_s = running_ns / 1e9
        what = plain_seconds(running_s), run.what(), self._stack()
        tell_of(log, logging.WARNING, self._name, message, *what, **run.fields(self._name, running_s))
        self._slow.announced(run.since_ns)

    def long_wait(self, producer: str) -> bool:
        """Called by a producer each time it has waited that long; True: it need not call again. Any thread."""
        holdup = self._holdup()
        if holdup is None:
            return False
        if self._long_waits.admit("producer") is not None:
            message = (
                "%s has waited %s or longer for room in the full queue, and no event leaves the queue: %s\n"
                "If a handler waits for this producer, neither goes on. A thread that a handler starts waits for room "
                "like any other; under asyncio.to_thread, it posts as the coroutine that awaits it."
            )
            after_s = self._slow.limit_ns / 1e9
            what = producer, plain_seconds(after_s), holdup
            tell_of(log, logging.WARNING, self._name, message, *what, seconds=after_s)
        return True

    def _holdup(self) -> str | None:
        """What keeps events in the queue; None: nothing has for that long."""
        if self._slow.limit_ns == _NEVER_NS:
            return None
        run = self._current()
        if run is None or self._clock_ns() - run.since_ns < self._slow.limit_ns:
            return self._coroutines()
        return f"{_NAMES[run.kind]} is at work on {run.what()}{self._stack()}"


def check_every_ms(config: DispatcherConfig) -> int:
    """The interval between two checks: short enough that a warning is not much late."""
    warn_after_s = config.handler_warn_after_s
    return _CHECK_EVERY_MS if warn_after_s is None else max(10, min(_CHECK_EVERY_MS, int(warn_after_s * 250)))


class Monitored(Protocol):
    """The parts of a dispatcher that are checked."""

    queue: Inbox
    progress: BatchProgress
    slow: SlowRuns
    backlog: Backlog
    signs: EarlySigns


class Monitor:
    """Checks one dispatcher periodically, even when no producer posts and the handler hangs."""

    def __init__(
        self,
        name: str,
        config: DispatcherConfig,
        thread: threading.Thread,
        parts: Monitored,
        processor: MailboxProcessor,
        end_batch: Callable[[], None],
        coroutines: Callable[[], str | None],
        retry_stop: Callable[[], None],
        tell_failures: Callable[[], None],
    ) -> None:
        """`thread` is the handler thread. See HandlerWatch for `end_batch` and `coroutines`. Each check calls
        `retry_stop()` and `tell_failures()`."""
        self._name = name  # never changes, like all fields that do not say otherwise
        self._every_ms = every_ms = check_every_ms(config)
        self._queue = parts.queue
        self._backlog = parts.backlog
        self._signs = parts.signs
        self._retry_stop = retry_stop
        self._tell_failures = tell_failures
        self._watch = HandlerWatch(
            name,
            parts.slow,
            partial(current_run, parts.progress, processor),
            partial(describe_stack, thread),
            coroutines,
            end_batch,
            batch_ns=every_ms * 1_000_000,
        )
        parts.queue.room.on_long_wait = self._watch.long_wait
        self._timer: Future[None] | None = None  # set by the thread that starts the timer, read by the stop
        self._has_stopped = False  # set by the stop

    def start(self, time_service: ProcessingTimeService) -> None:
        """Begin the checks, now or once the timers' thread can be started."""
        start_or_postpone(f"{self._name}: the watch over its handlers", partial(self._schedule, time_service))

    def stop(self) -> None:
        self._signs.clear()
        self._has_stopped = True  # before the look: a start sets the timer and then looks at this
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, time_service: ProcessingTimeService) -> None:
        if self._has_stopped:
            return
        self._timer = time_service.schedule_with_fixed_delay(lambda _: self._check(), self._every_ms, self._every_ms)
        if self._has_stopped:
            self._timer.cancel()

    def _check(self) -> None:
        """On the timers' thread."""
        if self._queue.entries:  # a KeyboardInterrupt may cut a post short before it wakes the handler thread
            self._queue.wake()
        self._queue.room.on_size(len(self._queue.entries), self._queue.room.remaining())
        self._queue.room.wake_if_room()
        self._backlog.check()
        self._signs.check()
        self._watch.check()
        self._tell_failures()
        self._retry_stop()


def describe_stack(thread: threading.Thread) -> str:
    """Where a thread is, as several lines that continue a sentence of the log."""
    stack = stack_of(thread.ident)
    return f". It is here:\n{''.join(stack.format()).rstrip() if stack is not None else '(its thread has ended)'}"


def describe_run(thread: threading.Thread, run: Run | None) -> str:
    """What a thread is doing, as several lines for the log."""
    what = "nothing" if run is None else f"a mail: {run.what()}" if run.kind == "mail" else run.what()
    return f"at work on {what}{describe_stack(thread)}"


def shared_time_service() -> ProcessingTimeService:
    """The timers that all dispatchers of the process share: one thread, started with the first timer."""
    return _shared


def _make_shared() -> None:
    """Also in a forked child, which does not have the timers' thread."""
    global _shared
    _shared = SystemProcessingTimeService("dispatcher-monitor")


_shared: SystemProcessingTimeService
_make_shared()
os.register_at_fork(after_in_child=_make_shared)
