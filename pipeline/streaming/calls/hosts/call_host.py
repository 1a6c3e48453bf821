"""What a call is to the host that makes it, and how its answer gets back.

Threads: a host has threads of its own. An operator submits and cancels calls from its mailbox thread; several operators
may share a host. A call is touched by the host from when it is submitted until it is answered. Then the host appends it
to the operator's AnswerBox, and one mail tells the operator of all answers that it has not fetched yet.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from dispatcher.errors import RejectedExecutionError
from pipeline.streaming.calls.functions import AnyFunction, is_batch_function
from pipeline.streaming.calls.rate_limit import RateLimit, RateLimiter
from pipeline.streaming.errors import AsyncTimeoutError

log = logging.getLogger(__name__)


class AnswerBox:
    """The answers to one operator's calls, until its mailbox thread fetches them."""

    __slots__ = ("_execute", "_fetch", "answers", "is_notified")

    def __init__(self, execute: Callable[..., None], fetch: Callable[[], None]) -> None:
        self.answers: deque[Call] = deque()  # hosts append, the mailbox thread pops; both are atomic
        # A mail is on its way. The mailbox thread clears it before it fetches, a host reads it after it has appended:
        # no answer stays behind. Two threads of a host may both send a mail, and one of them finds nothing.
        self.is_notified = False
        self._execute = execute  # never changes
        self._fetch = fetch  # never changes

    def put(self, call: Call) -> None:
        """Add an answered call, and tell the mailbox thread of it. Any thread; does not block."""
        self.answers.append(call)
        if not self.is_notified:
            self.notify()

    def notify(self) -> None:
        """Tell the mailbox thread. Any thread; does not block."""
        self.is_notified = True
        try:
            self._execute(self._fetch, "fetch answers")
        except RejectedExecutionError:
            log.debug("answers dropped: the mailbox is closed, the state will be replayed")


class Call:
    """One call of the function, as its host sees it.

    Until `ended_ns` is set, the host alone writes; from then on, it is the mailbox thread's. The mailbox thread may set
    `is_cancelled` at any time: nobody waits for the answer any more.
    """

    # Most calls never change these, so they are the class's: it halves the time to make a call.
    results: Any = None
    error: BaseException | None = None
    started_ns = 0
    ended_ns = 0  # not 0: answered
    is_cancelled = False
    is_returned = False  # in place of an answer: not made, and to be submitted again
    is_counted = False  # the mailbox thread only: it takes room under a limit of concurrency
    worker: asyncio.Task[None] | None = None  # the loop's thread only

    def __init__(self, value: Any, box: AnswerBox) -> None:
        self.value = value
        self.box = box


class CallHost(ABC):
    """Runs the calls of one function. `start` and `stop` are for its owner, `submit` and `cancel` for operators."""

    def __init__(self, function: AnyFunction[Any, Any], name: str) -> None:
        self.function = function  # never changes
        self.name = name  # never changes
        self.is_batch = is_batch_function(function)  # never changes
        self.max_calls: int | None = None  # it makes at once; others wait for one to end; None: any number
        self._limiters: dict[RateLimit, RateLimiter] = {}  # of the scope "worker"; setdefault is atomic

    @abstractmethod
    def start(self) -> None:
        """Open the function; blocks until that is done. What `open` raises is raised."""

    @abstractmethod
    def submit(self, call: Call) -> None:
        """Make the call as soon as possible, in the order of submission. Any thread; does not block."""

    @abstractmethod
    def cancel(self, call: Call) -> None:
        """Give the call up if that is possible; it may be answered all the same. Any thread; does not block."""

    @abstractmethod
    def stop(self, timeout: float = 10.0) -> bool:
        """Give up the calls under way and close the function; says whether all has ended within `timeout` seconds.

        Calls that operators still wait for, and those they submit from now on, end with a RejectedExecutionError.

        What does not end is left behind on a daemon thread. Errors of `close` are logged. Stopping again does nothing.
        """

    def timeout(self, value: Any, timeout_ms: float, attempts: int) -> Any:
        """What the function gives instead of an answer that is late. Raises what its `timeout` raises."""
        hook = getattr(self.function, "timeout", None)
        if not callable(hook):
            raise AsyncTimeoutError(timeout_ms, attempts)
        try:
            return hook(value)
        except AsyncTimeoutError as error:
            if error.timeout_ms is None:
                raise AsyncTimeoutError(timeout_ms, attempts) from None
            raise

    def _refuse(self, call: Call) -> None:
        """Answer a call that will not be made, or not be waited for: the host has ended. Any thread."""
        if call.is_cancelled:
            return
        call.error = RejectedExecutionError(f"{self.name}: the host of its calls has ended; make a new one")
        call.ended_ns = perf_counter_ns()
        call.started_ns = call.started_ns or call.ended_ns
        call.box.put(call)

    def limiter_for(self, limit: RateLimit) -> RateLimiter:
        """A limiter of its own for each that asks, or with scope "worker" one for all that share the host."""
        return RateLimiter(limit) if limit.scope == "task" else self._limiters.setdefault(limit, RateLimiter(limit))

    def _hook(self, name: str) -> Callable[[], Any] | None:
        """The function's `open` or `close`, if it has one; only what has both has hooks."""
        hooks = [getattr(self.function, name, None) for name in ("open", "close")]
        return getattr(self.function, name) if all(callable(hook) for hook in hooks) else None
