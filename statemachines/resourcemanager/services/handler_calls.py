"""Calls of the services for other threads: made on the handler thread, with a result to wait for or a future.

A service declares such a method once, as what the calling thread prepares; it returns what the handler thread does:

    @on_handler_thread
    def get_application_report(self, app_id: str, *, timeout: float | None = None) -> Callable[[], ApplicationReport]:
        return lambda: reports.application_report(self._context, self._app(app_id))

    get_application_report_later = later(get_application_report)

For its callers the first returns an ApplicationReport and the second a Future of one.

    waiting --the mail begins--> running --> completed with the result or the error of the call
       +----timeout, cancelled, mailbox or service closed----> completed with an error; nothing was done
                                   running --service closed--> completed with an error; it may still be done

So `cancel()` of a future returns True only if nothing was and will be done.

Threading: any thread may call; on the handler thread a call is made at once.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from dispatcher.errors import DispatcherError, RejectedExecutionError
from dispatcher.service import Service
from statemachines.resourcemanager.context import RMContext

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
S = TypeVar("S", bound="HandlerThreadService")


class HandlerThreadService(Service):
    """A service whose methods are declared with `on_handler_thread` and `later`."""

    def __init__(self, context: RMContext) -> None:
        super().__init__()
        self.calls: HandlerCalls = HandlerCalls(context)

    def service_stop(self) -> None:
        """Fail the calls that still wait; stop the dispatcher first."""
        self.calls.close()


def on_handler_thread(method: Callable[Concatenate[S, P], Callable[[], R]]) -> Callable[Concatenate[S, P], R]:
    """A method that does on the handler thread what `method` returns, and waits for it.

    `method` runs on the calling thread: it checks and copies arguments. It takes a keyword `timeout`, the longest wait
    in seconds, and leaves it to this.

    Raises (the method):
        RejectedExecutionError: the resource manager has stopped.
        TimeoutError: the handler thread has not done it within `timeout`; the message says whether it still may.
    """

    @wraps(method)
    def waiting(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        timeout = cast("float | None", kwargs.get("timeout"))
        return self.calls.call(method(self, *args, **kwargs), _shown_name(method), timeout)

    cast(Any, waiting).__signature__ = _signature(method, "{}")
    return waiting


class Stored(Generic[T]):
    """The result of a change, which its client gets once the state store has the change. Handler thread only."""

    def __init__(self, value: T) -> None:
        """The one that makes the change sets `value`, and has the store call `confirm` or `refuse`, once."""
        self.value = value
        self.error: Exception | None = None
        """Why the change was not stored."""
        self._is_settled = False
        self._on_settled: Callable[[], None] | None = None

    def confirm(self) -> None:
        self._is_settled = True
        if self._on_settled is not None:
            self._on_settled()

    def refuse(self, error: Exception) -> None:
        self.error = error
        self.confirm()

    def when_settled(self, function: Callable[[], None]) -> None:
        """Call `function` once: now, or by `confirm` or `refuse`."""
        if self._is_settled:
            function()
        else:
            self._on_settled = function


def once_stored(method: Callable[Concatenate[S, P], Callable[[], Stored[R]]]) -> Callable[Concatenate[S, P], R]:
    """Run a change on the handler thread. Its answer comes once it is stored, but on the handler thread at once."""
    return on_handler_thread(cast("Callable[Concatenate[S, P], Callable[[], R]]", method))


def later(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], Future[R]]:
    """The form without blocking of a method declared with `on_handler_thread`.

    All its errors but those of wrong arguments are in the future. With a `timeout`, the future fails with TimeoutError
    if the handler thread has not begun by then; a cancelled call that has not begun is not made.
    """
    prepare = cast("Callable[Concatenate[S, P], Callable[[], R]]", cast(Any, method).__wrapped__)
    name = _shown_name(method)

    def without_waiting(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        try:
            function = prepare(self, *args, **kwargs)
        except DispatcherError as error:
            refused: Future[R] = Future()
            refused.set_exception(error)
            return refused
        return self.calls.later(function, name, cast("float | None", kwargs.get("timeout")))

    without_waiting.__name__ = f"{name}_later"
    without_waiting.__doc__ = f"As `{name}`, without waiting: a future of its result, which any thread can cancel."
    cast(Any, without_waiting).__signature__ = _signature(cast(Any, method).__wrapped__, "Future[{}]")
    return without_waiting


def _signature(method: Callable[..., Any], returns: str) -> inspect.Signature:
    """The signature that help() shows: `returns`, with the type of the result instead of the function that makes it."""
    signature = inspect.signature(method)
    result = str(signature.return_annotation)
    for around in ("Callable[[], ", "Stored["):
        if result.startswith(around):
            result = result[len(around) : -1]
    return signature.replace(return_annotation=returns.format(result))


def _shown_name(method: Callable[..., Any]) -> str:
    """The name in messages: a private form has the name of the public one."""
    return cast(Any, method).__name__.lstrip("_")  # type: ignore[no-any-return]


class HandlerCalls:
    """The calls of one service that wait for the handler thread. Any thread."""

    def __init__(self, context: RMContext) -> None:
        self._context = context  # never changes
        self._lock = threading.Lock()  # leaf lock: nothing foreign is called while it is held
        self._waiting: set[_HandlerCall[Any]] = set()  # guarded by _lock; the thread that removes a call completes it
        self._is_closed = False  # guarded by _lock; set once

    def call(self, function: Callable[[], T], name: str, timeout: float | None) -> T:
        """The result of `function`, run on the handler thread. Raises what it raises, and as `on_handler_thread`."""
        if self._context.on_handler_thread():
            result = function()
            return cast(T, result.value) if isinstance(result, Stored) else result
        call = self._begin(function, name, None)
        try:
            return call.future.result(timeout)
        except TimeoutError:
            if call.future.done():  # just now, or the error is the function's own
                return call.future.result()
            with self._lock:
                self._waiting.discard(call)
            ending = "it may still be done" if call.future.running() else "nothing was done"
            raise TimeoutError(
                f"{name}: the handler thread of the resource manager did not answer within {timeout} s; {ending}"
            ) from None

    def later(self, function: Callable[[], T], name: str, timeout: float | None) -> Future[T]:
        """A future of `function`, run on the handler thread; `timeout` counts until it begins."""
        if not self._context.on_handler_thread():
            return self._begin(function, name, timeout).future
        call = _HandlerCall(self, function, name, None)
        with self._lock:
            self._waiting.add(call)  # the state store may still have to confirm it
            is_closed = self._is_closed
        self.start(call)
        call.run()
        if is_closed and self.remove(call):
            call.fail(RejectedExecutionError(f"{name}: the resource manager has stopped: it may have been done"))
        return call.future

    def close(self) -> None:
        """Fail all waiting calls, and all further ones. More than once."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, set()
        for call in waiting:
            ending = "it may have been done nevertheless" if call.future.running() else "nothing was done"
            call.fail(RejectedExecutionError(f"{call.name}: the resource manager has stopped: {ending}"))

    def _begin(self, function: Callable[[], T], name: str, timeout: float | None) -> _HandlerCall[T]:
        call = _HandlerCall(self, function, name, None if timeout is None else time.monotonic() + timeout)
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._waiting.add(call)
        if is_closed:
            call.fail(RejectedExecutionError(f"{name}: the resource manager has stopped: nothing was done"))
            return call
        try:
            self._context.execute(call)
        except RejectedExecutionError as error:
            if self.remove(call):
                call.fail(error)
        return call

    def start(self, call: _HandlerCall[Any]) -> bool:
        """Whether to make the call: its caller still waits, and from now on can no longer cancel it. Handler thread."""
        with self._lock:
            # Under the lock: whoever removes a call sees whether it has begun.
            if call not in self._waiting:
                return False
            has_begun = call.future.set_running_or_notify_cancel()
            if not has_begun:
                self._waiting.remove(call)
            return has_begun

    def remove(self, call: _HandlerCall[Any]) -> bool:
        """Whether the call was still waiting; it no longer is, and the caller of this completes it."""
        with self._lock:
            was_waiting = call in self._waiting
            self._waiting.discard(call)
        return was_waiting


