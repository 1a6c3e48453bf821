"""Element queues of an asynchronous operator, after Flink's StreamElementQueue.

A queue holds the elements that an operator has taken in and not yet emitted. A record's results are emitted after its
future is completed. The ordered queue emits in put order. The unordered queue emits in completion order, but no record
passes a watermark.

Threads: a queue belongs to the engine's thread, which alone completes the futures that the queue hands out, because
completion changes the queue. An answer from another thread travels as mail, and the mail completes the future. Where
the first of several answers must win before its mail runs (an answer against a timeout), use a separate ResultFuture
whose `_on_complete` sends the mail.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeAlias, TypeVar

from dispatcher.errors import InvalidTypeError, InvalidValueError
from dispatcher.util.functions import require_kind
from pipeline.streaming.elements import StreamElement, StreamRecord, Watermark

In = TypeVar("In")
Out = TypeVar("Out")


_SIZE: Final = 64
"""About the size of a future in bytes, so that neighbors in memory use different locks."""
_CLAIMING: Final = [threading.RLock() for _ in range(16)]
"""Leaf locks, each held while one of its futures is claimed: one for each would be one more object for each record.
Re-entrant, for a signal handler; replaced in a forked child."""


def _after_fork() -> None:
    _CLAIMING[:] = [threading.RLock() for _ in _CLAIMING]


os.register_at_fork(after_in_child=_after_fork)


class ResultFuture(Generic[Out]):
    """The results of one input, any number of them, or its error. The first completion wins.

    Any thread can complete and read it, with one exception: only the engine's thread can complete a queue's future.
    """

    __slots__ = ("_done", "_error", "_is_claimed", "_results")

    def __init__(self) -> None:
        self._is_claimed = False  # a completion has won; written under a lock of _CLAIMING
        self._results: tuple[Out, ...] = ()  # written once, by the completion that has won
        self._error: BaseException | None = None  # written once, by the completion that has won
        # Written after the two above: a thread that reads True also reads the outcome.
        self._done = False

    @property
    def results(self) -> tuple[Out, ...]:
        """The results, empty until done and after an error."""
        return self._results

    @property
    def error(self) -> BaseException | None:
        """The error of an exceptional completion, or None until done."""
        return self._error

    def is_done(self) -> bool:
        """Whether it has a result or an error."""
        return self._done

    def complete(self, results: Iterable[Out]) -> bool:
        """Complete with a copy of `results`. Doesn't block.

        Returns whether this call won. After an earlier completion it changes nothing.

        Raises:
            TypeError: `results` isn't iterable. The future stays open, as it does when iteration raises.
        """
        # Copy before the claim: an iterable that raises must not leave the future claimed and never done.
        copied = tuple(results)
        if not self._try_claim():
            return False
        self._results = copied
        self._done = True
        self._on_complete()
        return True

    def complete_exceptionally(self, error: BaseException) -> bool:
        """Complete with `error` and no results. Doesn't block.

        Returns as `complete` does. A queue emits nothing for the record and never raises the error. The operator
        decides whether to fail the task.

        Raises:
            TypeError: `error` isn't an exception. The future stays open.
        """
        # Anything else, above all None, would read as a record without results: a silent loss.
        if not isinstance(error, BaseException):
            raise InvalidTypeError(f"complete_exceptionally() needs an exception, got {error!r}. Wrap it in one.")
        if not self._try_claim():
            return False
        self._error = error
        self._done = True
        self._on_complete()
        return True

    def _try_claim(self) -> bool:
        with _CLAIMING[id(self) // _SIZE % len(_CLAIMING)]:
            if self._is_claimed:  # no call up to the store, so no signal handler comes between the two
                return False
            self._is_claimed = True
        return True

    def _on_complete(self) -> None:
        """Hook for subclasses: called once, when done, in the thread of the winning completion."""

    def __repr__(self) -> str:
        if not self._done:
            outcome = "pending"
        elif self._error is not None:
            outcome = f"error={self._error!r}"
        else:
            outcome = f"results={self._results!r}"
        return f"<{type(self).__name__} {outcome}>"


class _RecordEntry(ResultFuture[Out], Generic[In, Out]):
    """A queued record and the future of its results in one object, which saves an allocation per record.

    The engine's thread alone completes it, so there is nothing to claim.
    """

    __slots__ = ("element",)

    def __init__(self, record: StreamRecord[In]) -> None:
        # The future's __init__ inlined: this runs for each record.
        self._results = ()
        self._error = None
        self._done = False
        self.element = record

    def complete(self, results: Iterable[Out]) -> bool:
        # The future's `complete` inlined: this runs for each record.
        copied = tuple(results)
        if self._done:
            return False
        self._results = copied
        self._done = True
        self._on_complete()
        return True

    def _try_claim(self) -> bool:
        return not self._done

    def emit(self, output: Callable[[StreamElement[Out]], object]) -> None:
        timestamp_ms = self.element.timestamp_ms
        for result in self._results:
            output(StreamRecord(result, timestamp_ms))


class _WatermarkEntry(ResultFuture[Out]):
    """A queued watermark, which is complete from the start."""

    __slots__ = ("element",)

    def __init__(self, watermark: Watermark) -> None:
        super().__init__()
        self.element = watermark
        self._is_claimed = self._done = True

    def emit(self, output: Callable[[StreamElement[Out]], object]) -> None:
        output(self.element)


class StreamElementQueue(ABC, Generic[In, Out]):
    """Base class of the ordered and the unordered queue. Use it only on the engine's thread. Nothing here blocks.

    Every method but `values()` takes constant time (amortized) for each element it handles.
    """

    __slots__ = ("capacity",)

    def __init__(self, capacity: int) -> None:
        """Make an empty queue for up to `capacity` elements, including watermarks.

        Raises:
            ValueError: `capacity` isn't positive.
        """
        require_kind(capacity, "capacity", int)
        if capacity <= 0:
            raise InvalidValueError(f"capacity is {capacity}; it must be at least 1.")
        self.capacity: int = capacity

    def try_put(self, element: StreamElement[In]) -> ResultFuture[Out] | None:
        """Append `element`, or return None without keeping it if the queue is full.

        A watermark's future is already complete.
        """
        if self.is_full():
            return None
        return self._put_watermark(element) if isinstance(element, Watermark) else self.put_record(element)

    @abstractmethod
    def put_record(self, record: Any) -> ResultFuture[Out]:
        """Append a record to a queue that is not full. `emit_completed_results` takes any value for a record."""

    @abstractmethod
    def _put_watermark(self, watermark: Watermark) -> ResultFuture[Out]: ...

    @abstractmethod
    def has_completed_elements(self) -> bool:
        """Whether `emit_completed_element` would emit an element now."""

    def emit_completed_element(self, output: Callable[[StreamElement[Out]], object]) -> None:
        """Take the next completed element, if any, off the queue and call `output` with each of its results.

        A record's results carry the record's timestamp. A watermark's only result is itself.

        The element leaves the queue before the first call, so `output` can use the queue, and nothing is emitted twice.
        If `output` raises, you lose the rest of the element's results. The task must then fail and restart from its
        last snapshot.
        """
        self.emit_completed_elements(output, 1)

    @abstractmethod
    def emit_completed_elements(self, output: Callable[[StreamElement[Out]], object], most: int) -> int:
        """Emit up to `most` completed elements, and return how many."""

    def emit_completed_results(self, output: Callable[[list[Out]], object], most: int) -> int:
        """Emit up to `most` completed elements of a queue without watermarks, passing `output` all their results."""
        entries = self._take_completed(most)
        output([result for entry in entries for result in entry._results])
        return len(entries)

    def emit_completed_records(self, output: Callable[[list[tuple[Any, tuple[Out, ...]]]], object], most: int) -> int:
        """Emit as `emit_completed_results` does, but pass `output` pairs of a record and its results."""
        entries = self._take_completed(most)
        output([(entry.element, entry._results) for entry in entries])
        return len(entries)

    @abstractmethod
    def _take_completed(self, most: int) -> list[Any]:
        """Take up to `most` completed entries off a queue without watermarks."""

    @abstractmethod
    def values(self) -> list[StreamElement[In]]:
        """Return the elements not yet emitted, completed or not, as a new list for a snapshot."""

    @abstractmethod
    def size(self) -> int:
        """Count the elements not yet emitted, including watermarks, as the capacity does."""

    def is_empty(self) -> bool:
        return self.size() == 0

    def is_full(self) -> bool:
        return self.size() >= self.capacity


_OrderedEntry: TypeAlias = _RecordEntry[In, Out] | _WatermarkEntry[Out]


class OrderedStreamElementQueue(StreamElementQueue[In, Out]):
    """Emits in put order: only a completed head leaves. `values()` has the same order."""

    __slots__ = ("_entries",)

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._entries: deque[_OrderedEntry[In, Out]] = deque()  # the engine's thread only

    def put_record(self, record: Any) -> ResultFuture[Out]:
        entry: _RecordEntry[In, Out] = _RecordEntry(record)
        self._entries.append(entry)
        return entry

    def _put_watermark(self, watermark: Watermark) -> ResultFuture[Out]:
        entry: _WatermarkEntry[Out] = _WatermarkEntry(watermark)
        self._entries.append(entry)
        return entry

    def has_completed_elements(self) -> bool:
        return bool(self._entries) and self._entries[0]._done

    def emit_completed_elements(self, output: Callable[[StreamElement[Out]], object], most: int) -> int:
        entries = self._entries
        emitted = 0
        while emitted < most and entries and entries[0]._done:
            emitted += 1
            entries.popleft().emit(output)
        return emitted

    def _take_completed(self, most: int) -> list[Any]:
        entries = self._entries
        taken: list[Any] = []
        while entries and entries[0]._done and len(taken) < most:
            taken.append(entries.popleft())
        return taken

    def values(self) -> list[StreamElement[In]]:
        return [entry.element for entry in self._entries]

    def sample(self, most: int) -> list[tuple[Any, tuple[Out, ...]]]:
        """Return the values (None for a watermark) and results of up to `most` elements from all over the queue."""
        entries = self._entries
        sampled = [entries[place] for place in range(0, len(entries), -(-len(entries) // most) or 1)]
        return [(_value_of(entry.element), entry.results) for entry in sampled]

    def size(self) -> int:
        return len(self._entries)


def _value_of(element: Any) -> Any:
    if isinstance(element, StreamRecord):
        return element.value
    return None if isinstance(element, Watermark) else element


class _Segment(Generic[In, Out]):
    """The records between two watermarks, or one watermark; each in exactly one of the two fields."""

    __slots__ = ("completed", "incomplete")

    def __init__(self) -> None:
        self.completed: deque[_UnorderedEntry[In, Out]] = deque()  # in completion order
        # A dict serves as an ordered set: put order makes `values()` reproducible.
        self.incomplete: dict[_SegmentEntry[In, Out], None] = {}

    def is_empty(self) -> bool:
        return not self.completed and not self.incomplete


class _SegmentEntry(_RecordEntry[In, Out]):
    """A record entry that its completion transfers from `incomplete` to `completed` of its segment."""

    __slots__ = ("_segment",)

    def __init__(self, record: StreamRecord[In], segment: _Segment[In, Out]) -> None:
        self._results = ()
        self._error = None
        self._done = False
        self.element = record
        self._segment = segment
        segment.incomplete[self] = None

    def _on_complete(self) -> None:
        del self._segment.incomplete[self]
        self._segment.completed.append(self)


_UnorderedEntry: TypeAlias = _SegmentEntry[In, Out] | _WatermarkEntry[Out]


class UnorderedStreamElementQueue(StreamElementQueue[In, Out]):
    """Emits in completion order between two watermarks. No record passes a watermark.

    `values()` goes segment by segment: completed records in completion order, then the others in put order. Flink
    leaves their order open.
    """

    __slots__ = ("_segments", "_size")

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        # The engine's thread only. Never empty; the last segment takes new records, and only it may be empty. So the
        # first segment alone decides whether there is something to emit.
        self._segments: deque[_Segment[In, Out]] = deque((_Segment(),))
        self._size = 0  # the engine's thread only; == the entries of all segments

    def put_record(self, record: Any) -> ResultFuture[Out]:
        self._size += 1
        return _SegmentEntry(record, self._segments[-1])

    def _put_watermark(self, watermark: Watermark) -> ResultFuture[Out]:
        self._size += 1
        # Reuse an empty last segment for the watermark: left in the chain, it would block what follows.
        if not self._segments[-1].is_empty():
            self._segments.append(_Segment())
        entry: _WatermarkEntry[Out] = _WatermarkEntry(watermark)
        self._segments[-1].completed.append(entry)
        self._segments.append(_Segment())
        return entry

    def has_completed_elements(self) -> bool:
        return bool(self._segments[0].completed)

    def emit_completed_elements(self, output: Callable[[StreamElement[Out]], object], most: int) -> int:
        segments = self._segments
        emitted = 0
        while emitted < most and (segment := segments[0]).completed:
            emitted += 1
            entry = segment.completed.popleft()
            self._size -= 1
            if len(segments) > 1 and segment.is_empty():
                segments.popleft()
            entry.emit(output)
        return emitted

    def _take_completed(self, most: int) -> list[Any]:
        completed = self._segments[0].completed
        taken: list[Any] = [completed.popleft() for _ in range(min(most, len(completed)))]
        self._size -= len(taken)
        return taken

    def values(self) -> list[StreamElement[In]]:
        elements: list[StreamElement[In]] = []
        for segment in self._segments:
            elements.extend(entry.element for entry in segment.completed)
            elements.extend(entry.element for entry in segment.incomplete)
        return elements

    def size(self) -> int:
        return self._size
