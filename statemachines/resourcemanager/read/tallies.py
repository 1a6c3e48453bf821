"""Counts of the applications in a read model, kept up to date as reports come, change and go. One loop's thread."""

from __future__ import annotations

from collections import Counter

from statemachines.resourcemanager.read.failures import Failures
from statemachines.resourcemanager.reports import ApplicationReport, view_key


class Tallies:
    """The counts; `take` changes them in place."""

    def __init__(self) -> None:
        self.states: Counter[str] = Counter()
        """Applications by state."""
        self.places: Counter[tuple[str, str, str]] = Counter()
        """Applications by queue, as they name it, by user and state."""
        self.failures: Failures = Failures()

    def take(self, before: ApplicationReport | None, after: ApplicationReport | None) -> None:
        """The report of an application has changed; None: there was none, or is none now."""
        was, is_ = _counted(before), _counted(after)
        if was != is_:
            for report, sign in (before, -1), (after, 1):
                if report is not None:
                    self._add(report, sign)

    def _add(self, app: ApplicationReport, sign: int) -> None:
        self.states[app.state] += sign
        place = app.queue, app.user, app.state
        self.places[place] += sign
        if not self.places[place]:
            del self.places[place]
        if app.failure is not None:
            self.failures.take(app, sign)


def _counted(app: ApplicationReport | None) -> object:
    """What the counts depend on."""
    return None if app is None else (view_key(app), app.state, app.failure, app.exit_status, app.finish_ms)