class _HandlerCall(Generic[T]):
    """One call, as the runnable of its mail."""

    def __init__(self, calls: HandlerCalls, function: Callable[[], T], name: str, deadline: float | None) -> None:
        # Set once:
        self._calls = calls
        self._function = function
        self.name = name
        self._deadline = deadline  # monotonic seconds
        self.future: Future[T] = Future()  # any thread may read it, and cancel it until it runs

    def __call__(self) -> None:
        if not self._calls.start(self):
            return
        late_s = 0.0 if self._deadline is None else time.monotonic() - self._deadline
        if late_s <= 0:
            self.run()
        elif self._calls.remove(self):
            self.fail(
                TimeoutError(f"{self.name}: the handler thread came to it {late_s:.3f} s too late: nothing was done")
            )

    def run(self) -> None:
        """Make the call, and complete the future unless another thread has removed the call meanwhile."""
        try:
            result = self._function()
        except BaseException as error:
            if self._calls.remove(self):
                self.fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            if isinstance(result, Stored):
                result.when_settled(lambda: self._end(result.value, result.error))
            else:
                self._end(result)

    def _end(self, result: T, error: Exception | None = None) -> None:
        if not self._calls.remove(self):
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """For the thread that has removed the call."""
        # A cancelled future ends here: `concurrent.futures.wait` waits for this.
        if self.future.running() or self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def cancel(self) -> bool:
        """The mailbox was closed before the mail could run."""
        if self._calls.remove(self):
            self.fail(RejectedExecutionError(f"{self.name}: the resource manager has stopped: nothing was done"))
        return True

    def __repr__(self) -> str:
        return self.name
