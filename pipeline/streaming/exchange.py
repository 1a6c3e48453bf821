"""What the caller's thread and the task's thread exchange: chunks of values one way, results the other, and wake-ups.

Each side appends to one deque and pops from the other. A side that finds nothing sleeps until it is woken: the caller
by a Wakeup, the mailbox thread by the futures of its input and output.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

from pipeline.streaming.elements import StreamElement, StreamRecord
from pipeline.streaming.task.inputs import AVAILABLE, END, MORE, NOTHING, ElementOutput, InputStatus
from pipeline.streaming.task.task_chain import StreamTaskOutput

In = TypeVar("In")
Out = TypeVar("Out")


class Wakeup:
    """Wakes one thread. Notifications before the thread wakes count as one."""

    __slots__ = ("_is_notified", "_wakes")

    def __init__(self) -> None:
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        # Cleared by the waiter before it checks for work, read by notifiers after they have added some.
        self._is_notified = False

    def notify(self) -> None:
        if not self._is_notified:
            self._is_notified = True
            self._wakes.put(None)

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the next notification, or return at once if one came since the last wait; then check for work.

        After `timeout_s` it returns without one.
        """
        with suppress(queue.Empty):
            self._wakes.get(timeout=timeout_s)
            self._is_notified = False


class ChunkInput(Generic[In]):
    """The task's input: the values of the caller's chunks."""

    def __init__(self, ahead: int, caller: Wakeup) -> None:
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
        # Read without the lock: the mailbox thread sets it under the lock, and checks for chunks after that.
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
            return MORE
        chunks = self.chunks
        if not chunks:
            # In this order: a chunk put before the end is seen.
            return END if self._is_ended and not chunks else NOTHING
        self._values = iter(chunks.popleft())
        if len(chunks) == self._room_at:
            self._caller.notify()
        return MORE

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

    def __init__(self, notify_at: int, most: int, caller: Wakeup) -> None:
        self.ready: deque[Out] = deque()  # the mailbox thread appends, the caller pops; both are atomic
        self.notify_at = notify_at  # the caller is woken for so many; only the caller's thread writes it
        self._most = most  # never changes
        self._caller = caller  # never changes
        self._lock = threading.Lock()  # leaf lock
        self._room: Future[None] | None = None  # guarded by _lock; the mailbox thread waits until there is room

    def __call__(self, element: StreamElement[Any]) -> None:
        if type(element) is StreamRecord:
            ready = self.ready
            ready.append(element.value)
            if len(ready) >= self.notify_at:
                self._caller.notify()

    def is_available(self) -> bool:
        return len(self.ready) < self._most

    def available_future(self) -> Future[None] | None:
        if len(self.ready) < self._most:
            return None
        with self._lock:
            room = self._room = self._room or Future()
        if len(self.ready) < self._most:  # the caller took results before it could see _room
            self.make_room()
        return room

    def take(self, most: int) -> list[Out]:
        """Caller's thread: take up to `most` results."""
        ready = self.ready
        taken = [ready.popleft() for _ in range(min(len(ready), most))]
        # Read without the lock: the mailbox thread checks `ready` again after it sets _room.
        if self._room is not None and len(ready) < self._most:
            self.make_room()
        return taken

    def make_room(self) -> None:
        """Any thread: wake the mailbox thread if it waits for room."""
        with self._lock:
            room, self._room = self._room, None
        if room is not None:
            room.set_result(None)
