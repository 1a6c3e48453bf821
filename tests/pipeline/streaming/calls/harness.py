"""One AsyncWaitOperator on the test's own thread, after Flink's OneInputStreamOperatorTestHarness.

The thread that makes a Harness is its mailbox thread; time is a ManualClock, and mail runs only when the test says so
or when the operator yields. A HandFunction's calls run on the operator's host, and end when the test answers them,
from any thread.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from dispatcher.mailbox import MailboxExecutor, ManualClock, ProcessingTimeService, TaskMailbox
from pipeline.streaming.calls.functions import AsyncFunction
from pipeline.streaming.calls.wait_operator import AsyncWaitOperator
from pipeline.streaming.elements import StreamElement, StreamRecord, Watermark

TIMEOUT_S = 60.0
"""For waits that succeed at once unless something is broken."""

MOST_IDLES = 1000
"""More things than any test lets happen in one wait for mail."""

TURNS = 12
"""More turns than a loop needs to begin the next call, or to hand over the answer of one."""


def until(condition: Callable[[], Any], what: str = "the condition") -> None:
    """Let other threads run until `condition()` holds; fails the test if it never does."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} has not come about in {TIMEOUT_S} s"
        time.sleep(0)


def assert_in_a_forked_child(check: Callable[[], None]) -> None:
    """Run `check` in a forked child, which has only the caller's thread; fails if it raises or does not end in time."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: of forks with threads, which is the point
        child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(TIMEOUT_S))  # ends a child that hangs
            check()
            os.write(writer, b"passed")
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as file:
        assert file.read().decode() == "passed"


class HandCall:
    """A call of a HandFunction that is under way. Any thread may answer it; the first answer counts."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.claimed = False  # by the test that answers it
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[list[Any]] = self._loop.create_future()  # the loop's thread only

    def complete(self, *results: Any) -> None:
        self.give(list(results))

    def give(self, returned: Any) -> None:
        """Have the function return that, whatever it is."""
        self._give(lambda: self.answer.set_result(returned))

    def fail(self, error: BaseException) -> None:
        self._give(lambda: self.answer.set_exception(error))

    def is_open(self) -> bool:
        """Nobody has answered or cancelled it. Any thread; a moment's truth."""
        return not self.claimed and not self.answer.done()

    def is_cancelled(self) -> bool:
        return self.answer.cancelled()

    def _give(self, set_answer: Callable[[], None]) -> None:
        self.claimed = True

        def give() -> None:
            if not self.answer.done():
                set_answer()

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(give)


class HandFunction(AsyncFunction[Any, Any]):
    """A function whose calls the test answers. With `on_timeout`, that gives the results of a call that timed out."""

    def __init__(self, on_timeout: Callable[[Any], list[Any]] | None = None) -> None:
        self.calls: list[HandCall] = []  # appended by the loop's thread, in the order of the calls
        self.opened = self.closed = 0
        self.timeouts: list[Any] = []  # the values for which timeout() was called
        self._on_timeout = on_timeout
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    async def async_invoke(self, value: Any) -> list[Any]:
        call = HandCall(value)
        self.calls.append(call)
        return await call.answer

    def timeout(self, value: Any) -> list[Any]:
        self.timeouts.append(value)
        return super().timeout(value) if self._on_timeout is None else self._on_timeout(value)

    def settle(self) -> None:
        """Wait until the loop has nothing left to do: what was submitted has begun, what was answered is mail."""
        loop = self._loop
        if loop is None:
            return
        until(lambda: loop.is_running() or loop.is_closed(), "the loop")  # it pauses after `open`
        if loop.is_running():
            asyncio.run_coroutine_threadsafe(self._let_others_run(), loop).result(TIMEOUT_S)

    async def _let_others_run(self) -> None:
        turns = 0
        while turns < TURNS:
            calls = len(self.calls)
            await asyncio.sleep(0)
            turns = turns + 1 if calls == len(self.calls) else 0


class Parking:
    """What the mailbox thread waits on. Without mail in time, or without any prospect of it, it fails the test."""

    def __init__(self, mailbox: TaskMailbox, idle: Callable[[], None] | None) -> None:
        self._lock = mailbox.parking.lock
        self.release = self._lock.release
        self._idle = idle

    def acquire(self, blocking: bool = True) -> bool:
        if not blocking or self._idle is None:
            got = self._lock.acquire(timeout=TIMEOUT_S) if blocking else self._lock.acquire(blocking=False)
            assert got or not blocking, f"the mailbox thread has waited {TIMEOUT_S} s for mail"
            return got
        for _ in range(MOST_IDLES):
            if self._lock.acquire(blocking=False):
                return True
            self._idle()
        raise AssertionError("the mailbox thread waits, and whatever happens brings it no mail")


