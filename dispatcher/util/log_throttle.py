"""Floods of log lines: one line of each kind is logged per interval, and the others are counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Generic, TypeVar

from dispatcher.util.foreign import tell
from dispatcher.util.forks import let_go_in_children

Kind = TypeVar("Kind", bound=Hashable)


@dataclass(slots=True)
class _LoggedLine:
    """A line that was logged, and how many of its kind were held back since."""

    at_ns: int
    held_back: int = 0


class LogThrottle(Generic[Kind]):
    """Admits one line of each kind per interval, and counts the lines that it holds back. Any thread.

    Each line held back is counted in one number that `admit`, `take_due` or `take_all` returns. Only `take_due` and
    `take_all` forget kinds: an owner with any number of kinds calls `take_all` when there are too many.
    """

    def __init__(
        self, every_ns: int, clock_ns: Callable[[], int] = perf_counter_ns, most_kinds: int | None = None
    ) -> None:
        self._every_ns = every_ns  # never changes
        self._clock_ns = clock_ns  # never changes; monotonic
        self._most_kinds = most_kinds  # never changes
        # A leaf lock; replaced in a forked child. Re-entrant: a signal handler may post to a full queue, which logs, in
        # the middle of another post's line. Both lines may then be admitted.
        self._lock = threading.RLock()
        self._logged: dict[Kind, _LoggedLine] = {}  # guarded by _lock
        let_go_in_children(self)

    def admit(self, kind: Kind) -> int | None:
        """Return how many lines of this kind were held back since its last one, or None to hold this one back."""
        with self._lock:
            now_ns = self._clock_ns()
            logged = self._logged.get(kind)
            if logged is not None and now_ns - logged.at_ns < self._every_ns:
                logged.held_back += 1
                return None
            self._logged[kind] = _LoggedLine(now_ns)
        return 0 if logged is None else logged.held_back

    def admit_in(self, kind: Kind, ns: int) -> None:
        """Admit the kind again after `ns`, because the admitted line could not be logged."""
        with self._lock:
            self._logged[kind] = _LoggedLine(self._clock_ns() - self._every_ns + ns)

    def has_too_many(self) -> bool:
        """Whether there are more kinds than there may be. Takes no lock."""
        return self._most_kinds is not None and len(self._logged) > self._most_kinds

    def take_due(self) -> dict[Kind, int]:
        """Forget the kinds whose interval is over; return how many lines of each were held back, if any were."""
        if not self._logged:
            return {}
        with self._lock:
            since_ns = self._clock_ns() - self._every_ns
            due = {kind: logged for kind, logged in self._logged.copy().items() if logged.at_ns <= since_ns}
            for kind in due:
                del self._logged[kind]
        return _held_back(due)

    def take_all(self, but: Kind | None = None) -> dict[Kind, int]:
        """Forget all kinds but one; return how many lines of each were held back, if any were."""
        with self._lock:
            logged, self._logged = self._logged, {}
            if but is not None and but in logged:
                self._logged[but] = logged.pop(but)
        return _held_back(logged)

    def after_fork(self) -> None:
        """In a forked child. A thread of the parent may have held the lock, and the parent logs what was counted."""
        self._lock = threading.RLock()
        self._logged = {}

    def warn(self, log: logging.Logger, kind: Kind, message: str) -> None:
        """Log a warning, with the number held back before it, or hold it back. Raises nothing."""
        held_back = self.admit(kind)
        if held_back is not None:
            more = f" ({held_back} more since the last line)" if held_back else ""
            tell(log, logging.WARNING, "%s%s", message, more)


def _held_back(logged: dict[Kind, _LoggedLine]) -> dict[Kind, int]:
    return {kind: each.held_back for kind, each in logged.items() if each.held_back}
