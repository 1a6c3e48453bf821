"""What decides whether an ask fits on a node, without the ask."""

from __future__ import annotations

from statemachines.resourcemanager.events.records import ContainerRequest
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode

_MOST = 4096


class NodeRequirements:
    """Asks of one requirements fit on a node, or do not fit, together.

    There is one object for each requirements while it is in use: they are compared by identity.
    """

    __slots__ = (
        "blacklist",
        "gpu_models",
        "gpus",
        "host",
        "is_plain",
        "memory_mb",
        "partition",
        "rack",
        "resource",
        "vcores_milli",
    )

    def __init__(
        self,
        resource: Resource,
        gpu_models: frozenset[str],
        partition: str,
        host: str | None,
        rack: str | None,
        blacklist: frozenset[str],
    ) -> None:
        self.resource = resource
        self.gpu_models = gpu_models
        self.partition = partition
        self.host = host  # nowhere else, if it is given
        self.rack = rack  # nowhere else, if it is given
        self.blacklist = blacklist  # hosts
        self.memory_mb = resource.memory_mb
        self.vcores_milli = resource.vcores_milli
        self.gpus = resource.gpus
        self.is_plain = not (resource.gpus or resource.others or gpu_models or blacklist)

    def fits(self, node: SchedulerNode) -> bool:
        """Whether the node has room, and may be used. Partition, host and rack have been looked at before."""
        return (
            self.memory_mb <= node.free_memory_mb
            and self.vcores_milli <= node.free_vcores_milli
            and (self.is_plain or self.fits_further(node))
        )

    def fits_further(self, node: SchedulerNode) -> bool:
        """As `fits`, where memory and virtual cores have been looked at before."""
        return node.host not in self.blacklist and node.fits(self.resource, self.gpu_models)

    def may_use(self, node: SchedulerNode) -> bool:
        """Whether the node would do, if it had room: what room has nothing to do with."""
        return (
            node.partition == self.partition
            and (self.host is None or node.host == self.host)
            and (self.rack is None or node.rack == self.rack)
            and node.host not in self.blacklist
        )

    def needs_all_of(self, other: NodeRequirements) -> bool:
        """Whether a node on which `other` does not fit is none for this one either. Host and rack do not count."""
        return (
            self.memory_mb >= other.memory_mb
            and self.vcores_milli >= other.vcores_milli
            and self.gpus >= other.gpus
            and (not other.gpus or self.resource.gpu_milli >= other.resource.gpu_milli)
            and (not other.gpu_models or (bool(self.gpu_models) and self.gpu_models <= other.gpu_models))
            and self.blacklist >= other.blacklist
            and all(self.resource.other(name) >= amount for name, amount in other.resource.others)
        )


_Key = tuple[Resource, frozenset[str], str, str | None, str | None, frozenset[str]]


class RequirementsTable:
    """The by_requirements in use."""

    def __init__(self) -> None:
        self._requirements: dict[_Key, NodeRequirements] = {}

    def of(self, request: ContainerRequest, partition: str, blacklist: frozenset[str]) -> NodeRequirements:
        """The requirements of a request for a node of `partition`."""
        host = rack = None
        if not request.relax_locality:
            host = request.host
            rack = request.rack if host is None else None
        key = (request.resource, request.gpu_models, partition, host, rack, blacklist)
        requirements = self._requirements.get(key)
        if requirements is None:
            if len(self._requirements) >= _MOST:
                # Those that are still in use stay what they are to whoever has them; they only get doubles.
                self._requirements.clear()
            requirements = self._requirements[key] = NodeRequirements(*key)
        return requirements
