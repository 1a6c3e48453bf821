"""An event that fails.

`ErrorPolicy` reacts to a handler that raises and to an event without a handler (invariant 6): another attempt, the dead
letters, the end. `Failures` keeps the last ones as text. `FailureLog` makes a flood of equal ones a line a second.
"""

from __future__ import annotations

import linecache
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter_ns, time
from traceback import walk_tb
from types import TracebackType
from typing import Any, Final, NamedTuple

from dispatcher.dead_letters import DeadLetters
from dispatcher.dispatching.lanes import Call
from dispatcher.dispatching.retries import Retries
from dispatcher.dispatching.times import Progress
from dispatcher.queue.entry import Entry
from dispatcher.retry import Retry
from dispatcher.routes import SEVERITY, Route, RoutingTable
from dispatcher.service import Service
from dispatcher.util.foreign import (
    class_name,
    cut_text,
    describe,
    entity_of,
    fields_of,
    tell_of,
    text_of,
    type_name,
    type_of,
)
from dispatcher.util.registry import copy_of
from dispatcher.util.threads import try_to_start

log = logging.getLogger("dispatcher.async_dispatcher")

_KEPT: Final = 100
_LONGEST_MESSAGE: Final = 500
_MOST_FRAMES: Final = 20
EVERY_NS: Final = 1_000_000_000
_MOST_KINDS: Final = 100


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """An event whose handler raised, or that has none."""

    number: int
    """Counts the failures of a dispatcher, from 1."""
    at: float
    """Unix seconds."""
    event_class: str
    event_type: str
    entity: str | None
    error_class: str
    message: str
    """At most 500 characters."""
    frames: tuple[str, ...]
    """The last 20 frames of the traceback as text, outermost first."""


class _Frame(NamedTuple):
    file: str
    line: int
    function: str

    def text(self) -> str:
        """As in a traceback, with the line of source if the file can be read."""
        code = linecache.getline(self.file, self.line).strip()
        where = f'File "{self.file}", line {self.line}, in {self.function}'
        return f"{where}\n    {code}" if code else where


class Failures:
    """A ring of the last 100 failures. The handler thread adds, any thread reads."""

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._clock = clock  # never changes
        self._count = 0  # handler thread
        # Frames are made text when they are read, which reads files. Handler thread appends, any copies.
        self._ring: deque[tuple[FailureRecord, tuple[_Frame, ...]]] = deque(maxlen=_KEPT)

    def add(self, event: Any, error: BaseException) -> None:
        """Handling the event failed with that error. Raises nothing, whatever the two raise. Handler thread."""
        self._count += 1
        event_type = type_of(event)
        record = FailureRecord(
            number=self._count,
            at=self._clock(),
            event_class=class_name(event_type),
            event_type=type_name(event_type),
            entity=entity_of(event),
            error_class=class_name(error),
            message=cut_text(lambda: str(error), _LONGEST_MESSAGE - len("..."))[:_LONGEST_MESSAGE],
            frames=(),
        )
        self._ring.append((record, _last_frames(error.__traceback__)))

    def newest_first(self) -> list[FailureRecord]:
        """Any thread; reads the source files of the frames, unless they are cached."""
        return [
            replace(record, frames=tuple(frame.text() for frame in frames))
            for record, frames in reversed(copy_of(self._ring))
        ]


def _last_frames(traceback: TracebackType | None) -> tuple[_Frame, ...]:
    last = deque(walk_tb(traceback), maxlen=_MOST_FRAMES)
    return tuple(_Frame(frame.f_code.co_filename, line, frame.f_code.co_qualname) for frame, line in last)


class _Kind(NamedTuple):
    """Failures are equal if these are."""

    event_class: str
    event_type: str
    error_class: str
    is_retried: bool
    """Another attempt follows."""


@dataclass(slots=True)
class _Logged:
    """A failure that was logged, and how many equal ones have come since."""

    at_ns: int
    more: int = 0


