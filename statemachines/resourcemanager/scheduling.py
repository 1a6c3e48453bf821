"""The scheduler's interface for the rest of the resource manager; ResourceScheduler documents the calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from statemachines.resourcemanager.events.records import ContainerRequest
from statemachines.resourcemanager.events.scheduler import SchedulerEvent
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.submission import ApplicationSubmission

if TYPE_CHECKING:
    from statemachines.resourcemanager.scheduler.core.placement import NodeLooks
    from statemachines.resourcemanager.scheduler.queue_info import ApplicationUse, NodeUse, QueueInfo
    from statemachines.resourcemanager.scheduler.waiting import WaitingAsk, WaitReason


class Scheduler(Protocol):
    """Called on the dispatcher's handler thread, except `handle`, which may run on the scheduler's own thread."""

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

    def request_resize(self, container_id: str, resource: Resource) -> bool: ...

    def check_submission(self, submission: ApplicationSubmission) -> str | None: ...

    def queue_of(self, application: str) -> str | None: ...

    def check_move(self, application: str, queue: str) -> str | None: ...

    def move_application(self, application: str, queue: str) -> None: ...

    def update_priority(self, application: str, priority: int) -> None: ...

    def lifetime_s(self, submission: ApplicationSubmission) -> int | None: ...

    def live_containers(self, attempt_id: str) -> list[RMContainer]: ...

    def has_master_container(self, node_id: str) -> bool: ...

    def waiting(self) -> list[tuple[str, ContainerRequest]]: ...

    def why_waiting(self, attempt_id: str, request: ContainerRequest) -> WaitReason: ...

    def waiting_asks(self, attempt_id: str, looks: NodeLooks | None = None) -> list[WaitingAsk]: ...

    def queues(self) -> Sequence[QueueInfo]: ...

    def queue_info(self, path: str) -> QueueInfo | None: ...

    def application_use(self, attempt_id: str) -> ApplicationUse: ...

    def node_use(self, node_id: str) -> NodeUse: ...
