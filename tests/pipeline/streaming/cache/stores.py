"""A session of a cache that a test asks, on a clock that it sets."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

from pipeline.streaming import ResultCache
from pipeline.streaming.cache.encoding import dump_results
from pipeline.streaming.cache.session import CacheRequest, ResultSession
from pipeline.streaming.cache.store import DONE, Claim, ResultKey, ResultStore  # noqa: F401

from ....kit import TIMEOUT_S


class Asker:
    """Asks a session and waits for the answers."""

    def __init__(self, session: ResultSession) -> None:
        self.session = session

    def __call__(self, value: Any, *, wants_call: bool = False, waits: bool = False) -> CacheRequest:
        request, answered = self.send(value, wants_call=wants_call, waits=waits)
        assert answered.wait(TIMEOUT_S)
        return request

    def send(self, value: Any, **how: bool) -> tuple[CacheRequest, threading.Event]:
        answered = threading.Event()
        request = CacheRequest(self.session.key_of(value), lambda _: answered.set(), **how)
        self.session.submit(request)
        return request, answered

    def call(self, value: Any, *results: Any) -> None:
        """Claim a key, and store these results."""
        request = self(value, wants_call=True)
        assert request.is_mine
        self.session.finish(request.key, dump_results(results))
        self.session.flush()


class Time:
    """A clock that a test sets."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def opened(stack: ExitStack, cache: ResultCache, clock: Time | None = None, function: str = "f") -> Asker:
    session = ResultSession(cache, function, clock_s=clock or Time())
    session.open()
    stack.callback(session.close)
    return Asker(session)
