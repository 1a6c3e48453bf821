"""Inputs of a stream task, after Flink's PushingAsyncDataInput and DataInputStatus.

Threads: only the task's mailbox thread calls an input, except for what the input offers to its producers. An input
never blocks: it returns that nothing is available, and completes a future when that changes.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar

from dispatcher.util.functions import require_methods
from pipeline.streaming.elements import StreamElement, StreamRecord, Watermark
from pipeline.streaming.errors import CheckpointError, InputClosedError
from pipeline.streaming.number_checks import require_number
from pipeline.streaming.task.checkpoints import elements_from_lists, elements_to_lists

T = TypeVar("T")
S = TypeVar("S")

ElementOutput = Callable[[StreamElement[Any]], object]
"""Called with each element, on the mailbox thread."""


class InputStatus(Enum):
    """What an input has left after `emit_next`."""

    MORE_AVAILABLE = "MORE_AVAILABLE"
    NOTHING_AVAILABLE = "NOTHING_AVAILABLE"
    END_OF_INPUT = "END_OF_INPUT"


MORE: Final = InputStatus.MORE_AVAILABLE  # looking up an Enum's member for each record is slow
NOTHING: Final = InputStatus.NOTHING_AVAILABLE
END: Final = InputStatus.END_OF_INPUT

AVAILABLE: Final[Future[None]] = Future()
"""A completed future: available now."""
AVAILABLE.set_result(None)


class StreamTaskInput(Protocol):
    """The input of a StreamTask. All methods are called on the task's mailbox thread."""

    def emit_next(self, output: ElementOutput, /) -> InputStatus:
        """Pass the next element, if there is one, to `output`, and return what is left. Never blocks.

        Not called again after END_OF_INPUT.
        """

    def available(self) -> Future[None]:
        """Return a future that any thread completes when `emit_next` could have an element. Its error fails the task.

        Called after NOTHING_AVAILABLE. The future is already complete if there's an element by then.
        """

    def snapshot_state(self) -> Any:
        """Return the position behind all elements emitted so far, as a value accepted by the storage's serializer."""

    def initialize_state(self, state: Any, /) -> None:
        """Resume from a position, before the first `emit_next`. Not called without a checkpoint."""

    def close(self) -> None:
        """Release connections. Called once, at the end of the task, however it ends."""


class IterableInput(Generic[T]):
    """The values, records and watermarks of an iterable. A value becomes a record without a timestamp.

    Its position is the number of elements read. A restored task skips that many, so your iterable must yield the same
    ones again. Since the mailbox waits meanwhile, reading it must not block for long. For a source that blocks, use a
    SourceStreamTask.
    """

    def __init__(self, elements: Iterable[T | StreamElement[T]]) -> None:
        require_methods(elements, "elements", "an iterable", "__iter__")
        self._elements = iter(elements)  # mailbox thread only, like _read
        self._read = 0

    def emit_next(self, output: ElementOutput, /) -> InputStatus:
        """Hand the next element to the output."""
        for element in self._elements:
            self._read += 1
            output(_as_element(element))
            return MORE
        return END

    def available(self) -> Future[None]:
        """Return a future that's done once there's an element."""
        return AVAILABLE

    def snapshot_state(self) -> int:
        """Return how many elements were read."""
        return self._read

    def initialize_state(self, state: Any, /) -> None:
        """Skip the elements read before. Raises CheckpointError if the iterable has fewer."""
        if type(state) is not int:
            raise CheckpointError(
                f"the input counts elements, and its state is {state!r}: another kind of input took it"
            )
        self._read = sum(1 for _ in itertools.islice(self._elements, state))
        if self._read < state:
            raise CheckpointError(
                f"the input has {self._read} elements, but {state} had been read when the checkpoint was taken. "
                "Give the task the same input, or an empty folder for its checkpoints."
            )

    def close(self) -> None:
        """Close the iterable's iterator."""
        close = getattr(self._elements, "close", None)  # a generator releases connections in its finally blocks
        if close is not None:
            close()


