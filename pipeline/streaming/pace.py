"""How far the calls for an input run ahead of the reader of their results.

A reader that stops early, such as a `limit`, has paid for all calls made until then. So there is a bound for the rows
that have been taken in and whose results the reader has not taken: at first as many as are called for at a time, then
the operator's capacity, then as many as the reader has taken so far, or a multiple of them. It is expected to take
more, and what lies ready on the way keeps the calls going. In the end the operator's queue and the results that wait to
be sent, two batches, are the bound.

Results are sent in batches, one at a time: the next is sent when the reader has read the last, which it does when it
has taken all before. The first batch is one row, and none is larger than all before it together, so that the reader's
demand shows early. A batch without rows is sent to learn whether the last rows were taken, where calls wait for that,
and now and then while there is nothing to send: only a reader that gets something sees that it was cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

_BATCHES_WAITING: Final = 2
"""Results are given to the sender until it has so many full batches."""
_PART_OF_TAKEN: Final = 8
"""A batch has this part of the rows taken so far, unless its rows have waited for long."""
_FEWEST_PART: Final = 16
"""Rows are taken in by this part of the bound at least, so that calls in batches find enough of them."""
_SILENCE_S: Final = 0.5
_BLOCKED_S: Final = 0.005
_IDLE_S: Final = 0.05
_FIRST_POLL_S: Final = 0.0003
_LAST_POLL_S: Final = 0.02


class ReaderGoneError(Exception):
    """The reader of the results has ended: it needs no more of them."""


class ResultReader(Protocol):
    """The other end of an output, as far as the sender can see it."""

    def has_read_all(self) -> bool:
        """Whether all that was sent has been read. Reading comes when everything before has been taken."""

    def is_gone(self) -> bool: ...


class ReaderPace:
    """Decides when rows are taken in and results are sent. One thread.

    `calls`: rows that are called for at a time. `capacity`: rows that the operator takes in. `per_taken`: rows that may
    be taken in for each that the reader has taken, if these are more. `max_wait_s`: results wait so long for a full
    batch. `clock`: in seconds.
    """

    def __init__(
        self,
        calls: int,
        capacity: int,
        reader: ResultReader,
        *,
        per_taken: int = 1,
        max_wait_s: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls
        self._capacity = capacity
        self._reader = reader
        self._per_taken = per_taken
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._most = 1  # rows of a full batch
        self._sent = 0  # results
        self._last = 0  # those of the last batch, which may not have been taken
        self._is_unread = False  # the last batch
        self._taken = 0  # results that the reader has taken for certain
        self._sent_s = clock()
        self._poll_s = _FIRST_POLL_S
        self._waiting = 0  # results to be sent, when it was last asked
        self._is_blocked = False  # rows wait for room

    def check_reader(self) -> None:
        """Raise ReaderGoneError if the reader has ended."""
        if self._reader.is_gone():
            raise ReaderGoneError

    def room(self, begun: int, passed: int, held: int, emitted: int) -> int:
        """How many more rows may be taken in.

        `begun`: rows taken in; `passed`: those of them that have surely reached the operator; `held`: elements in it;
        `emitted`: results it has emitted.
        """
        self._look()
        finished = self._taken + max(0, passed - held - emitted)  # rows without a result have nothing to be taken
        most = self._calls if finished < self._calls else max(self._capacity, self._per_taken * finished)
        room = most - (begun - passed) - held - (emitted - self._taken)
        self._is_blocked = room < max(1, most // _FEWEST_PART)
        return 0 if self._is_blocked else room

    def rows_due(self, waiting: int, waited_s: float, most: int) -> int:
        """How many of the `waiting` results to send now; the first has waited for `waited_s`. `most`: in a batch."""
        self._waiting, self._most = waiting, most
        if not waiting or not self._look():
            return 0
        limit = min(most, max(1, self._sent))
        if waiting < min(limit, self._part()) and waited_s < self._max_wait_s:
            return 0
        return min(waiting, limit)

    def is_probe_due(self) -> bool:
        """Whether to send a batch without rows."""
        if self._waiting or not self._look():
            return False
        is_question = self._is_blocked and self._taken < self._sent
        return is_question or self._clock() - self._sent_s >= _SILENCE_S

    def has_sent(self, rows: int) -> None:
        """Note that a batch with `rows` results was sent."""
        self._last = rows if self._look() else self._last + rows
        self._sent += rows
        self._is_unread = True
        self._sent_s = self._clock()
        self._poll_s = _FIRST_POLL_S

    def results_wanted(self, most: int) -> int:
        """For how many results to wait, at most `most`."""
        return most if self._is_unread else max(1, min(most, self._part() - self._waiting))

    def takes_results(self) -> bool:
        """Whether the sender should have more results; otherwise they stay with the operator, which then waits."""
        return self._waiting < _BATCHES_WAITING * self._most

    def wait_s(self) -> float:
        """How long to wait for them before the next question."""
        if self._is_unread:
            self._poll_s = min(_LAST_POLL_S, 1.5 * self._poll_s)
            return self._poll_s
        return _BLOCKED_S if self._is_blocked else _IDLE_S

    def _part(self) -> int:
        return min(self._most, max(1, self._taken // _PART_OF_TAKEN))

    def _look(self) -> bool:
        """Whether the reader has read the last batch."""
        if self._is_unread and self._reader.has_read_all():
            self._is_unread = False
            self._taken = self._sent - self._last
        return not self._is_unread
