"""Calls shared by the records of one key, and a cache of recent results.

The first record of a key leads: its call is the one that is made. Later records of the key wait for its outcome. This
module only keeps track: the engine makes the calls and distributes the outcomes. Failures are not remembered. The
engine's thread only. Nothing here blocks or reads a clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, Literal, TypeAlias, TypeVar

from dispatcher.errors import InvalidTypeError
from pipeline.streaming.single_flight import SingleFlight

Waiter = TypeVar("Waiter", bound=Hashable)
Out = TypeVar("Out")

_Lead: TypeAlias = tuple[Literal["lead"], None]
_Wait: TypeAlias = tuple[Literal["wait"], None]
Joined: TypeAlias = _Lead | _Wait | tuple[Literal["known"], tuple[Out, ...]]

_LEAD: _Lead = ("lead", None)
_WAIT: _Wait = ("wait", None)


class SharedCalls(SingleFlight[Hashable, Waiter], Generic[Waiter, Out]):
    """The records that wait for each key, and what was answered lately. The engine's thread only.

    Keys come in canonical form, in which equal means the same.
    """

    __slots__ = ("_known", "_remember", "_remember_ms")

    def __init__(self, remember: int = 0, remember_ms: int | None = None) -> None:
        """Remember the results of at most `remember` keys; the least recently used is evicted first.

        Results expire `remember_ms` milliseconds after they arrived, however often they were used; None: never.
        """
        super().__init__()
        self._remember = remember
        self._remember_ms = remember_ms
        # The results and their times of arrival, least recently used first; never longer than `remember`.
        self._known: OrderedDict[Hashable, tuple[tuple[Out, ...], float]] = OrderedDict()

    def join(self, key: Hashable, waiter: Waiter, now_ms: float) -> Joined[Out]:
        """Add `waiter` for `key`, and return its role.

        - `("lead", None)`: make the call, and end it by `finish`, by `end` if it has failed, or by `abandon`.
        - `("wait", None)`: the call is in flight; `unjoin` to give up.
        - `("known", results)`: the remembered results, shared and not copied; `waiter` was not added.

        Raises:
            TypeError: `key` is not hashable.
        """
        try:
            if self.follow(key, waiter):
                return _WAIT
        except TypeError as error:
            raise InvalidTypeError(
                f"dedupe_by returned the key {key!r}, which is not hashable ({error}). "
                "Return a string, a number or a tuple of them."
            ) from error
        if self._known:
            results = self._recall(key, now_ms)
            if results is not None:
                return "known", results
        self.leaders[key] = waiter
        return _LEAD

    def finish(self, key: Hashable, results: Iterable[Out], now_ms: float) -> list[Waiter]:
        """End the call of `key` with the leader's `results`; return the other waiters in order of arrival."""
        waiters = self.end(key)
        if self._remember > 0:
            self._known[key] = (tuple(results), now_ms)
            if len(self._known) > self._remember:
                self._known.popitem(last=False)
        return waiters

    def _recall(self, key: Hashable, now_ms: float) -> tuple[Out, ...] | None:
        known = self._known.get(key)
        if known is None:
            return None
        results, finished_ms = known
        if self._remember_ms is not None and now_ms - finished_ms >= self._remember_ms:
            del self._known[key]
            return None
        self._known.move_to_end(key)
        return results
