"""The description of a node that registers."""

from __future__ import annotations

from dataclasses import dataclass

from statemachines.resourcemanager.records.resource import Resource


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node: its address and its capacity."""

    host: str
    capacity: Resource
    rack: str = "/default-rack"
    gpu_model: str | None = None
    partition: str = ""
    """Its node label, or empty for the default partition."""
    port: int = 45454
    """Part of its id. The default is from YARN's examples."""
    http_port: int = 8042
    version: str = ""
    """Version of its node manager, or empty if unknown."""
