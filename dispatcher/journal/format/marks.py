"""What the line of an accepted event says besides the event.

Dispatchers without a journal import this module too, so it imports little.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

EVENT: Final = b',"event":'
"""In a line, what comes before the event's fields. It is in no name, where JSON escapes quotation marks."""
NO_EVENT: Final = b'{"event_class":"","event_type":"","model":""' + EVENT + b"null}"
"""The line without an event that `with_marks` makes a line of a `post_every` whose events a factory makes."""


class Marks(NamedTuple):
    """What a line says besides the event. Times are Unix ns."""

    due_ns: int = 0
    """The event is to be handled from then on; 0: at once."""
    attempt: int = 1
    """2: its handler has failed once."""
    replaces: int = 0
    """The accepted seq of an earlier line, which this one takes the place of."""
    order: float = 0
    """Of an event that has failed: its place among the accepted seqs, which is its first line's, or between two of them
    if it was due at a time; 0: the seq of this line."""
    key: str = ""
    """Of the `post_every` to which the line belongs."""
    timer: str = ""
    """The key of the `post_after` or `post_at` to which the line belongs."""
    fired_ns: int = 0
    """The time at which that was due to post this event; 0: there is no event, and it is due to post at `due_ns`."""
    died: dict[str, Any] | None = None
    """Of a dead letter: how it has failed."""
    carried: list[list[str]] | None = None
    """Pairs of a context variable's name and its value in the post. A JSON object would not do: a variable may be named
    like a part of the line, such as "event"."""
    rule: dict[str, Any] | None = None
    """The arguments of that `post_every` that say when it posts; earlier releases did not write them."""
    last_ns: int = 0
    """The last time that it has posted; 0: none."""

    @property
    def has_event(self) -> bool:
        """False: nothing is to be handled, the line only holds when a `post_every` is due next, and what it posts."""
        return not self.key or self.fired_ns != 0


def is_without_event(line: bytes) -> bool:
    """Whether it is NO_EVENT, with any marks."""
    return line.partition(EVENT)[2] == b"null}"
