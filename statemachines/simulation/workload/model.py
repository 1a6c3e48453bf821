"""A workload in the simulator's own terms, whatever file it was read from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from dispatcher.errors import DispatcherError
from statemachines.resourcemanager.node_spec import NodeSpec
from statemachines.resourcemanager.resource import Resource


class WorkloadError(DispatcherError):
    """A workload file is wrong. One line, fit to be shown to a user as it is."""

    def __init__(self, path: Path, problem: str, *, row: int | None = None, column: str | int | None = None) -> None:
        self.path = path
        self.row = row
        self.column = column
        self.problem = problem
        place = str(path)
        if row is not None:
            place += f", row {row}"
        if column is not None:
            place += f", column {column}"
        super().__init__(f"{place}: {problem}")


class Outcome(Enum):
    """How an application ends once it runs."""

    FINISHED = "FINISHED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container that an application's master asks for."""

    resource: Resource
    duration_ms: int
    start_ms: int = 0
    """Asked for at this time of the run, but not before the master has registered."""
    host: str | None = None
    """Preferred node; any other will do where it has no room."""
    priority: int = 20
    """Smaller is more urgent, as in YARN; orders the asks of one application that are made together."""
    kind: str = "map"


@dataclass(frozen=True, slots=True)
class ApplicationSpec:
    """One application: its master, and the containers that the master asks for."""

    name: str
    submit_ms: int
    am_resource: Resource
    containers: tuple[ContainerSpec, ...] = ()
    user: str = "default"
    queue: str = "default"
    am_host: str | None = None
    am_duration_ms: int | None = 0
    """How long the master runs beyond its last container; None: until it is killed."""
    outcome: Outcome = Outcome.FINISHED
    kill_ms: int | None = None
    """Killed by its user at this time of the run, unless it has ended before."""
    max_attempts: int | None = None
    """None: as configured."""
    gpu_models: frozenset[str] = frozenset()
    """Node models that the containers may run on; empty: any."""
    recorded_wait_ms: int | None = None
    """How long it waited for its master's room where it was recorded; None: unknown, or it never got any."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Nodes, and applications in the order of their submission.

    `applications` may make them as they are gone through, once: it need not hold them.
    """

    name: str
    nodes: tuple[NodeSpec, ...]
    applications: Collection[ApplicationSpec]
    bad_rows: tuple[WorkloadError, ...] = field(default=())
    """What --skip-bad-rows left out."""

    @property
    def container_count(self) -> int:
        """Containers that the workload asks for, masters included."""
        return sum(1 + len(application.containers) for application in self.applications)
