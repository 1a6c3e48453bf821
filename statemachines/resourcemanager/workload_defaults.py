"""Sizes that a workload file leaves out."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_NUMBER = 2**53
"""Beyond it a number is not exact in tools that keep JSON numbers as doubles: such a value is a mistake."""
_Size = Annotated[int, Field(ge=1, le=MOST_NUMBER, strict=True)]
"""Strict: without it `node_vcores: yes` would be read as 1."""


class WorkloadDefaults(BaseModel):
    """Sizes of nodes, masters and containers that a workload file does not give.

    The values are those of Hadoop's Scheduler Load Simulator.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    node_memory_mb: _Size = Field(default=10240, description="Memory of a node, in MB.")
    node_vcores: _Size = Field(default=10, description="Virtual cores of a node.")
    node_gpus: int = Field(default=0, ge=0, le=MOST_NUMBER, strict=True, description="GPUs of a node.")
    am_memory_mb: _Size = Field(default=1024, description="Memory of an application's master, in MB.")
    am_vcores: _Size = Field(default=1, description="Virtual cores of an application's master.")
    container_memory_mb: _Size = Field(default=1024, description="Memory of a container, in MB.")
    container_vcores: _Size = Field(default=1, description="Virtual cores of a container.")
    nodes_per_rack: _Size = Field(
        default=40, description="Nodes of one rack, for an openb node list, which names no racks."
    )
