"""The scheduler's interface for the rest of the resource manager; ResourceScheduler documents the calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from statemachines.resourcemanager.events.records import ContainerRequest
from statemachines.resourcemanager.events.scheduler import SchedulerEvent
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.resource import MaximumAllocation, Resource
from statemachines.resourcemanager.submission import ApplicationSubmission

if TYPE_CHECKING:
    from statemachines.resourcemanager.scheduler.queue_info import QueueInfo


class Scheduler(Protocol):
    """Called on the dispatcher's handler thread, except `handle`, which may run on the scheduler's own thread."""

    @property
    def is_settled(self) -> bool: ...

    def handle(self, event: SchedulerEvent) -> None: ...

    def allocate(
        self,
        attempt_id: str,
        requests: Iterable[ContainerRequest] = (),
        releases: Iterable[str] = (),
        blacklist_additions: Iterable[str] = (),
        blacklist_removals: Iterable[str] = (),
    ) -> None: ...

    def pull_newly_allocated(self, attempt_id: str) -> list[RMContainer]: ...

    def pull_preemption(self, attempt_id: str) -> list[RMContainer]: ...

    def request_resize(self, container_id: str, resource: Resource) -> bool: ...

    def queue_of(self, application: str) -> str | None: ...

    def check_move(self, application: str, queue: str) -> str | None: ...

    def move_application(self, application: str, queue: str) -> None: ...

    def update_priority(self, application: str, priority: int) -> None: ...

    def maximum_allocation(self, queue: str) -> MaximumAllocation: ...

    def headroom(self, attempt_id: str) -> Resource: ...

    def lifetime_s(self, submission: ApplicationSubmission) -> int | None: ...

    def live_containers(self, attempt_id: str) -> list[RMContainer]: ...

    def has_master_container(self, node_id: str) -> bool: ...

    def waiting(self) -> list[tuple[str, ContainerRequest]]: ...

    def why_waiting(self, attempt_id: str, request: ContainerRequest) -> str: ...

    def queues(self) -> Sequence[QueueInfo]: ...
