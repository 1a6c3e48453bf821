"""The last failures of a dispatcher, as text: nothing of an event or an error is kept alive."""

from __future__ import annotations

import linecache
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import time
from types import TracebackType
from typing import Any, Final, NamedTuple

from dispatcher.util.foreign import class_name, cut_text, entity_of, type_name, type_of
from dispatcher.util.histogram import snapshot

_KEPT: Final = 100
_LONGEST_MESSAGE: Final = 500
_MOST_FRAMES: Final = 20


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
            for record, frames in reversed(snapshot(self._ring.copy))
        ]


def _last_frames(traceback: TracebackType | None) -> tuple[_Frame, ...]:
    frames: deque[TracebackType] = deque(maxlen=_MOST_FRAMES)
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    return tuple(
        _Frame(each.tb_frame.f_code.co_filename, each.tb_lineno, each.tb_frame.f_code.co_qualname) for each in frames
    )