class FailureLog:
    """Logs the failed events of one dispatcher, with tracebacks, and the failed attempts that are followed by another.

    Within a second after a line, equal failures are only counted, and so are equal attempts. The next line of the kind
    has their number: the first failure after that second, `tell_due` or `tell_all`. Each line's field `count` is the
    number of failures that it stands for, so the counts of all lines add up. Any thread; raises nothing, whatever
    events, errors and logging handlers raise.
    """

    def __init__(self, name: str, clock_ns: Callable[[], int] = perf_counter_ns) -> None:
        self._name = name  # never changes
        self._clock_ns = clock_ns  # monotonic
        self._lock = threading.Lock()  # leaf lock; replaced in a forked child
        self._recent: dict[_Kind, _Logged] = {}  # guarded by _lock; those with a line in the last second or with `more`

    def failed(self, event: Any, error: BaseException, event_class: str, event_type: str, attempt: int = 1) -> None:
        """Handling the event failed for good. `event_class` and `event_type` name its type, as its metrics do."""
        kind = _Kind(event_class, event_type, class_name(error), is_retried=False)
        more = self._take_more(kind)
        if more is None:
            return
        others = f", and {more} more events like it since the last line" if more else ""
        fields = fields_of(self._name, event) | {"error_class": kind.error_class, "attempt": attempt, "count": 1 + more}
        message = "handling %s failed%s"
        tell_of(log, logging.ERROR, self._name, message, text_of(event), others, error=error, **fields)

    def retried(
        self, event: Any, error: BaseException, event_class: str, event_type: str, attempt: int, attempts: int
    ) -> None:
        """An attempt at the event failed, and is followed by another."""
        more = self._take_more(_Kind(event_class, event_type, class_name(error), is_retried=True))
        if more is None:
            return
        message = "attempt %d of %d of %s failed, and is followed by another%s: %s"
        others = f", as {more} more attempts since the last line" if more else ""
        fields = fields_of(self._name, event) | {"attempt": attempt, "count": 1 + more}
        what = attempt, attempts, text_of(event), others, describe(error)
        tell_of(log, logging.WARNING, self._name, message, *what, **fields)

    def _take_more(self, kind: _Kind) -> int | None:
        """How many failures of the kind the next line has to tell besides its own; None: there is no line yet."""
        others: dict[_Kind, _Logged] = {}
        with self._lock:
            now_ns = self._clock_ns()
            logged = self._recent.get(kind)
            if logged is not None and now_ns - logged.at_ns < EVERY_NS:
                logged.more += 1
                return None
            if logged is None and len(self._recent) >= _MOST_KINDS:
                others, self._recent = self._recent, {}
            self._recent[kind] = _Logged(now_ns)
        self._tell(others)
        return logged.more if logged is not None else 0

    def tell_due(self) -> None:
        """Log the numbers of failures that no other failure of the kind has told for a second."""
        if not self._recent:
            return
        with self._lock:
            since_ns = self._clock_ns() - EVERY_NS
            due = {kind: logged for kind, logged in self._recent.items() if logged.at_ns <= since_ns}
            for kind in due:
                del self._recent[kind]
        self._tell(due)

    def tell_all(self) -> None:
        """Log the numbers of all failures that no line has told yet."""
        with self._lock:
            recent, self._recent = self._recent, {}
        self._tell(recent)

    def _tell(self, kinds: dict[_Kind, _Logged]) -> None:
        for kind, logged in kinds.items():
            if not logged.more:
                continue
            fields: dict[str, Any] = {"event_class": kind.event_class, "event_type": kind.event_type}
            if kind.is_retried:
                level, message = logging.WARNING, "%d more attempts at events of type %s failed with %s"
            else:
                level, message = logging.ERROR, "handling %d more events of type %s failed with %s"
                fields["error_class"] = kind.error_class
            what = logged.more, f"{kind.event_class}.{kind.event_type}", kind.error_class
            tell_of(log, level, self._name, message, *what, count=logged.more, **fields)

    def after_fork(self) -> None:
        """In a child process: a thread of the parent may have held the lock, and the parent tells what was counted."""
        self._lock = threading.Lock()
        self._recent = {}


