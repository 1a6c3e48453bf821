"""Looks for results in the cache before a record's call waits for any limit. Mailbox thread only.

The mailbox thread does not wait for the cache: a record is asked for, and a mail brings the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from dispatcher.errors import RejectedExecutionError
from dispatcher.mailbox import MailboxExecutor
from pipeline.streaming.cache.session import Request, ResultSession
from pipeline.streaming.cache.store import Key
from pipeline.streaming.errors import ResultCacheError


class RecallCounts(Protocol):
    """Where the answers are counted: an operator's CallMetrics."""

    remembered: int
    unknown: int


class AskedCall(Protocol):
    """A record's call that has not begun."""

    value: Any
    key: Any
    is_done: bool


C = TypeVar("C", bound=AskedCall)


class Recall(Generic[C]):
    """The records whose results are asked for; there are none without a `session`.

    A record gets its results by `succeed` or an error by `fail`, or its call is begun by `begin`. `after_answers` is
    called after the answers of each mail. `nothing_follows`: as CallPath's, of the records that are not asked for.
    """

    def __init__(
        self,
        session: ResultSession | None,
        executor: MailboxExecutor,
        counts: RecallCounts,
        nothing_follows: Callable[[], bool],
        begin: Callable[[C], None],
        succeed: Callable[[C, Sequence[Any]], None],
        fail: Callable[[C, BaseException], None],
        after_answers: Callable[[], None],
    ) -> None:
        self._session = session
        self._executor = executor
        self._counts = counts
        self._nothing_else_follows = nothing_follows
        self._begin = begin
        self._succeed = succeed
        self._fail = fail
        self._after_answers = after_answers
        self._asked: dict[Request, C] = {}
        self.key_of = None if session is None else session.key_of
        """Gives a value's key in the cache; records of one key share a call. None without a session."""
        if session is not None:
            session.on_failure(self._fail_task)

    @property
    def asked(self) -> int:
        """The records without an answer yet: their calls may follow."""
        return len(self._asked)

    def nothing_follows(self) -> bool:
        """Whether no call will begin before another has ended, nor one for a record that is asked for."""
        return not self._asked and self._nothing_else_follows()

    def ask(self, call: C) -> None:
        assert self._session is not None
        key = call.key if type(call.key) is Key else self._session.key_of(call.value)
        request = Request(key, self._send)
        self._asked[request] = call
        self._session.submit(request)

    def close(self) -> None:
        """Ignore the answers from now on."""
        if self._session is not None:
            self._session.forget_listener(self._fail_task)
            self._asked.clear()

    def _send(self, requests: list[Request]) -> None:
        """Session's thread."""
        with suppress(RejectedExecutionError):  # the mailbox is closed: the state will be replayed
            self._executor.execute(lambda: self._process(requests), "fetch remembered results")

    def _process(self, requests: list[Request]) -> None:
        failure: BaseException | None = None
        for request in requests:
            call = self._asked.pop(request, None)
            if call is not None and not call.is_done:
                try:
                    self._answered(call, request)
                except BaseException as error:  # fails the task once the others are processed
                    failure = failure or error
        self._after_answers()
        if failure is not None:
            raise failure

    def _answered(self, call: C, answer: Request) -> None:
        if answer.was_unknown:
            self._counts.unknown += 1
        if answer.results is not None:
            self._counts.remembered += 1
            self._succeed(call, answer.results)
        elif answer.error is not None:
            self._fail(call, answer.error)
        else:
            self._begin(call)

    def _fail_task(self, error: ResultCacheError) -> None:
        """Session's thread: fail the task, whatever `on_error` says."""

        def fail() -> None:
            raise error

        with suppress(RejectedExecutionError):
            self._executor.execute(fail, "the cache of results has failed")
