"""What an ask requires of a node.

Threading: immutable, except for the table, which is under the scheduler's lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from statemachines.resourcemanager.events.records import ContainerRequest
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode

T = TypeVar("T")

_MOST = 4096

NodeSet = str | tuple[str, str | None, str | None]
"""Candidate nodes: a whole partition; or, for strict locality, one host or rack: (partition, host, rack)."""


class NodeRequirements:
    """Resource, partition, GPU models, blacklist, and for strict locality a host or rack.

    A node fits all asks with the same requirements, or none. Each RequirementsTable makes one object of equal
    requirements; they are compared by identity.
    """

    __slots__ = (
        "blacklist",
        "gpu_models",
        "gpus",
        "host",
        "is_plain",
        "memory_mb",
        "node_set",
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
        self.host = host  # the only host allowed; None: any
        self.rack = rack  # the only rack allowed; None: any
        self.blacklist = blacklist  # hosts
        self.memory_mb = resource.memory_mb
        self.vcores_milli = resource.vcores_milli
        self.gpus = resource.gpus
        self.is_plain = not (resource.gpus or resource.others or gpu_models or blacklist)
        self.node_set: NodeSet = partition if host is None and rack is None else (partition, host, rack)

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


_Key = tuple[Resource, frozenset[str], str, str | None, str | None, frozenset[str]]


class RequirementsTable:
    """Interns NodeRequirements."""

    def __init__(self) -> None:
        self._table: dict[_Key, NodeRequirements] = {}

    def of(self, request: ContainerRequest, partition: str, blacklist: frozenset[str]) -> NodeRequirements:
        host = rack = None
        if not request.relax_locality:
            host = request.host
            rack = request.rack if host is None else None
        key = (request.resource, request.gpu_models, partition, host, rack, blacklist)
        requirements = self._table.get(key)
        if requirements is None:
            if len(self._table) >= _MOST:
                # Pending asks keep their objects; new asks with equal requirements get another one.
                self._table.clear()
            requirements = self._table[key] = NodeRequirements(*key)
        return requirements