class Switch:
    """A downstream that takes elements or does not, as the test says: an operator's `output_availability`."""

    def __init__(self) -> None:
        self.future: Future[None] | None = None

    def __call__(self) -> Future[None] | None:
        return self.future

    def turn_off(self) -> None:
        self.future = Future()

    def turn_on(self) -> None:
        future, self.future = self.future, None
        assert future is not None
        future.set_result(None)


class Harness:
    """An operator, its mailbox, its clock and its output. Use it as a context: that opens and closes the operator.

    `idle` is called each time that the mailbox thread would wait: it has to bring mail, or to fail the test. `timers`
    are real ones in place of the clock.
    """

    def __init__(
        self,
        function: Any = None,
        *,
        timeout_ms: int = 1000,
        capacity: int = 10,
        state: Iterable[StreamElement[Any]] = (),
        idle: Callable[[], None] | None = None,
        priority: int = 0,
        timers: ProcessingTimeService | None = None,
        **options: Any,
    ) -> None:
        self.function: Any = HandFunction() if function is None else function
        self.mailbox = TaskMailbox()
        self.mailbox.parking.lock = Parking(self.mailbox, idle)  # type: ignore[assignment]
        self.executor = MailboxExecutor(self.mailbox, priority)
        self.clock = ManualClock()
        self.output: list[StreamElement[Any]] = []
        self.operator = AsyncWaitOperator(
            self.function,
            timeout_ms=timeout_ms,
            capacity=capacity,
            mailbox_executor=self.executor,
            processing_time_service=timers or self.clock,
            output=options.pop("output", self.output.append),
            **options,
        )
        self._state = list(state)

    def __enter__(self) -> Harness:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.operator.close()

    def open(self) -> None:
        if self._state:
            self.operator.initialize_state(self._state)
        self.operator.open()

    def process(self, *values: Any, at: int | None = None) -> None:
        for value in values:
            self.operator.process_element(StreamRecord(value, at))

    def watermark(self, timestamp_ms: int) -> None:
        self.operator.process_watermark(Watermark(timestamp_ms))

    def settle(self) -> None:
        if isinstance(self.function, HandFunction):
            self.function.settle()

    def run_mail(self) -> None:
        """Run all mail, and what it brings; not what is still to come from the host."""
        while self.executor.try_yield():
            pass

    def run_until(self, condition: Callable[[], Any]) -> None:
        """Run mail, waiting for it, until `condition()` holds."""
        while not condition():
            self.executor.yield_()

    def advance(self, ms: int) -> None:
        """Let time pass, after the calls submitted have begun, and everything that comes of it."""
        self.settle()
        self.clock.advance(ms)
        self.run_mail()
        self.settle()
        self.run_mail()

    def called(self) -> list[Any]:
        """The values of all calls made so far, in the order of the calls."""
        self.settle()
        return [call.value for call in self.function.calls]

    def call(self, value: Any) -> HandCall:
        """The first call of `value` that is open."""

        def found() -> list[HandCall]:
            return [call for call in list(self.function.calls) if call.value == value and call.is_open()]

        until(found, f"an open call of {value!r}")
        return found()[0]

    def complete(self, value: Any, *results: Any) -> None:
        """Answer the open call of `value`, and wait until that is mail; it has not run on return."""
        self.call(value).complete(*results)
        self.settle()

    def fail(self, value: Any, error: BaseException) -> None:
        self.call(value).fail(error)
        self.settle()

    def answer(self, value: Any, *results: Any) -> None:
        """As `complete`, and run all mail."""
        self.complete(value, *results)
        self.run_mail()

    def answer_error(self, value: Any, error: BaseException) -> None:
        self.fail(value, error)
        self.run_mail()

    def values(self) -> list[Any]:
        """What was emitted: the values of records, and watermarks as they are."""
        return [element.value if isinstance(element, StreamRecord) else element for element in self.output]

    def on_another_thread(self, action: Callable[[], Any]) -> threading.Thread:
        thread = threading.Thread(target=action, daemon=True)
        thread.start()
        return thread
