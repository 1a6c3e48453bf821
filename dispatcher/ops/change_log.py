"""The last changes that administrators have made by one app, with what has become of each part of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from dispatcher.util.registry import Numbers, copy_of
from dispatcher.util.units import milliseconds
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.waiting import Workers

T = TypeVar("T")

_KEPT: Final = 50
_WORKERS: Final = 4
_NUMBERS: Final = Numbers()

Outcome = Callable[[], tuple[str, str]]
"""What has become of it by now, in a word, and the detail. It keeps no dispatcher alive."""


class KeptChange(NamedTuple):
    """One change."""

    number: int
    at_ms: int
    user: str
    operation: str
    dispatcher: str
    outcomes: Sequence[tuple[str, Outcome]]


class ChangesMade:
    """The last changes of one app. Any thread, but `run`: one loop's thread."""

    def __init__(self) -> None:
        self._last: deque[KeptChange] = deque(maxlen=_KEPT)  # any thread appends and copies
        self._workers = Workers(most=_WORKERS)  # of their own: a journal that is read for seconds delays no change

    async def run(self, function: Callable[[], T]) -> T:
        """Make a change on a thread that may wait for the disk. Raises Refusal (503): it may still be made."""
        return await self._workers.run(function, late="it may still be done")

    def add(self, user: str, operation: str, dispatcher: str, outcomes: Sequence[tuple[str, Outcome]]) -> int:
        """Keep a change; returns its number."""
        kept = KeptChange(_NUMBERS.next(), milliseconds(time.time()), user, operation, dispatcher, outcomes)
        self._last.append(kept)
        return kept.number

    def newest_first(self) -> list[KeptChange]:
        return copy_of(self._last)[::-1]

    def find(self, number: int) -> KeptChange:
        """Raises Refusal (404)."""
        for each in copy_of(self._last):
            if each.number == number:
                return each
        raise Refusal(404, f"no change {number}; this process keeps the last {_KEPT}")
