"""How far the handler thread has got: what it took from the queue, and what it has in hand.

Events are taken by `starmap(popleft, turns)`, where `turns` is a `repeat` of as many turns as the batch has events. A
step of that iterator uses up a turn and takes an entry in one go: both happen in C, where CPython runs no other thread.
So the turns that are left say how many entries were taken, at each moment, and no event costs a store for it.

Invariants 3 and 4, at each moment: an accepted event is queued until the step that takes it, and `taken()` counts it
from that step on. It is in hand from there until `handled` or `failed` of its route counts it, which is one store. So

    in hand = taken - handled - failed

is 0 or 1, and an event is in exactly one of: the queue, in hand, handled, failed, discarded. A step that finds the
queue emptied by another thread uses up a turn, takes nothing and raises. The `except` clause gives the turn back with
its first statements, which call nothing: CPython switches threads at calls and at jumps back only.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from operator import length_hint
from typing import Any

from dispatcher.queue.state import QueuedEvent, event_of


class Progress:
    """Written by the handler thread alone (invariant 1), except as it says; read by any thread.

    A batch is counted in `begun` before its first event leaves the queue and in `done` after its last handler has
    returned. So if nothing is queued at a moment at which the two are equal, nothing is in hand either (invariant 3).
    """

    __slots__ = ("begun", "done", "entry", "redelivered_upto", "since_ns", "turns")

    def __init__(self) -> None:
        self.begun = 0  # handler thread writes, any reads
        self.done = 0  # handler thread writes, any reads
        self.entry: Any = None  # taken last, from the queue, in this batch; handler thread writes, any reads
        self.since_ns = 0  # when the handler, or in a flood the batch, started; 0: none runs; handler thread writes
        # How many entries are taken once the turns are used up, and the turns; replaced as one by the handler thread.
        self.turns: tuple[int, Iterator[tuple[()]]] = (0, repeat((), 0))
        self.redelivered_upto = 0  # accepted seqs up to this one were redelivered; set before the start

    def taken(self) -> int:
        """Entries taken from the queue by the handler thread so far. Any thread."""
        upto, turns = self.turns
        return upto - length_hint(turns)

    def event(self) -> Any:
        """The event that is being handled, or was taken last by a batch that goes on; None between batches."""
        return event_of(self.entry)

    def accepted_seq(self) -> int:
        """The place in the write-ahead log of the event in hand; 0: it is not there."""
        entry = self.entry
        return entry.accepted_seq if type(entry) is QueuedEvent else 0
