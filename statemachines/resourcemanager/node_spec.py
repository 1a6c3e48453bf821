"""What a node is when it registers: where it is, and what it has."""

from __future__ import annotations

from dataclasses import dataclass

from statemachines.resourcemanager.resource import Resource


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node of the cluster."""

    host: str
    capacity: Resource
    rack: str = "/default-rack"
    gpu_model: str | None = None
    partition: str = ""
    """Its label; empty: the default partition."""
    port: int = 45454
    """Of its node manager; part of its id. 45454 as in YARN's examples."""
    http_port: int = 8042
