"""The failures that a dispatcher keeps: the last ones, and equal ones as groups."""

from __future__ import annotations

import linecache
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile
from time import time
from traceback import walk_tb
from types import TracebackType
from typing import Any, Final, NamedTuple

from dispatcher.util.foreign import class_name, entity_of, short_message, type_name, type_of
from dispatcher.util.registry import copy_of

MOST_GROUPS: Final = 100
_PAUSE_S: Final = 60.0
_KEPT: Final = 100
_MOST_FRAMES: Final = 20


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """An event whose handler raised, or that has none."""

    number: int
    """Counts the failures of a dispatcher, from 1; 0 for an attempt that is followed by another."""
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


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """The failures of one event type with one class of error, since the start."""

    failed: int
    """Events that failed."""
    retried: int
    """Attempts that failed and were followed by another."""
    first_at: float
    """Unix seconds, as `since_at`."""
    since_at: float
    """Since when no minute has passed without one."""
    newest: FailureRecord


class FailureKey(NamedTuple):
    """Failures are of one group if these are equal."""

    event_class: str
    event_type: str
    error_class: str


class _FailureFrame(NamedTuple):
    file: str
    line: int
    function: str

    def text(self) -> str:
        """The frame as a traceback shows it, with the line of source if the file can be read."""
        code = linecache.getline(self.file, self.line).strip()
        where = f'File "{self.file}", line {self.line}, in {self.function}'
        return f"{where}\n    {code}" if code else where


class _UnreadRecord(NamedTuple):
    """A record whose frames are made text when they are read, which reads files."""

    record: FailureRecord
    frames: tuple[_FailureFrame, ...]

    def whole(self) -> FailureRecord:
        return replace(self.record, frames=tuple(frame.text() for frame in self.frames))


class _RecentGroup(NamedTuple):
    failed: int
    retried: int
    first_at: float
    since_at: float
    newest: _UnreadRecord


class RecentFailures:
    """The last 100 failures, and the last 100 groups that failed. The handler thread adds, any thread reads."""

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._clock = clock  # never changes
        self._count = 0  # handler thread
        self._ring: deque[_UnreadRecord] = deque(maxlen=_KEPT)  # handler thread appends, any copies
        self._groups: dict[FailureKey, _RecentGroup] = {}  # handler thread sets and removes, any copies

    def add(self, event: Any, error: BaseException, *, is_retried: bool = False) -> None:
        """Handling the event failed with that error. `is_retried`: another attempt follows.

        Raises nothing, whatever the two raise. Handler thread.
        """
        if not is_retried:
            self._count += 1
        event_type = type_of(event)
        record = FailureRecord(
            number=0 if is_retried else self._count,
            at=self._clock(),
            event_class=class_name(event_type),
            event_type=type_name(event_type),
            entity=entity_of(event),
            error_class=class_name(error),
            message=short_message(error),
            frames=(),
        )
        kept = _UnreadRecord(record, _last_frames(error.__traceback__))
        if not is_retried:
            self._ring.append(kept)
        self._group(kept, is_retried=is_retried)

    def _group(self, kept: _UnreadRecord, *, is_retried: bool) -> None:
        record, groups = kept.record, self._groups
        key = FailureKey(record.event_class, record.event_type, record.error_class)
        before = groups.get(key)
        if before is None:
            if len(groups) >= MOST_GROUPS:  # the one that has not failed for longest goes
                del groups[min(groups, key=lambda each: groups[each].newest.record.at)]
            before = _RecentGroup(0, 0, record.at, record.at, kept)
        goes_on = abs(record.at - before.newest.record.at) <= _PAUSE_S  # the clock may have been set back
        since_at = before.since_at if goes_on else record.at
        failed, retried = before.failed + (not is_retried), before.retried + is_retried
        groups[key] = _RecentGroup(failed, retried, before.first_at, since_at, kept)

    def last_number(self) -> int:
        """Of the last failure; 0: there was none. Any thread."""
        last = copy_of(self._ring)[-1:]
        return last[0].record.number if last else 0

    def newest_first(self, after: int = 0) -> list[FailureRecord]:
        """Those with greater numbers. Any thread; reads the source files of the frames, unless they are cached."""
        newer = takewhile(lambda kept: kept.record.number > after, reversed(copy_of(self._ring)))
        return [kept.whole() for kept in newer]

    def groups(self) -> list[FailureGroup]:
        """The last that failed first. Any thread; reads the source files of the frames, unless they are cached."""
        found = sorted(self._groups.copy().values(), key=lambda group: -group.newest.record.at)
        return [FailureGroup(*group[:-1], group.newest.whole()) for group in found]

    def counts(self) -> dict[FailureKey, int]:
        """The number of failures and of attempts of each group. Any thread."""
        return {key: group.failed + group.retried for key, group in self._groups.copy().items()}


def _last_frames(traceback: TracebackType | None) -> tuple[_FailureFrame, ...]:
    last = deque(walk_tb(traceback), maxlen=_MOST_FRAMES)
    return tuple(_FailureFrame(frame.f_code.co_filename, line, frame.f_code.co_qualname) for frame, line in last)
