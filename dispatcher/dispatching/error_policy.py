"""An event that fails.

`ErrorPolicy` reacts to a handler that raises and to an event without a handler (invariant 6): another attempt, the dead
letters, the end. `FailureLog` limits equal ones to one line a second.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dispatcher.dispatching.lanes import Call, leave_call
from dispatcher.dispatching.recent_failures import RecentFailures
from dispatcher.dispatching.retries import Retries
from dispatcher.dispatching.times import BatchProgress
from dispatcher.queue.entry import Entry
from dispatcher.retry import Retry
from dispatcher.routes import SEVERITY, Route, RoutingTable
from dispatcher.service import Service, note_failure, stop_on_failure
from dispatcher.util.foreign import (
    class_name,
    describe,
    fields_of,
    tell_of,
    text_of,
    type_of,
)
from dispatcher.util.log_throttle import LogThrottle
from dispatcher.util.threads import try_to_start

if TYPE_CHECKING:
    from dispatcher.letter_target import LetterTarget

log: logging.Logger = logging.getLogger("dispatcher.async_dispatcher")

EVERY_NS: Final = 1_000_000_000
_MOST_KINDS: Final = 100


class _FailureKind(NamedTuple):
    """Failures are equal if these are."""

    event_class: str
    event_type: str
    error_class: str
    is_retried: bool
    """Another attempt follows."""


class FailureLog:
    """Logs the failed events of one dispatcher, with tracebacks, and the failed attempts that are followed by another.

    Within a second after a line, equal failures are only counted, and so are equal attempts. The next line of the kind
    has their number: the first failure after that second, `tell_due` or `tell_all`. Each line's field `count` is the
    number of failures that it stands for, so the counts of all lines add up. Any thread; raises nothing, whatever
    events, errors and logging handlers raise.
    """

    def __init__(self, name: str, clock_ns: Callable[[], int] = perf_counter_ns) -> None:
        self._name = name  # never changes
        # Never changes; any thread.
        self._throttle: LogThrottle[_FailureKind] = LogThrottle(EVERY_NS, clock_ns, _MOST_KINDS)

    def failed(self, event: Any, error: BaseException, event_class: str, event_type: str, attempt: int = 1) -> None:
        """Handling the event failed for good. `event_class` and `event_type` name its type, as its metrics do."""
        kind = _FailureKind(event_class, event_type, class_name(error), is_retried=False)
        more = self._take_more(kind)
        if more is None:
            return
        others = f", and {_more(more, 'event')} like it since the last line" if more else ""
        fields = fields_of(self._name, event) | {"error_class": kind.error_class, "attempt": attempt, "count": 1 + more}
        message = "handling %s failed%s"
        tell_of(log, logging.ERROR, self._name, message, text_of(event), others, error=error, **fields)

    def retried(
        self, event: Any, error: BaseException, event_class: str, event_type: str, attempt: int, attempts: int
    ) -> None:
        """An attempt at the event failed, and is followed by another."""
        more = self._take_more(_FailureKind(event_class, event_type, class_name(error), is_retried=True))
        if more is None:
            return
        message = "attempt %d of %d of %s failed, and is followed by another%s: %s"
        others = f", as {_more(more, 'attempt')} since the last line" if more else ""
        fields = fields_of(self._name, event) | {"attempt": attempt, "count": 1 + more}
        what = attempt, attempts, text_of(event), others, describe(error)
        tell_of(log, logging.WARNING, self._name, message, *what, **fields)

    def _take_more(self, kind: _FailureKind) -> int | None:
        """How many failures of the kind the next line has to tell besides its own; None: there is no line yet."""
        more = self._throttle.admit(kind)
        if more is not None and self._throttle.has_too_many():
            self._tell(self._throttle.take_all(but=kind))
        return more

    def tell_due(self) -> None:
        """Log the numbers of failures whose second has passed without another line of the kind."""
        self._tell(self._throttle.take_due())

    def tell_all(self) -> None:
        """Log the numbers of all failures that no line has counted yet."""
        self._tell(self._throttle.take_all())

    def _tell(self, held_back: dict[_FailureKind, int]) -> None:
        for kind, number in held_back.items():
            fields: dict[str, Any] = {"event_class": kind.event_class, "event_type": kind.event_type}
            if kind.is_retried:
                noun, level, message = "attempt", logging.WARNING, "%s at events of type %s failed with %s"
            else:
                noun, level, message = "event", logging.ERROR, "handling %s of type %s failed with %s"
                fields["error_class"] = kind.error_class
            what = _more(number, noun), f"{kind.event_class}.{kind.event_type}", kind.error_class
            tell_of(log, level, self._name, message, *what, count=number, **fields)


class ErrorPolicy:
    """Counts and logs a failed event, then follows the `on_error` of its class. Handler thread, but for `failures`,
    `log` and `dead_letters`."""

    def __init__(
        self,
        dispatcher: Service,
        routes: RoutingTable,
        progress: BatchProgress,
        retries: Retries,
        dead_letters: LetterTarget | None,
        exit_action: Callable[[int], Any],
    ) -> None:
        self._dispatcher = dispatcher
        self._progress = progress
        self.retries: Retries = retries  # never changes
        self.dead_letters = dead_letters  # None: the dispatcher keeps none; never changes after the start
        self._routes = routes
        self._exit_action = exit_action
        self.failures: RecentFailures = RecentFailures()  # it says who may touch it
        self.log: FailureLog = FailureLog(dispatcher.name)  # never changes
        self.is_ending: bool = False  # `end` is to be called; handler thread
        self.is_exiting: bool = False  # it will end the process; handler thread
        self._ended_by: BaseException | None = None  # the error with which `end` is to be called; handler thread

    def failed(
        self, event: Any, error: BaseException, call: Call | None = None, *, ends_later: bool = False
    ) -> tuple[str, BaseException]:
        """The event's handler raised `error`, or it has none. Returns the outcome and the error for the journal.

        The outcome is `retried` if another attempt follows; then the event is retrying, and has not ended.

        `call`: whose coroutine raised it; its handler may have been unregistered since. `ends_later`: the caller calls
        `end` once the event has its row, if the event `is_ending` the dispatcher.
        It raises nothing, whatever the event, a logging handler or a listener raises. What it logs and calls sees the
        context of the event's post, if its class keeps that.
        """
        entry = call.entry if call is not None else self._progress.entry_in_hand()
        if entry is None or entry.context is None:
            return self._failed(event, error, call, entry, ends_later)
        context = entry.context.copy()
        leave_call(context)
        return context.run(self._failed, event, error, call, entry, ends_later)

    def letters_lost(self) -> int:
        """How many dead letters could not be stored. Any thread."""
        return self.dead_letters.lost if self.dead_letters is not None else 0

    def _failed(
        self, event: Any, error: BaseException, call: Call | None, entry: Entry | None, ends_later: bool
    ) -> tuple[str, BaseException]:
        event_type = type_of(event)
        route = call.route if call is not None else self._routes.find(event_type)
        is_handled = route.registered or call is not None
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
            note_failure(self._dispatcher, error)
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
        self.failures.add(event, error, is_retried=True)
        self.retries.retry(policy, event, error, entry)
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
                stop_on_failure(self._dispatcher, error)
        except BaseException as raised:
            tell_of(log, logging.CRITICAL, name, "the stop failed", error=raised)


def _more(number: int, noun: str) -> str:
    return f"{number} more {noun}{'s' if number != 1 else ''}"