class ErrorPolicy:
    """Counts and logs a failed event, then follows the `on_error` of its class. Handler thread, but for `failures`,
    `log` and `dead_letters`."""

    def __init__(
        self,
        dispatcher: Service,
        routes: RoutingTable,
        progress: Progress,
        retries: Retries,
        dead_letters: DeadLetters | None,
        exit_action: Callable[[int], Any],
    ) -> None:
        self._dispatcher = dispatcher
        self._progress = progress
        self._retries = retries
        self.dead_letters = dead_letters  # None: the dispatcher keeps none; never changes after the start
        self._routes = routes
        self._exit_action = exit_action
        self.failures = Failures()  # the last ones; it says who may touch it
        self.log = FailureLog(dispatcher.name)  # never changes
        self.is_ending = False  # `end` is to be called; handler thread
        self.is_exiting = False  # it will end the process; handler thread
        self._ended_by: BaseException | None = None  # the error with which `end` is to be called; handler thread

    def failed(
        self, event: Any, error: BaseException, call: Call | None = None, *, ends_later: bool = False
    ) -> tuple[str, BaseException]:
        """The event's handler raised `error`, or it has none. Returns the outcome and the error for the journal.

        The outcome is `retried` if another attempt follows; then the event is retrying, and has not ended.

        `call`: whose coroutine raised it; its handler may have been unregistered since. `ends_later`: the caller calls
        `end` once the event has its row, if the event `is_ending` the dispatcher.
        It raises nothing, whatever the event, a logging handler or a listener raises.
        """
        event_type = type_of(event)
        route = call.route if call is not None else self._routes.find(event_type)
        is_handled = route.registered or call is not None
        entry = call.entry if call is not None else self._progress.entry_in_hand()
        policy = self._decide(route.on_error, event, error)
        if isinstance(policy, Retry) and self._tries_again(policy, event, error, route, entry):
            if call is None:
                self._progress.entry = None
            return "retried", error
        on_error = policy.then if isinstance(policy, Retry) else policy
        if not is_handled:
            error = self._routes.unregistered(event_type)
        self.failures.add(event, error)
        attempt = entry.attempt if entry is not None else 1
        self.log.failed(event, error, route.event_class, route.name, attempt)
        # With `continue` as its `then`, a Retry wants no dead letter; without a Retry, every failure is one.
        if self.dead_letters is not None and not (isinstance(policy, Retry) and on_error == "continue"):
            self.dead_letters.add(event, error, attempt)
        # Only now: a reader of the counts finds the failure and the dead letter of each.
        if entry is not None:
            entry.end("failed", route, error=error)
        else:
            route.failed += 1
        if call is None:
            self._progress.entry = None
        if on_error in ("stop", "exit"):
            self._dispatcher.note_failure(error)
            self._ended_by = self._ended_by or error
            self.is_ending, self.is_exiting = True, self.is_exiting or on_error == "exit"
            if not ends_later:
                self.end()
        return "failed" if is_handled else "unregistered", error

    def _decide(self, on_error: Any, event: Any, error: BaseException) -> Any:
        """The policy for this error: a Retry, or what a string says."""
        if isinstance(on_error, str | Retry):
            return on_error
        name = self._dispatcher.name
        try:
            decided = on_error(event, error)
        except BaseException as raised:
            message = "on_error failed; the dispatcher continues"
            tell_of(log, logging.ERROR, name, message, error=raised, **fields_of(name, event))
            return "continue"
        if isinstance(decided, Retry) or (isinstance(decided, str) and decided in SEVERITY):
            return decided
        message = "on_error returned %s; the dispatcher continues"
        tell_of(log, logging.ERROR, name, message, text_of(decided), **fields_of(name, event))
        return "continue"

    def _tries_again(self, policy: Retry, event: Any, error: BaseException, route: Route, entry: Entry | None) -> bool:
        attempt = entry.attempt if entry is not None else 1
        if not (route.registered and isinstance(error, policy.on)) or attempt >= policy.attempts:
            return False
        route.retried += 1
        self._retries.retry(policy, event, entry)
        self.log.retried(event, error, route.event_class, route.name, attempt, policy.attempts)
        return True

    def end(self) -> None:
        """Stop the dispatcher, and, if it `is_exiting`, end the process. Raises nothing."""
        name, exits, error = self._dispatcher.name, self.is_exiting, self._ended_by
        self.is_ending, self.is_exiting, self._ended_by = False, False, None
        try:
            if exits and not sys.is_finalizing():
                self.log.tell_all()
                tell_of(log, logging.CRITICAL, name, "exiting the process, as registered for this event class")
                # On a thread of its own: exit hooks may stop this dispatcher, and the stop waits for this handler.
                exiting = threading.Thread(target=self._exit_action, args=(-1,), name=f"{name}-exit", daemon=True)
                if not try_to_start(exiting):
                    self._exit_action(-1)
            if error is not None:
                self._dispatcher.stop_on_failure(error)
        except BaseException as raised:
            tell_of(log, logging.CRITICAL, name, "the stop failed", error=raised)
