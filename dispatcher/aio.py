"""For daemons built on asyncio: post, wait and ask from the event loop without blocking it; `async def` handlers.

A plain handler runs on the handler thread, and reaches the loop through `loop.call_soon_threadsafe`. An `async def`
handler runs on the loop: `AsyncDispatcher(loop=loop)`, or `AsyncioHandler` for more control.

Nothing here runs in the loop's default executor, so it goes on whatever your functions do there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from time import monotonic
from typing import Any, TypeVar, overload

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.dispatching.stopping import check_may_wait
from dispatcher.errors import EventRefusedError, InvalidTypeError, JournalError, QueueFullError
from dispatcher.event import A, Answered, AsyncioHandler, HasType
from dispatcher.groups import MultiDispatcher
from dispatcher.posting_service import Core, PostingService, core_of
from dispatcher.queue.asks import Ask, Asks
from dispatcher.queue.inbox import Inbox
from dispatcher.queue.later import post_later
from dispatcher.scopes import Scope
from dispatcher.supervision.loop_signals import run_until_signal
from dispatcher.util.foreign import text_of
from dispatcher.util.functions import require_kind
from dispatcher.util.rate_limit import RateLimit
from dispatcher.util.threads import in_own_thread

__all__ = ["AsyncioHandler", "RateLimit", "ask", "await_drained", "post", "run_until_signal", "stop", "submit"]

T = TypeVar("T")


async def post(dispatcher: AsyncDispatcher | MultiDispatcher | Scope, event: HasType[Enum]) -> bool:
    """Post as `dispatcher.post(event)` does, and raise the same errors, without blocking the loop.

    It waits for room in a full queue and, in write-ahead mode, for the disk. Tasks waiting for the disk share a write
    and an fsync.

    If you await posts one after another, they're handled in that order. Tasks and threads that wait for room are woken
    in order of arrival. If you cancel the waiting task, the event is withdrawn while it waits for room or, in
    write-ahead mode, for others to be written. After that, the post goes on.
    """
    core, event = _core_and_event(dispatcher, event)
    queue = core.queue
    answer = _post_if_room(queue, event)
    if answer is None:
        answer = await _once_room(queue, lambda: _post_if_room(queue, event))
        if answer is None:
            return queue.reject("timeout")
    if isinstance(answer, bool):
        return answer
    try:
        return await asyncio.wrap_future(answer)
    except EventRefusedError:
        return False
    finally:
        del answer  # it refers to the error, whose traceback leads here and to the event


def _post_if_room(queue: Inbox, event: Any) -> bool | Future[bool] | None:
    """Post without waiting. True or False: accepted or refused; a future: for that answer; None: there is no room."""
    if not queue.write_ahead.keeps(event):
        try:
            return queue.post_if_room(event)
        except QueueFullError:
            return None
    later = post_later(queue, event, wait=False)
    return None if later.done() and isinstance(later.exception(), QueueFullError) else later


@overload
async def ask(
    dispatcher: AsyncDispatcher | MultiDispatcher | Scope, event: Answered[A], timeout: float | None = None
) -> A: ...
@overload
async def ask(
    dispatcher: AsyncDispatcher | MultiDispatcher | Scope, event: HasType[Enum], timeout: float | None = None
) -> Any: ...
async def ask(dispatcher: AsyncDispatcher | MultiDispatcher | Scope, event: Any, timeout: float | None = None) -> Any:
    """Post an event without blocking the loop, and return what its handler returns, or raise what it raises.

    After `timeout` seconds, or when you cancel the waiting task, the event is withdrawn, unless its handling has begun.
    By default there's no timeout. Otherwise this works as `dispatcher.ask`, and raises the same errors.

    Raises:
        TimeoutError: the handler hasn't returned in time.
        EventRefusedError, EventDiscardedError: the event wasn't handled to the end.
    """
    core, event = _core_and_event(dispatcher, event)
    if timeout is None:
        future = await _answered(core, event)
    else:
        async with asyncio.timeout(timeout):
            future = await _answered(core, event)
    try:
        return future.result()
    finally:
        del future  # it refers to the error, whose traceback leads here and to the event


def _core_and_event(dispatcher: AsyncDispatcher | MultiDispatcher | Scope, event: Any) -> tuple[Core, Any]:
    owner: Any = dispatcher
    if isinstance(dispatcher, Scope):
        owner, event = dispatcher.dispatcher, dispatcher.scoped(event)
    _check(owner)
    return core_of(owner, event), event


def _check(dispatcher: object) -> None:
    """Raises TypeError: it is another dispatcher, such as one of a test."""
    if not isinstance(dispatcher, PostingService):
        raise InvalidTypeError(
            f"aio takes an AsyncDispatcher or a MultiDispatcher, not {text_of(dispatcher)}. On an event loop, post to "
            "an InlineDispatcher with `await asyncio.to_thread(dispatcher.post, event)`."
        )


async def _answered(core: Core, event: Any) -> Ask:
    """Ask, and wait until the future is done. A cancellation withdraws the event.

    `asyncio.wrap_future` would never end if the error were a StopIteration.
    """
    asks, queue = core.asks, core.queue
    ask = _ask_if_room(asks, event) or await _once_room(queue, lambda: _ask_if_room(asks, event))
    if ask is None:
        queue.reject("timeout")
        raise EventRefusedError(queue.name, "timeout")
    wake_ups = _wake_ups()
    is_answered: asyncio.Future[None] = wake_ups.loop.create_future()
    ask.add_done_callback(lambda _: wake_ups.add(is_answered))
    try:
        await is_answered
    except asyncio.CancelledError:
        with contextlib.suppress(JournalError):  # which the journal has reported
            if queue.write_ahead.waits_for_disk:
                await in_own_thread(ask.cancel, f"{queue.name}-withdraw")
            else:
                ask.cancel()
        raise
    return ask


class _WakeUps:
    """The tasks of one loop that have an answer.

    Each call of a loop from another thread writes to a socket, and lets go of the GIL. So many answers share a call.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop  # never changes
        self._answered: deque[asyncio.Future[None]] = deque()  # any thread appends, the loop pops
        # The loop will look at `_answered`. It clears this before it looks; other threads read it after appending. So
        # the loop sees what a thread has appended that finds this set.
        self._is_called = False

    def add(self, answered: asyncio.Future[None]) -> None:
        """Have the loop wake the task that awaits this. Any thread."""
        self._answered.append(answered)
        if self._is_called:
            return
        try:
            self._is_called = True
            self.loop.call_soon_threadsafe(self._wake_all)
        except BaseException as error:
            self._is_called = False
            if isinstance(error, RecursionError) or not isinstance(error, RuntimeError):  # raised by a closed loop
                raise

    def _wake_all(self) -> None:
        self._is_called = False
        while self._answered:
            answered = self._answered.popleft()
            if not answered.done():  # cancelled
                answered.set_result(None)


