"""One node's room: what is free, and what each container has; and what an ask requires of a node.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from statemachines.resourcemanager.records.node_spec import NodeSpec
from statemachines.resourcemanager.records.resource import GPU_MILLI, Resource
from statemachines.resourcemanager.scheduler.core.amounts import resource_of
from statemachines.resourcemanager.scheduler.queue_info import NodeUse

if TYPE_CHECKING:
    from statemachines.resourcemanager.machines.rmcontainer import RMContainer

T = TypeVar("T")

NodeSet = str | tuple[str, str | None, str | None]
"""Candidate nodes: a whole partition; or, for strict locality, one host or rack: (partition, host, rack)."""


class Free(NamedTuple):
    """What a node had free at an earlier time."""

    memory_mb: int
    vcores_milli: int
    gpu_milli: tuple[int, ...]
    others: Mapping[str, int]


_NO_OTHERS: Mapping[str, int] = {}


class SchedulerNode:
    """One node's room. GPUs are booked per device: a GPU share is a share of one device.

    Free amounts are negative while containers have more than the node's capacity: after a cut of the capacity, or when
    a node re-registers with more containers than it has room for.
    """

    __slots__ = (
        "capacity",
        "containers",
        "devices",
        "free_gpu_milli",
        "free_memory_mb",
        "free_others",
        "free_vcores_milli",
        "gpu_model",
        "host",
        "is_draining",
        "launched",
        "node_id",
        "partition",
        "rack",
        "reserved_container",
    )

    def __init__(self, node_id: str, spec: NodeSpec, capacity: Resource | None = None) -> None:
        """`capacity`: overrides the specification's."""
        self.node_id: str = node_id
        self.host: str = spec.host
        self.rack: str = spec.rack
        self.gpu_model: str | None = spec.gpu_model
        self.partition: str = spec.partition
        self.capacity: Resource = spec.capacity if capacity is None else capacity
        self.free_memory_mb: int = self.capacity.memory_mb
        self.free_vcores_milli: int = self.capacity.vcores_milli
        self.free_gpu_milli: list[int] = [GPU_MILLI] * self.capacity.gpus
        self.free_others: dict[str, int] = dict(self.capacity.others)
        self.containers: dict[str, Resource] = {}  # what each has, by id
        self.devices: dict[str, tuple[int, ...]] = {}  # the GPU devices of those containers that have any
        self.launched: set[str] = set()  # containers that the node has reported to run
        self.reserved_container: RMContainer | None = None  # while set, the node takes no other container
        self.is_draining: bool = False  # being decommissioned: takes no new container

    @property
    def total(self) -> Resource:
        """What the node adds to its partition: its capacity or, while it drains, what its containers have."""
        return self.use().used if self.is_draining else self.capacity

    @property
    def has_gpus(self) -> bool:
        return bool(self.free_gpu_milli)

    def fits(self, resource: Resource, gpu_models: frozenset[str] = frozenset()) -> bool:
        """Whether there is room now, and the node's GPU model is one of `gpu_models` (empty: any model)."""
        if resource.memory_mb > self.free_memory_mb or resource.vcores_milli > self.free_vcores_milli:
            return False
        if gpu_models and self.gpu_model not in gpu_models:
            return False
        for name, amount in resource.others:
            if amount > self.free_others.get(name, 0):
                return False
        if not resource.gpus:
            return True
        milli, left = resource.gpu_milli, resource.gpus
        for free in self.free_gpu_milli:
            if free >= milli:
                left -= 1
                if not left:
                    return True
        return False

    def could_fit(self, resource: Resource, gpu_models: frozenset[str] = frozenset()) -> bool:
        """Whether `fits` would hold if the node were empty."""
        capacity = self.capacity
        return (
            resource.memory_mb <= capacity.memory_mb
            and resource.vcores_milli <= capacity.vcores_milli
            and resource.gpus <= capacity.gpus
            and (not gpu_models or self.gpu_model in gpu_models)
            and all(amount <= capacity.other(name) for name, amount in resource.others)
        )

    # -- containers ---------------------------------------------------------------------------------------------------

    def take(self, container: str, resource: Resource) -> tuple[int, ...]:
        """Book `resource` for a container; returns its GPU devices.

        Best fit: of the devices with enough room, those with the least are chosen, so that whole devices stay whole.

        Raises:
            ValueError: there is no room, or the container is booked already. The books are unchanged.
        """
        memory_mb, vcores_milli, gpus, _, others = resource
        if (
            not gpus
            and not others
            and memory_mb <= self.free_memory_mb
            and vcores_milli <= self.free_vcores_milli
            and container not in self.containers
        ):  # `fits` and `_book`, without the calls
            self.free_memory_mb -= memory_mb
            self.free_vcores_milli -= vcores_milli
            self.containers[container] = resource
            return ()
        if container in self.containers or not self.fits(resource):
            raise ValueError(f"{self.node_id}: no room for {resource} of {container}, or it is already booked")
        devices: tuple[int, ...] = ()
        if resource.gpus:
            free = self.free_gpu_milli
            candidates = sorted((free[i], i) for i in range(len(free)) if free[i] >= resource.gpu_milli)
            devices = tuple(sorted(device for _, device in candidates[: resource.gpus]))
        self._book(container, resource, devices)
        return devices

    def recover(self, container: str, resource: Resource, devices: tuple[int, ...]) -> None:
        """Book what a container on a re-registered node already has, even without room."""
        missing = max(devices, default=-1) + 1 - len(self.free_gpu_milli)
        self.free_gpu_milli += [0] * missing  # devices beyond the node's capacity have nothing free
        self._book(container, resource, devices)
        self.launched.add(container)

    def give_back(self, container: str) -> None:
        """Free what the container has, if anything."""
        resource = self.containers.pop(container, None)
        if resource is None:
            return
        self.launched.discard(container)
        self.free_memory_mb += resource.memory_mb
        self.free_vcores_milli += resource.vcores_milli
        if self.devices:
            for device in self.devices.pop(container, ()):
                self.free_gpu_milli[device] += resource.gpu_milli
        for name, amount in resource.others:
            self.free_others[name] += amount

    def resize(self, container: str, resource: Resource) -> bool:
        """Book another size for a container; False, with no change, if there is no room or its GPUs would change.

        Raises:
            KeyError: the container is not on this node.
        """
        old, devices = self.containers[container], self.devices.get(container, ())
        if (resource.gpus, resource.gpu_milli) != (old.gpus, old.gpu_milli) and (old.gpus or resource.gpus):
            return False
        more = [
            (resource.memory_mb - old.memory_mb, self.free_memory_mb),
            (resource.vcores_milli - old.vcores_milli, self.free_vcores_milli),
        ]
        for name, amount in resource.others:
            more.append((amount - old.other(name), self.free_others.get(name, 0)))
        if any(amount > 0 and amount > free for amount, free in more):
            return False
        was_launched = container in self.launched
        self.give_back(container)
        self._book(container, resource, devices)
        if was_launched:
            self.launched.add(container)
        return True

    def _book(self, container: str, resource: Resource, devices: tuple[int, ...]) -> None:
        for device in devices:
            self.free_gpu_milli[device] -= resource.gpu_milli
        self.free_memory_mb -= resource.memory_mb
        self.free_vcores_milli -= resource.vcores_milli
        for name, amount in resource.others:
            self.free_others[name] = self.free_others.get(name, 0) - amount
        self.containers[container] = resource
        if devices:
            self.devices[container] = devices

    def use(self) -> NodeUse:
        """What its containers have, for reports: its capacity less what is free."""
        capacity, reserved = self.capacity, self.reserved_container
        used = {
            "memory_mb": capacity.memory_mb - self.free_memory_mb,
            "vcores_milli": capacity.vcores_milli - self.free_vcores_milli,
        }
        if self.free_gpu_milli:
            used["gpu_milli"] = GPU_MILLI * capacity.gpus - sum(self.free_gpu_milli)
        if self.free_others:
            used |= {name: capacity.other(name) - free for name, free in self.free_others.items()}
        if reserved is None:
            return NodeUse(resource_of(used), len(self.containers))
        return NodeUse(resource_of(used), len(self.containers), reserved.request.resource, reserved.entity)

    # -- capacity -----------------------------------------------------------------------------------------------------

    def set_capacity(self, capacity: Resource) -> None:
        """Change the capacity. Containers keep what they have."""
        old, self.capacity = self.capacity, capacity
        self.free_memory_mb += capacity.memory_mb - old.memory_mb
        self.free_vcores_milli += capacity.vcores_milli - old.vcores_milli
        for name in {name for name, _ in (*old.others, *capacity.others)}:
            free = self.free_others.get(name, 0) + capacity.other(name) - old.other(name)
            self.free_others[name] = free
        free_gpus = self.free_gpu_milli
        free_gpus += [0] * (capacity.gpus - len(free_gpus))
        for device in range(len(free_gpus)):
            had, has = device < old.gpus, device < capacity.gpus
            free_gpus[device] += GPU_MILLI * (has - had)
        while len(free_gpus) > capacity.gpus and not free_gpus[-1]:
            free_gpus.pop()  # the device is gone, and no container uses it

    def free(self) -> Free:
        others = self.free_others.copy() if self.free_others else _NO_OTHERS
        return Free(self.free_memory_mb, self.free_vcores_milli, tuple(self.free_gpu_milli), others)

    def has_more_than(self, before: Free) -> bool:
        """Whether more of some type is free than `before`: only then may something fit now that did not fit then."""
        if self.free_memory_mb > before.memory_mb or self.free_vcores_milli > before.vcores_milli:
            return True
        if self.free_gpu_milli:
            then = before.gpu_milli
            if any(free > (then[i] if i < len(then) else 0) for i, free in enumerate(self.free_gpu_milli)):
                return True
        return bool(self.free_others) and any(
            free > before.others.get(name, 0) for name, free in self.free_others.items()
        )


