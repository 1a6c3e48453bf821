"""How many records an ordered operator takes in when no capacity was given: as many as keep its calls in flight.

An ordered queue waits for its oldest record. While that one's call is slow, the calls behind it end, and without more
records their slots stand idle. So the queue grows when that happens, and only then, as far as memory allows. Mailbox
thread only.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any, Final

from pipeline.streaming.calls.element_queues import OrderedStreamElementQueue, StreamElementQueue
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.options import AsyncOptions

PER_CALL: Final = 10
"""The queue first grows to this many times the records that make all calls."""
MOST_PER_CALL: Final = 64
"""And up to this many times: enough where one call in a hundred takes 50 times as long as the others."""
MOST_BYTES: Final = 64 << 20
"""About what the records and results in the queue may take."""
_SAMPLES: Final = 8
_FULL_TIMES_PER_CHECK: Final = 8
"""A queue that has grown is measured again once it was full this often: later records may be larger."""
_ITEMS_MEASURED: Final = 16
_DEPTH_MEASURED: Final = 4


class GrowingRoom:
    """Raises the capacity of `queue`, first to `usual` elements, then up to `most`, while they take up to `most_bytes`.

    `calls`: maximum records whose calls are in flight. With fewer, slots stand idle.
    """

    def __init__(
        self,
        queue: OrderedStreamElementQueue[Any, Any],
        calls: int,
        usual: int,
        most: int,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._queue = queue
        self._calls = calls
        self._least = queue.capacity
        self._usual = usual
        self._most = most
        self._most_bytes = most_bytes
        self._times_full = 0  # since the last measurement

    @classmethod
    def of(cls, queue: StreamElementQueue[Any, Any], options: AsyncOptions, host: CallHost) -> GrowingRoom | None:
        """The room of an operator's queue; None if its capacity does not grow."""
        if not options.may_grow or not isinstance(queue, OrderedStreamElementQueue):
            return None
        records, ahead = options.records_for_calls(host.is_batch), options.read_ahead
        calls = records if host.is_batch or host.max_calls is None else min(records, host.max_calls)
        return cls(queue, calls, records * PER_CALL + ahead, records * MOST_PER_CALL + ahead)

    def adapt(self, under_way: int) -> bool:
        """Change the capacity of a full queue while `under_way` calls are, if idle slots or large records call for it.

        Returns whether it has grown. Call it when the queue may be full: after calls have ended, and before a wait for
        room.
        """
        queue = self._queue
        if not queue.is_full():
            return False
        capacity = queue.capacity
        # A completed head waits for the output, and more records would only wait with it.
        is_blocked = under_way < self._calls and not queue.has_completed_elements()
        self._times_full += 1
        if (is_blocked and capacity < self._most) or (
            capacity > self._least and self._times_full >= _FULL_TIMES_PER_CHECK
        ):
            self._times_full = 0
            wanted = min(max(2 * capacity, self._usual), self._most) if is_blocked else capacity
            queue.capacity = max(self._least, min(wanted, self._affordable()))
        return queue.capacity > capacity

    def _affordable(self) -> int:
        sampled = self._queue.sample(_SAMPLES)
        held_bytes = sum(approximate_bytes(each) for each in sampled)
        return self._most_bytes * len(sampled) // max(1, held_bytes)


def approximate_bytes(value: object, depth: int = _DEPTH_MEASURED) -> int:
    """About how much memory `value` takes with what it refers to; of a long container, a few items are measured."""
    size = max(sys.getsizeof(value, 64), _buffer_bytes(value))
    items: Iterable[Any]
    if depth == 0 or isinstance(value, str | bytes | int | float | None):
        return size
    if isinstance(value, dict):
        count, items = 2 * len(value), chain.from_iterable(value.items())
    elif isinstance(value, list | tuple | set | frozenset | deque):
        count, items = len(value), value
    else:
        fields = getattr(value, "__dict__", None)
        if not isinstance(fields, dict):
            return size
        count, items = len(fields), fields.values()
    measured = [approximate_bytes(item, depth - 1) for item in islice(items, _ITEMS_MEASURED)]
    return size + (sum(measured) * count // len(measured) if measured else 0)


def _buffer_bytes(value: object) -> int:
    """What an array or a table holds outside of Python's own objects."""
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0
