"""The log of failed events. A flood of equal failures is a line a second, not a traceback for each event."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from dispatcher.util.foreign import class_name, describe, fields_of, tell_of, text_of

log = logging.getLogger("dispatcher.async_dispatcher")

EVERY_NS: Final = 1_000_000_000
_MOST_KINDS: Final = 100


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
