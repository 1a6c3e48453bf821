"""Calls shared by the records of one key, and a cache of recent results.

The first record of a key leads: its call is the one that is made. Later records of the key wait for its outcome. This
module only keeps track: the engine makes the calls and distributes the outcomes. The engine's thread only. Nothing
here blocks or reads a clock. `finish`, `fail` and `followers` take time in proportion to the list they return; other
methods take constant time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, Literal, TypeAlias, TypeVar

from dispatcher.errors import InvalidTypeError

Waiter = TypeVar("Waiter", bound=Hashable)
Out = TypeVar("Out")

_Lead: TypeAlias = tuple[Literal["lead"], None]
_Wait: TypeAlias = tuple[Literal["wait"], None]
Joined: TypeAlias = _Lead | _Wait | tuple[Literal["known"], tuple[Out, ...]]

_LEAD: _Lead = ("lead", None)
_WAIT: _Wait = ("wait", None)


class SharedCalls(Generic[Waiter, Out]):
    """The records that wait for each key. The engine's thread only.

    Equal keys are one key, such as 1, 1.0 and True. They come in canonical form, in which equal means the same. A
    waiter is any hashable object that stands for one record; it joins once. A leader ends by `finish`, `fail` or
    `abandon` of its key, which raise KeyError if no call for the key is in flight. Another waiter ends in the list of
    `finish` or `fail`, by `unjoin`, or by becoming the leader.
    """

    __slots__ = ("_known", "_leaders", "_remember", "_remember_ms", "_under_way")

    def __init__(self, remember: int = 0, remember_ms: int | None = None) -> None:
        """Remember the results of at most `remember` keys; the least recently used is evicted first.

        Results expire `remember_ms` milliseconds after they arrived, however often they were used; None: never.
        """
        self._remember = remember
        self._remember_ms = remember_ms
        self._under_way: dict[Hashable, dict[Waiter, None]] = {}  # waiters behind the leader, in order of arrival
        self._leaders: dict[Hashable, Waiter] = {}  # has the keys of _under_way
        # The results and their times of arrival, least recently used first; never longer than `remember`.
        self._known: OrderedDict[Hashable, tuple[tuple[Out, ...], float]] = OrderedDict()

    def join(self, key: Hashable, waiter: Waiter, now_ms: float) -> Joined[Out]:
        """Add `waiter` for `key`, and return its role.

        - `("lead", None)`: make the call, and end it by `finish`, `fail` or `abandon`.
        - `("wait", None)`: the call is in flight; `unjoin` to give up.
        - `("known", results)`: the remembered results, shared and not copied; `waiter` was not added.

        Raises:
            TypeError: `key` is not hashable.
        """
        try:
            waiters = self._under_way.get(key)
        except TypeError as error:
            raise InvalidTypeError(
                f"dedupe_by returned the key {key!r}, which is not hashable ({error}). "
                "Return a string, a number or a tuple of them."
            ) from error
        if waiters is not None:
            waiters[waiter] = None
            return _WAIT
        if self._known:
            results = self._recall(key, now_ms)
            if results is not None:
                return "known", results
        self._under_way[key] = {}
        self._leaders[key] = waiter
        return _LEAD

    def leader(self, key: Hashable) -> Waiter:
        """The waiter whose call the others of `key` share. Raises KeyError if no call is in flight."""
        return self._leaders[key]

    def followers(self, key: Hashable) -> list[Waiter]:
        """The other waiters of `key`, in order of arrival. Raises KeyError if no call is in flight."""
        return list(self._under_way[key])

    def finish(self, key: Hashable, results: Iterable[Out], now_ms: float) -> list[Waiter]:
        """End the call of `key` with the leader's `results`; return the other waiters in order of arrival."""
        waiters = self._under_way.pop(key)
        del self._leaders[key]
        if self._remember > 0:
            self._known[key] = (tuple(results), now_ms)
            if len(self._known) > self._remember:
                self._known.popitem(last=False)
        return list(waiters)

    def fail(self, key: Hashable) -> list[Waiter]:
        """End the failed call of `key`; return the waiters that fail with the leader. Failures are not remembered."""
        waiters = self._under_way.pop(key)
        del self._leaders[key]
        return list(waiters)

    def abandon(self, key: Hashable) -> Waiter | None:
        """Give up the leader of `key`; return the waiter that now leads and must make a new call, or None.

        Never `finish` with an answer to the former leader's call: that would end the new leader's call.
        """
        waiters = self._under_way[key]
        if not waiters:
            del self._under_way[key], self._leaders[key]
            return None
        leader = self._leaders[key] = next(iter(waiters))
        del waiters[leader]
        return leader

    def unjoin(self, key: Hashable, waiter: Waiter) -> bool:
        """Stop waiting for `key`; return whether `waiter` was waiting. False for a leader, which must `abandon`."""
        waiters = self._under_way.get(key)
        if waiters is None or waiter not in waiters:
            return False
        del waiters[waiter]
        return True

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
