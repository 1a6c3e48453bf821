"""The applications of a workload, as the simulation runs them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from statemachines.resourcemanager.records.resource import Resource


class Outcome(Enum):
    """How an application ends."""

    FINISHED = "FINISHED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container requested by an application's master."""

    resource: Resource
    duration_ms: int
    start_ms: int = 0
    """When it's requested in the run, or later, once the master has registered."""
    host: str | None = None
    """Preferred node. Another is accepted if it has no room."""
    priority: int = 20
    """A smaller one is served first, as in YARN, among simultaneous requests of an application."""
    kind: str = "map"


@dataclass(frozen=True, slots=True)
class ApplicationSpec:
    """One application: its master, and the containers requested by the master."""

    name: str
    submit_ms: int
    am_resource: Resource
    containers: tuple[ContainerSpec, ...] = ()
    user: str = "default"
    queue: str = "default"
    am_host: str | None = None
    am_duration_ms: int | None = 0
    """How long the master runs after its last container, or None until it's killed."""
    outcome: Outcome = Outcome.FINISHED
    kill_ms: int | None = None
    """When its user kills it in the run, unless it has ended."""
    max_attempts: int | None = None
    """Maximum attempts. By default, the configured number."""
    gpu_models: frozenset[str] = frozenset()
    """GPU models of the nodes for the containers, or empty for any."""
    recorded_wait_ms: int | None = None
    """How long its master's request was pending in the recorded cluster. None if unknown or endless."""

    def faster(self, speed: float) -> ApplicationSpec:
        """Return the same application with all of its times divided by `speed`, to the ms."""

        def scaled(time_ms: int) -> int:
            return round(time_ms / speed)

        return replace(
            self,
            submit_ms=scaled(self.submit_ms),
            containers=tuple(
                replace(each, duration_ms=scaled(each.duration_ms), start_ms=scaled(each.start_ms))
                for each in self.containers
            ),
            am_duration_ms=None if self.am_duration_ms is None else scaled(self.am_duration_ms),
            kill_ms=None if self.kill_ms is None else scaled(self.kill_ms),
        )
