"""A scheduler's reports on its queues, and on what applications and nodes have.

They are immutable: any thread may read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from statemachines.resourcemanager.records.resource import NOTHING, MaximumAllocation, Resource

if TYPE_CHECKING:
    from statemachines.resourcemanager.machines.rmcontainer import RMContainer


class PartitionInfo(NamedTuple):
    """What a queue may use, and uses, of one partition. Resources have GPUs as one device, thousandths in gpu_milli."""

    partition: str  # empty: the default partition
    capacity: float  # configured, percent of the parent's
    maximum_capacity: float  # configured, percent of the parent's
    used_capacity: float  # percent of its own capacity; 0 without one
    absolute_capacity: float  # percent of the partition
    absolute_maximum_capacity: float  # percent of the partition
    absolute_used_capacity: float  # percent of the partition
    guaranteed: Resource = NOTHING
    maximum: Resource = NOTHING
    used: Resource = NOTHING  # with what is reserved
    reserved: Resource = NOTHING
    pending: Resource = NOTHING
    am_limit: Resource = NOTHING  # for masters; a leaf's
    am_used: Resource = NOTHING  # by masters of active applications; a leaf's
    user_am_limit: Resource = NOTHING  # for the masters of one user; a leaf's


class QueueUserInfo(NamedTuple):
    """One user of a leaf queue. Resources cover all partitions, the limits the default partition."""

    user: str
    used: Resource  # with what is reserved
    reserved: Resource
    pending: Resource
    am_used: Resource  # by masters of active applications
    user_limit: Resource  # at or below it, the user gets one more container of any size
    am_limit: Resource
    active_applications: int
    pending_applications: int
    allocated_containers: int
    reserved_containers: int
    pending_containers: int
    is_active: bool  # it has pending asks of active applications, and takes part in sharing the queue


class QueueInfo(NamedTuple):
    """One queue. Capacities are shares of the whole default partition, from 0 to 1.

    `partitions` has them in percent. Resources cover all partitions.
    """

    path: str  # from the root, joined by dots: root.research.nightly
    state: str  # RUNNING or STOPPED
    capacity: float
    maximum_capacity: float
    used_capacity: float  # share of its own capacity; above 1, the queue uses what its siblings leave
    used: Resource  # with what is reserved; GPUs as one device, with all thousandths in gpu_milli
    applications: int  # not ended
    pending_applications: int  # applications whose master may not start yet
    containers: int  # with the reserved ones
    children: tuple[str, ...] = ()  # paths
    priority: int = 0
    accessible_node_labels: tuple[str, ...] = ()
    default_node_label: str | None = None
    partitions: tuple[PartitionInfo, ...] = ()  # the default partition first
    users: tuple[QueueUserInfo, ...] = ()  # a leaf's, in order of their first application
    reserved: Resource = NOTHING
    pending: Resource = NOTHING
    reserved_containers: int = 0
    pending_containers: int = 0
    maximum_applications: int | None = None  # None: a parent without a limit of its own
    maximum_applications_per_user: int | None = None  # a leaf's
    user_limit_percent: float = 100.0  # the minimum user limit
    user_limit_factor: float = 1.0
    ordering_policy: str = "fifo"  # a parent's: priority-utilization
    acl_submit_applications: str | None = None  # as configured; None: those of the queues above only
    acl_administer_queue: str | None = None
    preemption_disabled: bool = True
    maximum_allocation: MaximumAllocation = MaximumAllocation()  # its own, or its nearest parent's
    maximum_am_percent: float = 100.0  # of a leaf's maximum, for masters

    @property
    def is_leaf(self) -> bool:
        """Whether it has no queues below it."""
        return not self.children

    @property
    def active_applications(self) -> int:
        """Number of applications whose masters can run."""
        return self.applications - self.pending_applications

    @property
    def allocated_containers(self) -> int:
        """Number of containers, without reservations."""
        return self.containers - self.reserved_containers


class PendingRequests(NamedTuple):
    """Pending asks of an attempt that differ only in the nodes that they prefer."""

    resource: Resource  # of each
    containers: int
    priority: int  # lower is served first, within the application
    partition: str
    host: str | None  # the only host allowed; None: any
    rack: str | None  # the only rack allowed; None: any


class ApplicationUse(NamedTuple):
    """What an attempt has, and waits for."""

    live: tuple[RMContainer, ...] = ()  # not ended; allocated ones only
    reserved: tuple[Resource, ...] = ()  # one per reservation
    pending: tuple[PendingRequests, ...] = ()
    queue_share: float = 0.0  # of its queue's guarantee in its partition; 0 without a guarantee
    cluster_share: float = 0.0  # of its partition
    blacklist: frozenset[str] = frozenset()  # hosts, by its masters


class NodeUse(NamedTuple):
    """What a node's containers have."""

    used: Resource = NOTHING  # GPUs as one device, thousandths in gpu_milli
    containers: int = 0
    reserved: Resource = NOTHING
    reserved_container: str | None = None
