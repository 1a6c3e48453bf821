"""Clusters and applications for the benchmarks of the resource manager, made as they are needed."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from statemachines.resourcemanager import Resource, ResourceManagerConfig
from statemachines.simulation.workload import ApplicationSpec, ContainerSpec, NodeSpec, Workload

SLOTS_PER_NODE = 32
TASKS = 99
"""Of one application, beside its master."""
LOAD = 0.85
"""Share of the cluster that the applications keep busy once it has filled up."""
_MEAN_TASK_MS = 18_000
_TASK_MS = (6_000, 2 * _MEAN_TASK_MS - 6_000)
_KINDS = 1000
_QUEUES = ("batch", "adhoc", "service")


@dataclass(frozen=True)
class Applications(Collection[ApplicationSpec]):
    """`count` applications of 1 + TASKS containers each, that keep `nodes` nodes busy; the same in each run."""

    count: int
    nodes: int

    def __len__(self) -> int:
        return self.count

    def __contains__(self, spec: object) -> bool:
        return any(spec == each for each in self)

    def __iter__(self) -> Iterator[ApplicationSpec]:
        generator = random.Random(self.count)
        # Drawn from, as making each would take a tenth of the time that is measured.
        kinds = [ContainerSpec(Resource(4096, 1000), generator.randint(*_TASK_MS)) for _ in range(_KINDS)]
        every_ms = (TASKS + 1) * _MEAN_TASK_MS / (self.nodes * SLOTS_PER_NODE * LOAD)
        for number in range(self.count):
            tasks = tuple(generator.choices(kinds, k=TASKS))
            yield ApplicationSpec(
                f"app{number}",
                round(number * every_ms),
                Resource(4096, 1000),
                tasks,
                user=f"user{number % 7}",
                queue=_QUEUES[number % len(_QUEUES)],
            )


def busy_cluster(nodes: int, containers: int) -> Workload:
    """`nodes` equal nodes, and applications of about so many containers together."""
    capacity = Resource(SLOTS_PER_NODE * 4096, SLOTS_PER_NODE * 1000)
    specs = tuple(NodeSpec(f"node{number}", capacity, f"/rack{number // 40}") for number in range(nodes))
    return Workload(f"{nodes} nodes", specs, Applications(max(1, round(containers / (TASKS + 1))), nodes))


CAPACITY_QUEUES = [
    {"name": name, "capacity": capacity, "user_limit_factor": 100, "maximum_am_resource_percent": 100}
    for name, capacity in zip(_QUEUES, (50, 30, 20), strict=True)
]


def config(scheduler: str, **more: Any) -> ResourceManagerConfig:
    settings: dict[str, Any] = {"metrics": {"enabled": False}, "max_completed_applications": 100, **more}
    if scheduler == "capacity":
        settings["scheduler"] = {"kind": "capacity", "queues": CAPACITY_QUEUES}
    return ResourceManagerConfig.model_validate(settings)
