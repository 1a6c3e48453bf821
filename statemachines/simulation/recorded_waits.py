"""Who waits for room here that did not where the workload was recorded, and why.

Two clusters never place alike: the recorded one may have had other rules, other users, or more room than its files
tell. This says how far apart they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.machines.rmappattempt import RMAppAttemptState


@dataclass(slots=True)
class RecordedWaits:
    """Counts applications; written by the handler thread, and read when it has ended."""

    at_once: int = 0
    """Those that got their master's room without waiting where they were recorded."""
    waiting: int = 0
    """Of these, those that wait here."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why, in the scheduler's words, at the moment at which the wait began."""

    @property
    def share(self) -> float:
        """Of those that were placed at once, the share that waits here; 0 to 1."""
        return self.waiting / self.at_once if self.at_once else 0.0

    def look(self, context: RMContext, app_id: str) -> None:
        """An application that was placed at once has been submitted: is it placed here, too?"""
        self.at_once += 1
        app = context.apps.get(app_id)
        attempt = app.current_attempt if app is not None else None
        if attempt is None or attempt.state is not RMAppAttemptState.SCHEDULED:
            return
        self.waiting += 1
        self.reasons[context.scheduler.why_waiting(attempt.entity, attempt.master_request())] += 1
