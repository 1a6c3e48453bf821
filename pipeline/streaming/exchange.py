"""What the two threads of an iteration share: chunks of values on the way in, results on the way out.

Each side appends to one deque and pops from the other. Who finds nothing sleeps until it is woken: the caller by a
Bell, the mailbox thread by the futures of its input and its output.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from pipeline.streaming.elements import StreamElement, StreamRecord
from pipeline.streaming.task.inputs import AVAILABLE, ElementOutput, InputStatus
from pipeline.streaming.task.task_chain import StreamTaskOutput

In = TypeVar("In")
Out = TypeVar("Out")

_MORE: Final = InputStatus.MORE_AVAILABLE
_NOTHING: Final = InputStatus.NOTHING_AVAILABLE
_END: Final = InputStatus.END_OF_INPUT


class Bell:
    """Wakes one thread. Any number of rings before it looks are one."""

    __slots__ = ("_is_rung", "_wakes")

    def __init__(self) -> None:
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Cleared by the sleeper before it looks at what there is, read by ringers after they have brought something.
        self._is_rung = False

    def ring(self) -> None:
        if not self._is_rung:
            self._is_rung = True
            self._wakes.put(None)

    def sleep(self) -> None:
        """Until the bell is rung, or at once if it has been since the last time; then look at everything."""
        self._wakes.get()
        self._is_rung = False


class ChunkInput(Generic[In]):
    """The task's input: the values of the chunks that the caller has brought."""

    def __init__(self, ahead: int, caller: Bell) -> None:
        self.chunks: deque[Iterable[In]] = deque()  # the caller appends, the mailbox thread pops; both are atomic
        self._room_at = ahead // 2  # never changes
        self._caller = caller  # never changes
        self._values: Iterator[In] = iter(())  # mailbox thread only
        self._lock = threading.Lock()  # leaf lock
        self._is_ended = False  # guarded by _lock
        self._waiting: Future[None] | None = None  # guarded by _lock; the mailbox thread found nothing

    def put(self, chunk: Iterable[In]) -> None:
        """Caller's thread."""
        self.chunks.append(chunk)
        # Without the lock: the mailbox thread sets it, under the lock, only if it finds no chunk after that.
        if self._waiting is not None:
            self._wake()

    def end(self) -> None:
        """Caller's thread: no more chunks."""
        with self._lock:
            self._is_ended = True
        self._wake()

    def emit_next(self, output: ElementOutput, /) -> InputStatus:
        for value in self._values:
            output(StreamRecord(value))
            return _MORE
        chunks = self.chunks
        if not chunks:
            # In this order: what is put before the end is seen after it.
            return _END if self._is_ended and not chunks else _NOTHING
        self._values = iter(chunks.popleft())
        if len(chunks) == self._room_at:
            self._caller.ring()
        return _MORE

    def available(self) -> Future[None]:
        with self._lock:
            if self._is_ended:
                return AVAILABLE
            waiting = self._waiting = Future()
        if self.chunks:
            self._wake()
        return waiting

    def snapshot_state(self) -> Any:
        raise NotImplementedError("values that are iterated are not checkpointed")

    def initialize_state(self, state: Any, /) -> None:
        raise NotImplementedError("values that are iterated are not checkpointed")

    def close(self) -> None:
        pass

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.set_result(None)


class ResultOutput(StreamTaskOutput, Generic[Out]):
    """The task's output: results that the caller has not taken yet."""

    def __init__(self, ring_at: int, most: int, caller: Bell) -> None:
        self.ready: deque[Out] = deque()  # the mailbox thread appends, the caller pops; both are atomic
        self._ring_at = ring_at  # never changes
        self._most = most  # never changes
        self._caller = caller  # never changes
        self._lock = threading.Lock()  # leaf lock
        self._room: Future[None] | None = None  # guarded by _lock; the mailbox thread waits until there is room

    def __call__(self, element: StreamElement[Any]) -> None:
        if type(element) is StreamRecord:
            ready = self.ready
            ready.append(element.value)
            if len(ready) >= self._ring_at:
                self._caller.ring()

    def is_available(self) -> bool:
        return len(self.ready) < self._most

    def available_future(self) -> Future[None] | None:
        if len(self.ready) < self._most:
            return None
        with self._lock:
            room = self._room = self._room or Future()
        if len(self.ready) < self._most:  # taken in between, by a caller that saw nobody waiting
            self.make_room()
        return room

    def take(self, most: int) -> list[Out]:
        """Caller's thread: up to that many results."""
        ready = self.ready
        taken = [ready.popleft() for _ in range(min(len(ready), most))]
        # Without the lock: who waits looks at what is ready once more after that.
        if self._room is not None and len(ready) < self._most:
            self.make_room()
        return taken

    def make_room(self) -> None:
        """Any thread: end the wait of the mailbox thread, if it waits."""
        with self._lock:
            room, self._room = self._room, None
        if room is not None:
            room.set_result(None)
