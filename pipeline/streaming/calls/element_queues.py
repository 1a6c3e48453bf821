"""Element queues of an asynchronous operator, after Flink's StreamElementQueue.

A queue keeps the elements that an operator took in and has not emitted yet. A record is put, its future is
completed some time later, then its results are emitted. The ordered queue emits in the order of the puts. The
unordered queue emits in the order of the completions, but no record ever passes a watermark.

Threads: a queue belongs to the mailbox thread, and so does completing the futures it handed out, because
that changes the queue. An answer that arrives on another thread travels as mail, and the mail completes the
future. Who needs the first answer to win at the moment it is given, before its mail has run (an answer
against a timeout), gives away a ResultFuture of its own, whose `_on_complete` sends that mail.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeAlias, TypeVar

from pipeline.streaming.elements import StreamElement, StreamRecord, Watermark

In = TypeVar("In")
Out = TypeVar("Out")


class ResultFuture(Generic[Out]):
    """Where the results of one input go: many, one or none, or an error. The first completion wins.

    Any thread may complete it and read it, and exactly one completion wins. A future that a queue handed out
    is to be completed on the mailbox thread all the same, for the sake of the queue.
    """

    __slots__ = ("_claim", "_done", "_error", "_results")

    def __init__(self) -> None:
        # The first completion deletes the claim, which is one atomic step: of any number of threads exactly one
        # succeeds, and the others get an AttributeError. A lock would be one more object for each record.
        self._claim = None
        self._results: tuple[Out, ...] = ()  # written once, by the thread that took the claim
        self._error: BaseException | None = None  # written once, by the thread that took the claim
        # Written after the two above: who reads True from any thread reads the outcome that belongs to it.
        self._done = False

    @property
    def results(self) -> tuple[Out, ...]:
        """The results; empty until done, and empty after an error."""
        return self._results

    @property
    def error(self) -> BaseException | None:
        """The error of an exceptional completion; None until done."""
        return self._error

    def is_done(self) -> bool:
        return self._done

    def complete(self, results: Iterable[Out]) -> bool:
        """Complete with `results`, copied; a single result is a list of one. Does not block.

        Returns whether this call won. After an earlier completion of either kind it changes nothing.

        Raises:
            TypeError: `results` is not iterable. The future stays open; so it does when iterating raises.
        """
        # Copy before the claim: an iterable that raises must not leave a future claimed and never done.
        copied = tuple(results)
        if not self._try_claim():
            return False
        self._results = copied
        self._done = True
        self._on_complete()
        return True

    def complete_exceptionally(self, error: BaseException) -> bool:
        """Complete with no results because of `error`. Does not block.

        Returns whether this call won. After an earlier completion of either kind it changes nothing.
        A queue only moves on and never raises the error. To fail the task is up to the operator.

        Raises:
            TypeError: `error` is not an exception. The future stays open.
        """
        # Anything else, None above all, would pass for a record without results: lost, and nobody sees it.
        if not isinstance(error, BaseException):
            raise TypeError(f"complete_exceptionally() needs an exception, got {error!r}. Wrap it in one.")
        if not self._try_claim():
            return False
        self._error = error
        self._done = True
        self._on_complete()
        return True

    def _try_claim(self) -> bool:
        try:
            del self._claim
        except AttributeError:
            return False
        return True

    def _on_complete(self) -> None:
        """Hook for subclasses: called once, when done, by the completion that won and in its thread."""

    def __repr__(self) -> str:
        if not self._done:
            outcome = "pending"
        elif self._error is not None:
            outcome = f"error={self._error!r}"
        else:
            outcome = f"results={self._results!r}"
        return f"<{type(self).__name__} {outcome}>"


class _RecordEntry(ResultFuture[Out], Generic[In, Out]):
    """A queued record and the future of its results in one object: the hot path makes no second one."""

    __slots__ = ("element",)

    def __init__(self, record: StreamRecord[In]) -> None:
        # What the future's __init__ does, without its call: there is one for each record.
        self._claim = None
        self._results = ()
        self._error = None
        self._done = False
        self.element = record

    def emit(self, output: Callable[[StreamElement[Out]], object]) -> None:
        timestamp_ms = self.element.timestamp_ms
        for result in self._results:
            output(StreamRecord(result, timestamp_ms))


class _WatermarkEntry(ResultFuture[Out]):
    """A queued watermark. It is born complete, so every completion comes too late."""

    __slots__ = ("element",)

    def __init__(self, watermark: Watermark) -> None:
        super().__init__()
        self.element = watermark
        del self._claim
        self._done = True

    def emit(self, output: Callable[[StreamElement[Out]], object]) -> None:
        output(self.element)


class StreamElementQueue(ABC, Generic[In, Out]):
    """What the ordered and the unordered queue have in common. Mailbox thread only; nothing here blocks.

    Every method but `values()` takes constant time (amortized), however much is queued.
    """

    __slots__ = ("_capacity",)

    def __init__(self, capacity: int) -> None:
        """Make an empty queue for at most `capacity` elements, watermarks included.

        Raises:
            ValueError: `capacity` is not positive.
        """
        if capacity <= 0:
            raise ValueError(f"capacity is {capacity}; a queue needs room for at least 1 element to take any in.")
        self._capacity = capacity

    @property
    def capacity(self) -> int:
        return self._capacity

    @abstractmethod
    def try_put(self, element: StreamElement[In]) -> ResultFuture[Out] | None:
        """Append `element`; None when the queue is full, and then it was not kept.

        The future of a record is still to be completed, that of a watermark already is.
        """

    @abstractmethod
    def has_completed_elements(self) -> bool:
        """Whether `emit_completed_element` would take an element off the queue now."""

    @abstractmethod
    def emit_completed_element(self, output: Callable[[StreamElement[Out]], object]) -> None:
        """Take the next completed element off the queue and call `output` with what came of it.

        For a record that is each of its results, at the timestamp of the record; for a watermark it is the
        watermark. Without a completed element nothing happens.

        The element has left the queue before the first call, so `output` may use the queue, and nothing is
        emitted twice. An error of `output` propagates and loses the rest of that element's results: the task
        has to fail and start over from its last snapshot.
        """

    @abstractmethod
    def emit_completed_elements(self, output: Callable[[StreamElement[Out]], object], most: int) -> int:
        """`emit_completed_element` up to `most` times, as long as there is one; returns how often."""

    @abstractmethod
    def values(self) -> list[StreamElement[In]]:
        """The input elements not yet emitted, completed or not, as a new list: what a snapshot stores."""

    @abstractmethod
    def size(self) -> int:
        """How many elements count towards the capacity: all that are not yet emitted, watermarks included."""

    def is_empty(self) -> bool:
        return self.size() == 0

    def is_full(self) -> bool:
        return self.size() >= self._capacity


_OrderedEntry: TypeAlias = _RecordEntry[In, Out] | _WatermarkEntry[Out]


class OrderedStreamElementQueue(StreamElementQueue[In, Out]):
    """Emits in the order of the puts: only a completed head leaves. `values()` are in that order too."""

    __slots__ = ("_entries",)

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._entries: deque[_OrderedEntry[In, Out]] = deque()  # mailbox thread only

    def try_put(self, element: StreamElement[In]) -> ResultFuture[Out] | None:
        if len(self._entries) >= self._capacity:
            return None
        entry: _OrderedEntry[In, Out] = (
            _WatermarkEntry(element) if isinstance(element, Watermark) else _RecordEntry(element)
        )
        self._entries.append(entry)
        return entry

    def has_completed_elements(self) -> bool:
        return bool(self._entries) and self._entries[0]._done

    def emit_completed_element(self, output: Callable[[StreamElement[Out]], object]) -> None:
        if self.has_completed_elements():
            self._entries.popleft().emit(output)

    def emit_completed_elements(self, output: Callable[[StreamElement[Out]], object], most: int) -> int:
        entries = self._entries
        emitted = 0
        while emitted < most and entries and entries[0]._done:
            emitted += 1
            entries.popleft().emit(output)
        return emitted

    def values(self) -> list[StreamElement[In]]:
        return [entry.element for entry in self._entries]

    def size(self) -> int:
        return len(self._entries)


class _Segment(Generic[In, Out]):
    """The records between two watermarks, or one watermark. Mailbox thread only.

    An entry is in exactly one of the two fields.
    """

    __slots__ = ("completed", "incomplete")

    def __init__(self) -> None:
        self.completed: deque[_UnorderedEntry[In, Out]] = deque()  # in the order of the completions
        # A dict is the set that remembers the order of the puts, which makes `values()` reproducible.
        self.incomplete: dict[_SegmentEntry[In, Out], None] = {}

    def is_empty(self) -> bool:
        return not self.completed and not self.incomplete


class _SegmentEntry(_RecordEntry[In, Out]):
    """A record entry that moves over inside its segment when it is completed, once as completions are."""

    __slots__ = ("_segment",)

    def __init__(self, record: StreamRecord[In], segment: _Segment[In, Out]) -> None:
        self._claim = None
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
    """Emits in the order of the completions between two watermarks; no record passes a watermark.

    `values()` go segment by segment: first the completed records in the order of their completions, then the
    others in the order of their puts. (Flink leaves the order of the latter open.)
    """

    __slots__ = ("_segments", "_size")

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        # Mailbox thread only. Never empty; the last segment takes the records, and it alone may be empty.
        # So the first segment decides alone whether there is something to emit.
        self._segments: deque[_Segment[In, Out]] = deque((_Segment(),))
        self._size = 0  # mailbox thread only; == the entries of all segments

    def try_put(self, element: StreamElement[In]) -> ResultFuture[Out] | None:
        if self._size >= self._capacity:
            return None
        entry: _UnorderedEntry[In, Out] = (
            self._append_watermark(element)
            if isinstance(element, Watermark)
            else _SegmentEntry(element, self._segments[-1])
        )
        self._size += 1
        return entry

    def _append_watermark(self, watermark: Watermark) -> _WatermarkEntry[Out]:
        # An empty last segment becomes the watermark's own: left in the chain, it would block what follows.
        if not self._segments[-1].is_empty():
            self._segments.append(_Segment())
        entry: _WatermarkEntry[Out] = _WatermarkEntry(watermark)
        self._segments[-1].completed.append(entry)
        self._segments.append(_Segment())
        return entry

    def has_completed_elements(self) -> bool:
        return bool(self._segments[0].completed)

    def emit_completed_element(self, output: Callable[[StreamElement[Out]], object]) -> None:
        segment = self._segments[0]
        if not segment.completed:
            return
        entry = segment.completed.popleft()
        self._size -= 1
        if len(self._segments) > 1 and segment.is_empty():
            self._segments.popleft()
        entry.emit(output)

    def emit_completed_elements(self, output: Callable[[StreamElement[Out]], object], most: int) -> int:
        emitted = 0
        while emitted < most and self._segments[0].completed:
            emitted += 1
            self.emit_completed_element(output)
        return emitted

    def values(self) -> list[StreamElement[In]]:
        elements: list[StreamElement[In]] = []
        for segment in self._segments:
            elements.extend(entry.element for entry in segment.completed)
            elements.extend(entry.element for entry in segment.incomplete)
        return elements

    def size(self) -> int:
        return self._size
