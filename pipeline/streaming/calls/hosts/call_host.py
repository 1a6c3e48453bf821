"""Calls as the hosts that make them see them, and the path of their answers back to the operator.

Threads: a host has threads of its own. An operator submits and cancels calls on its engine's thread; several operators
may share a host. The host owns a call from submission to answer. It then appends the call to the operator's AnswerBox,
and one mail announces all answers not fetched yet.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from dispatcher.errors import RejectedExecutionError
from dispatcher.util.foreign import tell
from dispatcher.util.rate_limit import RateLimit
from dispatcher.util.registry import Registry
from pipeline.streaming.cache.session import ResultSession
from pipeline.streaming.calls.functions import AnyFunction, is_batch_function
from pipeline.streaming.calls.limits.adaptive import AdaptiveRateLimit, AdaptiveRateLimiter
from pipeline.streaming.calls.limits.learned_rate import LearnedRate
from pipeline.streaming.calls.rate_limit import RESUMED_CALLS_PER_S, ResumingRateLimiter
from pipeline.streaming.calls.thread import EngineMailbox, LoopThread
from pipeline.streaming.errors import AsyncTimeoutError
from pipeline.streaming.number_checks import require_number

log: logging.Logger = logging.getLogger(__name__)


class AnswerBox:
    """The answers to one operator's calls, until the thread of its engine fetches them."""

    __slots__ = ("_fetch", "_mail", "answers", "is_notified")

    def __init__(self, mail: EngineMailbox, fetch: Callable[[], None]) -> None:
        self.answers: deque[HostCall] = deque()  # hosts append, the engine's thread pops, each with one call
        # A mail is on its way. No answer is left behind, in either order:
        #   host: appends a, reads True; engine: sets False, fetches a.
        #   engine: sets False, finds nothing; host: appends a, reads False, sends another mail.
        # Two threads of a host may both send a mail: the second mail finds nothing.
        self.is_notified: bool = False
        self._mail = mail  # never changes
        self._fetch = fetch  # never changes

    def put(self, call: HostCall) -> None:
        """Append an answered call and notify the engine. Any thread; does not block."""
        self.answers.append(call)
        self.announce()

    def announce(self) -> None:
        """Notify the engine of answers that were appended, unless it is. Any thread; does not block."""
        if not self.is_notified:
            self.notify()

    def notify(self) -> None:
        """Send the mail that fetches answers. Any thread; does not block."""
        self.is_notified = True
        try:
            self._mail.execute(self._fetch, "fetch answers")
        except RejectedExecutionError:
            log.debug("answers dropped: the mailbox is closed, the state will be replayed")

    def notify_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the thread of `loop`: an engine that belongs to it fetches the answers now; another one gets the mail."""
        mail = self._mail
        if isinstance(mail, LoopThread) and mail.loop is loop:
            mail.run(self._fetch)
        else:
            self.notify()


class HostCall:
    """One call of the function, as its host sees it.

    Only the host writes until `ended_ns` is set; from then on the call belongs to the engine's thread. The engine's
    thread may set `is_cancelled` at any time: the answer is no longer needed.
    """

    # Class attributes, because most calls never change them: that halves the time to create a call.
    results: Any = None
    error: BaseException | None = None
    started_ns = 0
    ended_ns = 0  # not 0: answered
    is_cancelled = False
    is_returned = False  # instead of an answer: not made, to be submitted again
    is_counted = False  # the engine's thread only: it holds a slot of a concurrency limit
    worker: asyncio.Task[None] | None = None  # the loop's thread only

    def __init__(self, value: Any, box: AnswerBox) -> None:
        self.value = value
        self.box = box


class CallHost(ABC):
    """Runs the calls of one function. `start` and `stop` are for its owner, `submit` and `cancel` for operators."""

    keeps_late_calls = False
    """Whether a call that was given up holds its place among `max_calls` until it returns."""

    def __init__(self, function: AnyFunction[Any, Any], name: str) -> None:
        self.function = function  # never changes
        self.name = name  # never changes
        self.is_batch: bool = is_batch_function(function)  # never changes
        self.result_session: ResultSession | None = getattr(function, "result_session", None)  # never changes
        """The cache through which the function's calls go, if they do."""
        self.max_calls: int | None = None  # concurrent calls; further ones wait; None: any number
        self._is_forked = False  # this process is a child of the one that made the host; written at the fork
        self._limiters_lock = threading.Lock()  # leaf lock; only the methods of limits run under it
        # Of the scopes "job" and "worker"; guarded by _limiters_lock, since limits are compared in Python.
        self._limiters: dict[RateLimit | AdaptiveRateLimit, ResumingRateLimiter | AdaptiveRateLimiter] = {}
        self.resumed: LearnedRate = LearnedRate(RESUMED_CALLS_PER_S, keeps_pauses=True)
        """The rate after a pause of operators without a rate limit; never changes."""
        hook = getattr(function, "own_retries", None)
        self._own_retries: Callable[[], int] | None = hook if callable(hook) else None  # None once it has failed
        self._retries_lock = threading.Lock()  # the function's own_retries is called while it is held
        # Guarded by _retries_lock; a new host does not count what the function made for an earlier one.
        self._taken_retries = 0 if self._own_retries is None else self._number_of_retries(self._own_retries)
        _hosts.add(self)

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """Whether the host refuses calls, because it was stopped. Any thread."""

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child, whose only thread calls this: a host that was started has its threads in the parent."""

    @abstractmethod
    def start(self) -> None:
        """Open the function; blocks until that is done. Raises what `open` raises."""

    @abstractmethod
    def submit(self, calls: Sequence[HostCall]) -> None:
        """Make the calls as soon as possible, in submission order. Any thread; does not block."""

    @abstractmethod
    def cancel(self, call: HostCall) -> None:
        """Give the call up if possible; it may still be answered. Any thread; does not block."""

    @abstractmethod
    def stop(self, timeout: float = 10.0) -> bool:
        """Give up the calls in flight and close the function; return whether all ended within `timeout` seconds.

        Calls that operators still wait for, and those submitted later, end with a RejectedExecutionError. What does
        not end is left on a daemon thread. Errors of `close` are logged. Stopping again does nothing. On a thread of
        the host, this does not wait.
        """

    def timeout(self, value: Any, late: AsyncTimeoutError) -> Any:
        """The function's results in place of an answer that is `late`. Raises what its `timeout` raises."""
        hook = getattr(self.function, "timeout", None)
        if not callable(hook):
            raise late
        try:
            return hook(value)
        except AsyncTimeoutError as error:
            if error.timeout_ms is None and error.deadline_ms is None:  # the default hook's, which knows nothing
                raise late from None
            raise

    @property
    def has_own_retries(self) -> bool:
        """Whether the function counts calls that it repeats itself."""
        return self._own_retries is not None

    def take_own_retries(self) -> int:
        """How many calls the function has repeated itself since an operator last asked. Any thread.

        Operators that share the host share the number: each repetition is given to one of them. A function that does
        not tell the number is not asked again: its calls go on.
        """
        with self._retries_lock:
            if self._own_retries is None:
                return 0
            try:
                taken = self._number_of_retries(self._own_retries)
            except Exception as error:
                self._own_retries = None
                tell(log, logging.ERROR, "%s: own_retries() failed, and counts no more", self.name, error=error)
                return 0
            before, self._taken_retries = self._taken_retries, taken
            return taken - before

    def _number_of_retries(self, own_retries: Callable[[], int]) -> int:
        number = own_retries()
        require_number(f"{self.name}: own_retries()", number, least=0, whole=True)
        return number

    def _refuse(self, call: HostCall) -> None:
        """Answer a call that the host, which has ended, will not make or finish. Any thread."""
        if call.is_cancelled:
            return
        why = "was started in the process that this one was forked from" if self._is_forked else "has stopped"
        call.error = RejectedExecutionError(f"{self.name}: the call host {why}; make a new one")
        call.ended_ns = perf_counter_ns()
        call.started_ns = call.started_ns or call.ended_ns
        call.box.put(call)

    def limiter_for(self, limit: RateLimit | AdaptiveRateLimit) -> ResumingRateLimiter | AdaptiveRateLimiter:
        """With scope "task" a new limiter for each caller, otherwise one for all operators that share the host."""
        limiter = ResumingRateLimiter(limit) if isinstance(limit, RateLimit) else AdaptiveRateLimiter(limit)
        if limit.scope == "task":
            return limiter
        with self._limiters_lock:
            return self._limiters.setdefault(limit, limiter)

    def _hook(self, name: str) -> Callable[[], Any] | None:
        """The function's `open` or `close`; None unless it has both."""
        hooks = [getattr(self.function, name, None) for name in ("open", "close")]
        return getattr(self.function, name) if all(callable(hook) for hook in hooks) else None


_hosts: Registry[CallHost] = Registry()  # of this process


def _after_fork() -> None:
    for host in _hosts.all():
        host.abandon()


os.register_at_fork(after_in_child=_after_fork)
