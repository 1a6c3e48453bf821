"""Calls shared by the records that ask for the same key, and a memory of the last answers.

The first record of a key leads: its call is the one that is made. Who asks for the key meanwhile waits behind it and
gets its outcome. The object keeps books only: calls are made, and outcomes given out, by the operator, on the mailbox
thread, to which everything here belongs. Nothing here blocks or reads a clock, and each method but `finish` and `fail`
takes constant time; those take as long as the list they return.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, Literal, TypeAlias, TypeVar

Waiter = TypeVar("Waiter", bound=Hashable)
Out = TypeVar("Out")

_Lead: TypeAlias = tuple[Literal["lead"], None]
_Wait: TypeAlias = tuple[Literal["wait"], None]
Joined: TypeAlias = _Lead | _Wait | tuple[Literal["known"], tuple[Out, ...]]

_LEAD: _Lead = ("lead", None)
_WAIT: _Wait = ("wait", None)


class SharedCalls(Generic[Waiter, Out]):
    """Who waits for which key. Mailbox thread only.

    Keys are the same when they are equal, so 1, 1.0 and True are one key. A waiter is any hashable object that stands
    for one record; it joins once. It ends in exactly one way: as leader by `finish`, `fail` or `abandon` of its key, as
    one who waits by being in the list of `finish` or `fail` or by `unjoin`, or by becoming the leader.
    """

    __slots__ = ("_known", "_remember", "_remember_ms", "_under_way")

    def __init__(self, remember: int = 0, remember_ms: int | None = None) -> None:
        """Remember the answers to at most `remember` keys, the least recently used going first.

        An answer is forgotten `remember_ms` milliseconds after it came, however often it was used; None: never.
        """
        self._remember = remember
        self._remember_ms = remember_ms
        self._under_way: dict[Hashable, dict[Waiter, None]] = {}  # who waits behind the leader, in the order they came
        # The answers and when they came, least recently used first; never longer than `remember`.
        self._known: OrderedDict[Hashable, tuple[tuple[Out, ...], float]] = OrderedDict()

    def join(self, key: Hashable, waiter: Waiter, now_ms: float) -> Joined[Out]:
        """Take `waiter` in for `key`, and say what it has to do.

        - `("lead", None)`: make the call, and end it by `finish`, `fail` or `abandon`.
        - `("wait", None)`: nothing; the call is under way. `unjoin` it when it gives up.
        - `("known", results)`: these are its results; it was not taken in. They are shared with others: not a copy.

        Raises:
            TypeError: `key` is not hashable.
        """
        try:
            waiters = self._under_way.get(key)
        except TypeError as error:
            raise TypeError(
                f"the key to share calls by is {key!r}, which is not hashable ({error}). "
                "Return a string, a number or a tuple of them from dedupe_by."
            ) from error
        if waiters is not None:
            waiters[waiter] = None
            return _WAIT
        if self._known:
            results = self._recall(key, now_ms)
            if results is not None:
                return "known", results
        self._under_way[key] = {}
        return _LEAD

    def finish(self, key: Hashable, results: Iterable[Out], now_ms: float) -> list[Waiter]:
        """End the call of `key`, whose leader has got `results`; returns who else gets them, first come first.

        Raises:
            KeyError: no call for `key` is under way.
        """
        waiters = self._under_way.pop(key)
        if self._remember > 0:
            self._known[key] = (tuple(results), now_ms)
            if len(self._known) > self._remember:
                self._known.popitem(last=False)
        return list(waiters)

    def fail(self, key: Hashable) -> list[Waiter]:
        """End the call of `key`, which failed; returns who fails with the leader. A failure is not remembered.

        Raises:
            KeyError: no call for `key` is under way.
        """
        return list(self._under_way.pop(key))

    def abandon(self, key: Hashable) -> Waiter | None:
        """The leader of `key` gives up: returns who leads from now on and has to make the call anew, None if nobody.

        An answer to the call of the former leader is no longer for `finish`: it would end the new leader's call.

        Raises:
            KeyError: no call for `key` is under way.
        """
        waiters = self._under_way[key]
        if not waiters:
            del self._under_way[key]
            return None
        heir = next(iter(waiters))
        del waiters[heir]
        return heir

    def unjoin(self, key: Hashable, waiter: Waiter) -> bool:
        """`waiter` no longer waits for `key`. Returns whether it did; False for a leader too, who has to `abandon`."""
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
