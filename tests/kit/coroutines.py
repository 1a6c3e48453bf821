"""What tests of `async def` handlers share: a loop in a thread, and a handler whose coroutines the test ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dispatcher import Event

from . import TIMEOUT_S, Work


class Keyed(Event[Work]):
    """An event with a key and a number."""

    __slots__ = ("entity", "lock_key", "number", "redelivered")

    def __init__(self, number: int = 0, key: Any = None, type: Work = Work.DO) -> None:
        super().__init__(type, 0.0)
        self.number = number
        self.lock_key = key
        self.entity = f"job_{number}"


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs in a thread of its own, and ends with its tasks."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="the user's loop", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        if thread.is_alive():
            asyncio.run_coroutine_threadsafe(_end_tasks(), loop).result(TIMEOUT_S)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(TIMEOUT_S)
        if not loop.is_closed():
            loop.close()


async def _end_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Latched:
    """An `async def` handler. Each coroutine waits until the test ends it, and may then raise."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.changed = threading.Condition()
        self.begun: list[int] = []  # this and the next two: guarded by `changed`
        self.ended: list[int] = []
        self._ends: dict[int, asyncio.Future[None]] = {}
        self.then: Callable[[Keyed], Any] | None = None
        """Called on the loop after the wait; what it returns is awaited if it can be."""

    async def handle(self, event: Keyed) -> None:
        end = self.loop.create_future()
        with self.changed:
            self.begun.append(event.number)
            self._ends[event.number] = end
            self.changed.notify_all()
        try:
            await end
            if self.then is not None:
                result = self.then(event)
                if asyncio.iscoroutine(result):
                    await result
        finally:
            with self.changed:
                self.ended.append(event.number)
                self.changed.notify_all()

    def await_begun(self, *numbers: int) -> None:
        """Wait until the coroutines of these events have begun."""
        with self.changed:
            assert self.changed.wait_for(lambda: set(numbers) <= set(self.begun), TIMEOUT_S), self.begun

    def end(self, *numbers: int, error: BaseException | None = None) -> None:
        """Let the coroutines of these events end, one after another, each once it has begun."""
        for number in numbers:
            self.await_begun(number)
            self.loop.call_soon_threadsafe(self._end, number, error)

    def _end(self, number: int, error: BaseException | None) -> None:
        future = self._ends[number]
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
