"""What the applications of a workload do, in the simulator's own terms."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from statemachines.resourcemanager.resource import Resource


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