@dataclass(slots=True, eq=False)
class NodeRequirements:
    """Resource, partition, GPU models, blacklist, and for strict locality a host or rack.

    A node fits all asks with the same requirements, or none. The books make one object of equal requirements; they are
    compared by identity.
    """

    resource: Resource
    gpu_models: frozenset[str]
    partition: str
    host: str | None  # the only host allowed; None: any
    rack: str | None  # the only rack allowed; None: any
    blacklist: frozenset[str]  # hosts
    memory_mb: int = field(init=False)
    vcores_milli: int = field(init=False)
    gpus: int = field(init=False)
    is_plain: bool = field(init=False)
    node_set: NodeSet = field(init=False)

    def __post_init__(self) -> None:
        resource, is_anywhere = self.resource, self.host is None and self.rack is None
        self.memory_mb, self.vcores_milli, self.gpus = resource.memory_mb, resource.vcores_milli, resource.gpus
        self.is_plain = not (resource.gpus or resource.others or self.gpu_models or self.blacklist)
        self.node_set = self.partition if is_anywhere else (self.partition, self.host, self.rack)

    def fits(self, node: SchedulerNode) -> bool:
        """Whether a node of the node set has room and is not excluded."""
        return (
            self.memory_mb <= node.free_memory_mb
            and self.vcores_milli <= node.free_vcores_milli
            and (self.is_plain or self.fits_further(node))
        )

    def fits_further(self, node: SchedulerNode) -> bool:
        """The rest of `fits`, once memory and vcores have been compared."""
        return node.host not in self.blacklist and node.fits(self.resource, self.gpu_models)

    def allows(self, node: SchedulerNode) -> bool:
        """Whether the node may be used, regardless of its room."""
        return (
            node.partition == self.partition
            and (self.host is None or node.host == self.host)
            and (self.rack is None or node.rack == self.rack)
            and node.host not in self.blacklist
        )

    def could_fit(self, node: SchedulerNode) -> bool:
        """Whether the node may be used and would have enough room if it were empty."""
        return self.allows(node) and node.could_fit(self.resource, self.gpu_models)

    def covers(self, other: NodeRequirements) -> bool:
        """Whether every node that fits these also fits `other`, host and rack aside."""
        return (
            self.memory_mb >= other.memory_mb
            and self.vcores_milli >= other.vcores_milli
            and self.gpus >= other.gpus
            and (not other.gpus or self.resource.gpu_milli >= other.resource.gpu_milli)
            and (not other.gpu_models or (bool(self.gpu_models) and self.gpu_models <= other.gpu_models))
            and self.blacklist >= other.blacklist
            and all(self.resource.other(name) >= amount for name, amount in other.resource.others)
        )


def of_node(by_set: Mapping[NodeSet, T], node: SchedulerNode) -> list[T]:
    """The values of the node sets that contain the node."""
    partition = node.partition
    whole = by_set.get(partition)
    if len(by_set) == (whole is not None):  # the usual case: no ask requires a host or a rack
        return [whole] if whole else []
    found = (whole, by_set.get((partition, node.host, None)), by_set.get((partition, None, node.rack)))
    return [value for value in found if value]
