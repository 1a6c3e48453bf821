"""The scheduler's books of one node: what is free, and which container has what. It never gives what it has not got."""

from __future__ import annotations

from statemachines.resourcemanager.resource import GPU_MILLI, Resource
from statemachines.resourcemanager.workload.model import NodeSpec


class SchedulerNode:
    """One node's room. GPUs are kept device by device: a share is a share of one of them."""

    __slots__ = (
        "capacity",
        "containers",
        "free_gpu_milli",
        "free_memory_mb",
        "free_vcores_milli",
        "gpu_model",
        "host",
        "node_id",
    )

    def __init__(self, node_id: str, spec: NodeSpec) -> None:
        self.node_id = node_id
        self.host = spec.host
        self.gpu_model = spec.gpu_model
        self.capacity = spec.capacity
        self.free_memory_mb = spec.capacity.memory_mb
        self.free_vcores_milli = spec.capacity.vcores_milli
        self.free_gpu_milli = [GPU_MILLI] * spec.capacity.gpus
        self.containers: dict[str, tuple[Resource, tuple[int, ...]]] = {}  # what each has, and of which GPUs

    @property
    def has_gpus(self) -> bool:
        return bool(self.free_gpu_milli)

    def fits(self, resource: Resource, gpu_models: frozenset[str] = frozenset()) -> bool:
        """Whether there is room now, and the node's model is one of `gpu_models`, if any are named."""
        if resource.memory_mb > self.free_memory_mb or resource.vcores_milli > self.free_vcores_milli:
            return False
        if gpu_models and self.gpu_model not in gpu_models:
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
        )

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
            for device in devices:
                free[device] -= resource.gpu_milli
        self.free_memory_mb -= resource.memory_mb
        self.free_vcores_milli -= resource.vcores_milli
        self.containers[container] = (resource, devices)
        return devices

    def give_back(self, container: str) -> None:
        """Take back what a container has; nothing if it has nothing."""
        taken = self.containers.pop(container, None)
        if taken is None:
            return
        resource, devices = taken
        self.free_memory_mb += resource.memory_mb
        self.free_vcores_milli += resource.vcores_milli
        for device in devices:
            self.free_gpu_milli[device] += resource.gpu_milli
