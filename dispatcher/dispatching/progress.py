"""How far the handler thread has got: the events it has taken from the queue, and the one in hand.

The handler thread takes events with `starmap(popleft, turns)`, where `turns` is a `repeat` with one turn for each event
of the batch. A step of that iterator uses up a turn and takes an entry, both in C, where CPython runs no other thread.
So the turns left say how many entries were taken, at every moment, without a store for each event.

Invariants 3 and 4: an accepted event is queued until the step that takes it, and `taken()` counts it from that step on.
It is in hand until its route counts it as handled or failed, which is one store. So, at every moment,

    in hand = taken - handled - failed - given up

is 0 or 1, plus the events whose coroutines have not ended, and an event is in exactly one of: the queue, in hand,
handled, failed, discarded. A stop that gives up on a coroutine discards its event. If another thread has emptied the
queue, a step uses up a turn, takes nothing and raises. The `except` clause returns the turn in its first statements,
which call nothing: CPython switches threads only where a function begins, after calls and at jumps back. (Python 3.11
also collects garbage where the exception gets its traceback. A finalizer that lets another thread run there shows it
one entry in hand too many.)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from operator import length_hint
from typing import Any

from dispatcher.queue.state import QueuedEvent, event_of


class Progress:
    """Written by the handler thread alone (invariant 1), unless a field says otherwise; read by any thread.

    `begun` counts a batch before its first event leaves the queue, `done` after its last handler has returned. So if
    the queue is empty at a moment when the two are equal, no event is in hand either (invariant 3). The event of a
    coroutine counts as a batch of its own: `begun` within the batch that took it, `done` once it is handled or failed.
    """

    __slots__ = ("begun", "done", "entry", "given_up", "redelivered_upto", "since_ns", "turns")

    def __init__(self) -> None:
        self.begun = 0  # handler thread writes, any reads
        self.done = 0  # handler thread writes, any reads
        self.given_up = 0  # events taken, and then discarded by a stop; handler thread writes, any reads
        self.entry: Any = None  # the entry taken last in this batch; handler thread writes, any reads
        # Start of the current handler, which is the end of the event before it in the batch; in a flood, the start of
        # the batch; 0: none. Handler thread writes, any reads.
        self.since_ns = 0
        # The entries taken once the turns are used up, and the turns; the handler thread replaces both in one store.
        self.turns: tuple[int, Iterator[tuple[()]]] = (0, repeat((), 0))
        self.redelivered_upto = 0  # accepted seqs up to this one are redelivered; set before the start

    def is_at_rest(self) -> bool:
        """No event is in hand. Exact on the handler thread; see `Drain.is_drained` for others."""
        return self.begun == self.done

    def taken(self) -> int:
        """Entries taken from the queue by the handler thread so far. Any thread."""
        upto, turns = self.turns
        return upto - length_hint(turns)

    def event(self) -> Any:
        """The event taken last by the current batch, which is usually in hand; None between batches."""
        return event_of(self.entry)

    def accepted_seq(self) -> int:
        """The accepted seq of the event in hand; 0: it is not in the write-ahead log."""
        entry = self.entry
        return entry.accepted_seq if type(entry) is QueuedEvent else 0