class QueueInput(Generic[T]):
    """A bounded queue that other threads fill: `put` waits for room, and `end` ends it.

    A checkpoint holds the queued elements, so you don't need to put them again after a restart. Elements put after it
    and not processed are lost with the process. If you need them, put them again.
    """

    def __init__(self, capacity: int = 1000) -> None:
        require_number("capacity", capacity, least=1, whole=True)
        self._capacity = capacity  # never changes
        # Held by producers in a put or an atomic block, and by an idle or snapshotting mailbox thread.
        # Called under it: a producer's code in an atomic block, the function that returns its position, and the
        # callbacks of _waiting, which send mail.
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)  # never changes
        # Producers append under _lock; the mailbox thread pops without it, with one call.
        self._queue: deque[StreamElement[Any]] = deque()
        self._depth = 0  # nesting of atomic blocks; guarded by _lock
        self._blocked = 0  # producers that wait for room; written under _lock, before they check for room
        self._waiting: Future[None] | None = None  # set by an idle mailbox thread; guarded by _lock
        self._ended = False  # no more puts; guarded by _lock
        # Makes the error that every put raises; guarded by _lock.
        self._closed: Callable[[], BaseException] | None = None

    def put(self, element: T | StreamElement[T]) -> None:
        """Append a value, record or watermark, waiting while the queue is full. For any thread but the task's.

        Raises:
            InputClosedError: the input was ended, or its task is over. The element was not kept.
        """
        with self._lock:  # atomically() inlined, in half the time
            self._check_put()
            self._queue.append(_as_element(element))
            if self._depth == 0 and self._waiting is not None:
                self._wake()

    @contextmanager
    def atomically(self) -> Iterator[None]:
        """Take no checkpoint inside this block, to keep the elements put and the position noted in it together.

        This waits for room only on entry, so a `put` inside can exceed the capacity. If it waited there, a checkpoint
        would wait for the producer, which waits for the task. You can nest blocks.

        Raises:
            InputClosedError: as `put`.
        """
        with self._lock:
            self._check_put()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0 and self._queue:
                    self._wake()

    def end(self) -> None:
        """End the input. Queued elements are still processed. Thread-safe. Doesn't block."""
        with self._lock:
            if self._closed is None:
                self._closed = lambda: InputClosedError("the input was ended: put everything before end()")
            self._ended = True
            self._room.notify_all()
            self._wake()

    def interrupt(self, error: Callable[[], BaseException]) -> None:
        """Make each `put` raise `error()` from now on, even a waiting one. Thread-safe. Doesn't block."""
        with self._lock:
            self._closed = error
            self._room.notify_all()

    def emit_next(self, output: ElementOutput, /) -> InputStatus:
        """Hand the next element to the output."""
        try:
            element = self._queue.popleft()
        except IndexError:
            return self._nothing()
        if self._blocked and 2 * len(self._queue) <= self._capacity:  # not after each pop: thread switches are costly
            with self._lock:
                self._room.notify_all()
        output(element)
        return MORE

    def available(self) -> Future[None]:
        """Return a future that's done once there's an element."""
        with self._lock:
            if self._queue or self._ended:
                return AVAILABLE
            if self._waiting is None:
                self._waiting = Future()
            return self._waiting

    def snapshot_state(self) -> Any:
        """Return the queued elements."""
        return self.snapshot_with(lambda: None)[0]

    def snapshot_with(self, take: Callable[[], S]) -> tuple[list[Any], S]:
        """Return the state and the result of `take()`, both from outside all atomic blocks."""
        with self._lock:
            return elements_to_lists(self._queue), take()

    def initialize_state(self, state: Any, /) -> None:
        """Begin with the elements of a checkpoint."""
        if type(state) is not list:
            raise CheckpointError(f"the input is a queue, and its state is {state!r}: another kind of input took it")
        with self._lock:
            self._queue.extendleft(reversed(elements_from_lists(state)))

    def close(self) -> None:
        """Accept no more elements."""
        self.interrupt(lambda: InputClosedError("the task of this input is over; put nothing more into it"))

    def _nothing(self) -> InputStatus:
        with self._lock:
            if self._queue:
                return MORE
            return END if self._ended else NOTHING

    def _check_put(self) -> None:
        """Wait for room, unless inside an atomic block; raise if the queue is closed."""
        if self._depth == 0 and len(self._queue) >= self._capacity:
            self._wait_for_room()
        if self._closed is not None:
            raise self._closed()

    def _wait_for_room(self) -> None:
        # Incremented before the queue is checked: the mailbox thread sees it after a pop, or that pop is seen here.
        self._blocked += 1
        try:
            while self._closed is None and len(self._queue) >= self._capacity:
                self._room.wait()
        finally:
            self._blocked -= 1

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.set_result(None)


def _as_element(value: Any) -> StreamElement[Any]:
    kind = type(value)
    return value if kind is StreamRecord or kind is Watermark else StreamRecord(value)
