"""What a scheduler reports of a queue."""

from __future__ import annotations

from typing import NamedTuple

from statemachines.resourcemanager.resource import Resource


class QueueInfo(NamedTuple):
    """One queue, for reports. Shares are of the whole cluster (of a partition), 0 to 1."""

    path: str
    """From the root, joined by dots: `root.research.nightly`."""
    state: str
    """RUNNING or STOPPED."""
    capacity: float
    maximum_capacity: float
    used_capacity: float
    """Of its own capacity: above 1 it uses what its siblings leave."""
    used: Resource
    """`gpus` and `gpu_milli`: thousandths in `gpu_milli`, of one device."""
    applications: int
    """Those that have not ended."""
    pending_applications: int
    """Those among them whose master may not be started yet."""
    containers: int
    children: tuple[str, ...] = ()
    """Paths."""
    priority: int = 0
    accessible_node_labels: tuple[str, ...] = ()
    default_node_label: str | None = None
