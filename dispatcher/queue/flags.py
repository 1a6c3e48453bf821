"""What a post reads: the phase of the queue, the alert, and whether to note the time."""

from __future__ import annotations

import contextlib
from time import perf_counter_ns
from typing import Any, Final, Literal

from dispatcher.queue.entry import QUEUED, STAMPED, Entry, EntryOwner

# RUNNING -> DRAINING (refuses posts from outside, accepts posts from handlers) -> STOPPED -> ABANDONED, never back.
# ABANDONED: the stop does not wait for the events, or has given up waiting. It refuses posts from handlers as well.
RUNNING: Final = 0  # plain ints: comparing members of an IntEnum runs Python code on the hot path
DRAINING: Final = 1
STOPPED: Final = 2
ABANDONED: Final = 3
FORKED: Final = 4  # this is a copy in a child process, whose handler thread stayed with the parent

# The gate: what a post does before the append. An empty list: nothing. A list with an entry: note the time, unless the
# handler thread waits.
STAMP_ALL: Final = 2  # note the time
LOOK: Final = 3  # take the slow path, from now on for ever

Times = Literal["all", "sampled", "none"]

_STAMP_EVERY_NS: Final = 1_000_000
"""When sampling: at most one post in this time notes it."""


class PostFlags:
    """The flags that each post reads. An object of its own, because a slot is faster to read."""

    __slots__ = ("alert", "gate", "phase", "woken_ns")

    def __init__(self) -> None:
        self.gate: int | list[None] = []  # read before the append; any thread sets LOOK, nothing resets it
        # Read after the append: the handler thread waits, or not RUNNING; see "Post and sleep".
        self.alert: bool = False
        self.phase: int = RUNNING  # never goes back; written under the lock
        self.woken_ns: int = 0  # when a post woke the handler thread; written by that post, reset by the handler thread


class Stamping:
    """Chooses which posts of one queue note their time: all, at most one per ms (sampled), or none."""

    def __init__(self, flags: PostFlags, times: Times) -> None:
        self.samples: Final = times == "sampled"
        self.stamps_all: Final = times == "all"
        # One item: the next post notes its time. When sampling, the handler thread appends it and any thread pops it.
        self.due: Final[list[None]] = [None] if times != "none" else []
        self.again_at_ns: int = 0  # when the handler thread is to call `stamp_again` next, if sampling; handler thread
        flags.gate = STAMP_ALL if times == "all" else self.due

    def stamped(self, inbox: EntryOwner, event: Any) -> Any:
        """The event as an entry that was posted now. Any thread."""
        if self.stamps_all:
            return (event, perf_counter_ns(), STAMPED)
        if self.samples and self.due:
            with contextlib.suppress(IndexError):  # another post was faster
                self.due.pop()
        entry = Entry(inbox, event, enqueued_ns=perf_counter_ns())
        entry.state = QUEUED
        return entry

    def stamp_again(self, now_ns: int) -> None:
        """When sampling, once `again_at_ns` has passed: let the next post note its time. Handler thread."""
        self.again_at_ns = now_ns + _STAMP_EVERY_NS
        if not self.due:
            self.due.append(None)