class _OfThread(threading.local):
    wake_ups: _WakeUps | None = None  # of the loop that has asked last; a thread runs one at a time


_OF_THREAD = _OfThread()


def _wake_ups() -> _WakeUps:
    """The running loop's."""
    loop, wake_ups = asyncio.get_running_loop(), _OF_THREAD.wake_ups
    if wake_ups is None or wake_ups.loop is not loop:
        wake_ups = _OF_THREAD.wake_ups = _WakeUps(loop)
    return wake_ups


def _ask_if_room(asks: Asks, event: Any) -> Ask | None:
    try:
        return asks.ask(event, wait=False)
    except QueueFullError:
        return None


async def _once_room(queue: Inbox, attempt: Callable[[], T | None]) -> T | None:
    """Call `attempt` until it finds room, in the queue for room between threads. None: no room came in time."""
    room = queue.room
    patience = room.patience(_this_task)
    while True:
        turn = _TaskTurn()
        try:
            room.enter(turn)
            answer = attempt()
            while answer is None and not await turn.is_released(patience.step_s()):
                if patience.is_over():
                    return attempt()
            if answer is None:
                answer = attempt()
            if answer is not None:
                return answer
        finally:  # after a cancellation, too
            room.leave(turn)


class _TaskTurn:
    """The place of a waiting task in the queue for room. The loop's thread, but for `release`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()  # never changes
        self._released: asyncio.Future[None] = self._loop.create_future()  # never changes

    def release(self) -> bool:
        """Wake the task. Any thread; raises nothing. True: its loop does not run now, so wake the next one as well."""
        try:
            self._loop.call_soon_threadsafe(self._wake)
            return not self._loop.is_running()
        except Exception:  # the loop is closed
            return True

    async def is_released(self, timeout_s: float) -> bool:
        """Wait for the release, up to `timeout_s`; returns whether it came."""
        await asyncio.wait((self._released,), timeout=timeout_s)
        return self._released.done()

    def _wake(self) -> None:
        if not self._released.done():
            self._released.set_result(None)


def _this_task() -> str:
    task = asyncio.current_task()
    return f"task {task.get_name()}" if task is not None else "a coroutine"


async def await_drained(dispatcher: AsyncDispatcher | MultiDispatcher, timeout: float | None = None) -> bool:
    """Wait until drained, for up to `timeout` seconds, and return whether it is. None waits without a limit.

    Raises:
        RuntimeError: a handler of the dispatcher called this and would wait for itself.
    """
    _check(dispatcher)
    parts = dispatcher.partitions if isinstance(dispatcher, MultiDispatcher) else (dispatcher,)
    check_may_wait(dispatcher.name, is_handler=any(part.core.is_handling() for part in parts), is_on_loop=False)
    deadline = None if timeout is None else monotonic() + timeout
    while True:
        for part in parts:
            left_s = None if deadline is None else max(0.0, deadline - monotonic())
            drained = part.core.when_drained()
            if drained.done():  # with no time left, `wait_for` would not look
                is_drained = drained.result()
                await asyncio.sleep(0)  # as any wait lets other tasks run
            else:
                try:
                    is_drained = await asyncio.wait_for(asyncio.wrap_future(drained), left_s)
                except TimeoutError:
                    return False
            if not is_drained:
                return False
        # A handler of one partition may have posted to another meanwhile. A single one was drained, and may work again.
        if len(parts) == 1 or dispatcher.is_drained():
            return True


async def submit(dispatcher: AsyncDispatcher, command: Callable[[], T], description: str = "", *args: Any) -> T:
    """Run `command` on the handler thread, between two events, and return its result or raise its error.

    `description` is %-formatted with `args`.

    Raises:
        RejectedExecutionError: the dispatcher has stopped, and the command won't run.
    """
    require_kind(dispatcher, "dispatcher", AsyncDispatcher)
    return await asyncio.wrap_future(dispatcher.mailbox_executor.submit(command, description, *args))


async def stop(dispatcher: AsyncDispatcher | MultiDispatcher) -> None:
    """Stop the dispatcher and wait for the drain, without blocking the loop.

    `dispatcher.stop()` runs on a separate thread. If an `async def` handler of the dispatcher calls this, it doesn't
    wait, and the dispatcher stops once the handler ends.
    """
    _check(dispatcher)
    await in_own_thread(dispatcher.stop, f"{dispatcher.name}-aio-stop")
