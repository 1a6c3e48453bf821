"""The submission of an application."""

from __future__ import annotations

from typing import NamedTuple

from statemachines.resourcemanager.resource import Resource


class ApplicationSubmission(NamedTuple):
    """A client's submission, after YARN's ApplicationSubmissionContext."""

    name: str
    am_resource: Resource
    user: str = "default"
    queue: str = "default"
    am_host: str | None = None
    """Preferred node of the master, which accepts any other."""
    gpu_models: frozenset[str] = frozenset()
    """GPU models that the master accepts; empty: any."""
    max_attempts: int | None = None
    """None, or less than 1: as configured, which is also the maximum."""
    priority: int = 0
    """A greater one is served first, within a queue."""
    application_id: str | None = None
    """From `get_new_application`, which allows a retry; None: a new id."""
    lifetime_s: int | None = None
    """It is killed this long after its submission; None: the queue's default."""
    attempt_failures_validity_interval_ms: int | None = None
    """Older failures do not count towards `max_attempts`; None: all count."""
    keep_containers_across_attempts: bool = False
    """Whether the next attempt takes over the running containers of a failed one."""
    unmanaged_am: bool = False
    """Whether its master runs outside the cluster and registers by itself."""
    node_label: str | None = None
    """Default partition of its requests, and the master's; None: the queue's default."""
    application_type: str = "YARN"
    tags: tuple[str, ...] = ()
