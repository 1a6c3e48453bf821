"""A scheduler's report on a queue."""

from __future__ import annotations

from typing import NamedTuple

from statemachines.resourcemanager.resource import Resource


class QueueInfo(NamedTuple):
    """One queue. Capacities are shares of the whole default partition, 0 to 1."""

    path: str  # from the root, joined by dots: root.research.nightly
    state: str  # RUNNING or STOPPED
    capacity: float
    maximum_capacity: float
    used_capacity: float  # share of its own capacity; above 1, the queue uses what its siblings leave
    used: Resource  # GPUs as one device, with all thousandths in gpu_milli
    applications: int  # not ended
    pending_applications: int  # applications whose master may not start yet
    containers: int
    children: tuple[str, ...] = ()  # paths
    priority: int = 0
    accessible_node_labels: tuple[str, ...] = ()
    default_node_label: str | None = None
