"""Tasks that begin at once: a coroutine that does not wait has ended when its task is made.

Python 3.12 has such tasks. On 3.11 the coroutine runs up to its first wait as the current task, and the task's own
first step, a turn of the loop later, takes over what that wait is for.
"""

from __future__ import annotations

import sys
from asyncio import AbstractEventLoop, CancelledError, Future, Task
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, Protocol

AnyCoroutine = Coroutine[Any, Any, Any]


class Ended(Protocol):
    """A task that has ended, or stands for one. Raises CancelledError if it was cancelled."""

    def exception(self) -> BaseException | None: ...

    def result(self) -> Any: ...


def start_task(loop: AbstractEventLoop, coroutine: AnyCoroutine, context: Context) -> tuple[Task[Any], Ended | None]:
    """A task of the coroutine in that context, and its end, if it has ended. On the loop, outside tasks.

    A loop with a task factory makes the task, which runs in a copy of the context.

    Raises:
        BaseException: a KeyboardInterrupt or SystemExit of the coroutine, or an error of the factory.
    """
    if loop.get_task_factory() is not None:
        task: Task[Any] = context.run(loop.create_task, coroutine)
    elif sys.version_info >= (3, 12):
        task = Task(coroutine, loop=loop, context=context, eager_start=True)
    else:
        begun = _Begun(coroutine)
        task = Task(begun, loop=loop, context=context)
        return task, begun if begun.begin(loop, task, context) else None
    return task, task if task.done() else None


class _Begun(AnyCoroutine):
    """What a task runs whose coroutine has begun before it. The task's first step gets the outcome of the first wait.

    A cycle with the task would keep the event in memory, so it does not refer to that.
    """

    __slots__ = ("_awaited", "_coroutine", "_error", "_is_first")

    def __init__(self, coroutine: AnyCoroutine) -> None:
        self._coroutine = coroutine
        self._is_first = True  # the task has not run
        self._awaited: Future[Any] | None = None  # what the coroutine has yielded at its first wait
        self._error: BaseException | None = None  # what it has ended with instead

    def begin(self, loop: AbstractEventLoop, task: Task[Any], context: Context) -> bool:
        """Run the coroutine up to its first wait. Whether it has returned; any other end is left to the task."""
        _enter_task(loop, task)
        try:
            self._awaited = context.run(self._coroutine.send, None)
        except BaseException as error:
            self._error = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
        finally:
            _leave_task(loop, task)
        return isinstance(self._error, StopIteration) and not task.cancelling()

    def exception(self) -> None:
        """None: an end by an error is left to the task."""

    def result(self) -> Any:
        """What the coroutine has returned; used until the task runs."""
        return self._error.value if isinstance(self._error, StopIteration) else None

    def send(self, value: Any) -> Any:
        if not self._is_first:
            return self._coroutine.send(value)
        awaited, error = self._take_first()
        try:
            if error is not None:
                raise error
            return awaited
        finally:
            del error  # its traceback refers to this frame

    def throw(self, error: Any, *more: Any) -> Any:
        """The task was canceled, or what it waits for has failed."""
        try:
            if self._is_first:
                awaited, ended_with = self._take_first()
                if ended_with is not None:
                    raise error
                # As a task that waits: what it waits for is canceled, and then gives that to the coroutine.
                if awaited is not None and isinstance(error, CancelledError) and awaited.cancel(*error.args):
                    return awaited
            return self._coroutine.throw(error, *more)
        finally:
            del error

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError  # asyncio asks whether it is there

    def _take_first(self) -> tuple[Future[Any] | None, BaseException | None]:
        """What the coroutine has done before its task."""
        awaited, error = self._awaited, self._error
        self._is_first, self._awaited, self._error = False, None, None
        return awaited, error
