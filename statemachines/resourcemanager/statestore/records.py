"""What the state store keeps: one record per application and per attempt, after YARN's RMState.

Records are immutable; an update replaces one. All times are Unix milliseconds of the resource manager's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.submission import ApplicationSubmission


class ApplicationStateData(NamedTuple):
    """An application, after YARN's class of that name."""

    application_id: str
    submission: ApplicationSubmission
    """With the queue and priority that it has now."""
    submit_ms: int
    start_ms: int
    state: str | None = None
    """FINISHED, FAILED or KILLED; None while it has not ended."""
    diagnostics: str = ""
    finish_ms: int | None = None
    launch_ms: int | None = None


class MasterContainerData(NamedTuple):
    """The container of an attempt's master."""

    container_id: str
    node: str
    resource: Resource


class ApplicationAttemptStateData(NamedTuple):
    """An attempt, after YARN's class of that name."""

    attempt_id: str
    master_container: MasterContainerData | None
    """None for a master that the cluster does not run."""
    start_ms: int
    state: str | None = None
    """FINISHED, FAILED or KILLED; None while it has not ended."""
    final_status: str | None = None
    """What its master said when it unregistered."""
    exit_status: int | None = None
    """Of the master's container."""
    diagnostics: str = ""
    tracking_url: str = ""
    finish_ms: int | None = None


@dataclass(slots=True)
class RecoveredApplication:
    """An application and its attempts, by id, in the order of their ids."""

    data: ApplicationStateData
    attempts: dict[str, ApplicationAttemptStateData] = field(default_factory=dict)


@dataclass(slots=True)
class RMState:
    """All that a store holds: what a resource manager recovers from. Applications in the order of their submission."""

    applications: dict[str, RecoveredApplication] = field(default_factory=dict)
