"""Which handler of the resource manager is stuck, for the notice on pages. Any thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from dispatcher.view import DispatcherView

HANG_S: Final = 1.0
"""A handler that is busy with one event or mail for longer hangs."""


class Hang(NamedTuple):
    """A handler thread that has been busy for long, so the state that the web address shows may be old."""

    dispatcher: str
    """Its name."""
    kind: str
    """event or mail."""
    what: str
    """Such as `RMNodeEventType.STATUS_UPDATE of node17:45454`, or the description of the mail."""
    since_ms: int
    """Unix ms."""
    running_s: float

    def without_ids(self) -> Hang:
        """As those see it that may not see every application."""
        return self._replace(what=self.what.partition(" of ")[0] if self.kind == "event" else "a mail")


def longest_hang(views: Iterable[DispatcherView]) -> Hang | None:
    """The handler that hangs for the longest: others may be waiting for it. None: none does."""
    stuck = max(((view.running_s(), view.name, view) for view in views), default=None, key=lambda each: each[:2])
    if stuck is None or stuck[0] <= HANG_S:
        return None
    view = stuck[2]
    run = view.running()
    if run is None or run.running_s <= HANG_S:  # it has just ended
        return None
    what = run.description
    if run.kind == "event":
        what = f"{run.event_class}.{run.event_type}" + (f" of {run.entity}" if run.entity else "")
    return Hang(view.name, run.kind, what, round(run.since * 1000), run.running_s)
