"""The scheduler's books of one node: what is free, and which container has what. It never gives what it has not got."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from statemachines.resourcemanager.node_spec import NodeSpec
from statemachines.resourcemanager.resource import GPU_MILLI, Resource

if TYPE_CHECKING:
    from statemachines.resourcemanager.machines.rmcontainer import RMContainer


class Free(NamedTuple):
    """What a node had free at some time."""

    memory_mb: int
    vcores_milli: int
    gpu_milli: tuple[int, ...]
    others: Mapping[str, int]


_NO_OTHERS: Mapping[str, int] = {}


class SchedulerNode:
    """One node's room. GPUs are kept device by device: a share is a share of one of them.

    What is free of a type is below zero where the node's capacity has become less than what its containers have, or a
    node that came back has more containers than room.
    """

    __slots__ = (
        "capacity",
        "containers",
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
        """`capacity`: where it is not what the specification says."""
        self.node_id = node_id
        self.host = spec.host
        self.rack = spec.rack
        self.gpu_model = spec.gpu_model
        self.partition = spec.partition
        self.capacity = spec.capacity if capacity is None else capacity
        self.free_memory_mb = self.capacity.memory_mb
        self.free_vcores_milli = self.capacity.vcores_milli
        self.free_gpu_milli = [GPU_MILLI] * self.capacity.gpus
        self.free_others = dict(self.capacity.others)
        self.containers: dict[str, tuple[Resource, tuple[int, ...]]] = {}  # what each has, and of which GPUs
        self.launched: set[str] = set()  # those of them that the node is known to run
        self.reserved_container: RMContainer | None = None  # the node is kept for this one, and gets no other
        self.is_draining = False  # gets no new container: it is being decommissioned

    @property
    def has_gpus(self) -> bool:
        return bool(self.free_gpu_milli)

    def fits(self, resource: Resource, gpu_models: frozenset[str] = frozenset()) -> bool:
        """Whether there is room now, and the node's model is one of `gpu_models`, if any are named."""
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
        """As `fits`, if the node were empty."""
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
        """Give `resource` to a container; returns the GPUs it got.

        Of the devices with room enough, those with the least are taken, so that whole ones stay whole.

        Raises:
            ValueError: there is no room, or the container has some already: the books stay as they are.
        """
        if container in self.containers or not self.fits(resource):
            raise ValueError(f"{self.node_id}: no room for {resource} of {container}, or it has its room already")
        devices: tuple[int, ...] = ()
        if resource.gpus:
            free = self.free_gpu_milli
            candidates = sorted((free[i], i) for i in range(len(free)) if free[i] >= resource.gpu_milli)
            devices = tuple(sorted(device for _, device in candidates[: resource.gpus]))
        self._book(container, resource, devices)
        return devices

    def recover(self, container: str, resource: Resource, devices: tuple[int, ...]) -> None:
        """Note what a container of a node that came back has already, whether there is room or not."""
        missing = max(devices, default=-1) + 1 - len(self.free_gpu_milli)
        self.free_gpu_milli += [0] * missing  # of devices that it is not known to have, nothing is free
        self._book(container, resource, devices)
        self.launched.add(container)

    def give_back(self, container: str) -> None:
        """Take back what a container has; nothing if it has nothing."""
        taken = self.containers.pop(container, None)
        if taken is None:
            return
        resource, devices = taken
        self.launched.discard(container)
        self.free_memory_mb += resource.memory_mb
        self.free_vcores_milli += resource.vcores_milli
        for device in devices:
            self.free_gpu_milli[device] += resource.gpu_milli
        for name, amount in resource.others:
            self.free_others[name] += amount

    def resize(self, container: str, resource: Resource) -> bool:
        """Change what a container has; False, and nothing changes, if there is no room. Its GPUs stay as they are.

        Raises:
            KeyError: the container has nothing here.
        """
        old, devices = self.containers[container]
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
        self.containers[container] = (resource, devices)

    # -- capacity -----------------------------------------------------------------------------------------------------

    def set_capacity(self, capacity: Resource) -> None:
        """The node has another capacity. No container loses what it has."""
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
            free_gpus.pop()  # the device is gone, and no container has a share of it

    def free(self) -> Free:
        """What is free now."""
        others = self.free_others.copy() if self.free_others else _NO_OTHERS
        return Free(self.free_memory_mb, self.free_vcores_milli, tuple(self.free_gpu_milli), others)

    def has_more_than(self, before: Free) -> bool:
        """Whether something might fit now that did not fit then: more is free of some type."""
        if self.free_memory_mb > before.memory_mb or self.free_vcores_milli > before.vcores_milli:
            return True
        if self.free_gpu_milli:
            then = before.gpu_milli
            if any(free > (then[i] if i < len(then) else 0) for i, free in enumerate(self.free_gpu_milli)):
                return True
        return bool(self.free_others) and any(
            free > before.others.get(name, 0) for name, free in self.free_others.items()
        )
