"""What a client submits."""

from __future__ import annotations

from typing import NamedTuple

from statemachines.resourcemanager.resource import Resource


class ApplicationSubmission(NamedTuple):
    """What a client submits, after YARN's ApplicationSubmissionContext."""

    name: str
    am_resource: Resource
    user: str = "default"
    queue: str = "default"
    am_host: str | None = None
    """Preferred node of the master; any other will do."""
    gpu_models: frozenset[str] = frozenset()
    """Node models that will do for the master; empty: any."""
    max_attempts: int | None = None
    """None, or less than 1: as configured; never more than configured as the most."""
    priority: int = 0
    """Greater is more urgent, among the applications of a queue."""
    application_id: str | None = None
    """From `get_new_application`, so that a submission can be repeated; None: a new one."""
    lifetime_s: int | None = None
    """Killed if it has not ended so long after its submission; None: the queue's own default."""
    attempt_failures_validity_interval_ms: int | None = None
    """Failures older than this do not count towards `max_attempts`; None: all count."""
    keep_containers_across_attempts: bool = False
    """Whether the containers of a failed attempt go on, for the next attempt to take over."""
    unmanaged_am: bool = False
    """Whether its master runs outside of the cluster, and registers by itself."""
    node_label: str | None = None
    """Partition for the master, and for asks that name none; None: the queue's default."""
    application_type: str = "YARN"
    tags: tuple[str, ...] = ()
