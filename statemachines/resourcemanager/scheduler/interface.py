"""What the resource manager needs of a scheduler, whichever it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from statemachines.resourcemanager.events.records import ContainerRequest
from statemachines.resourcemanager.events.scheduler import SchedulerEvent
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.submission import ApplicationSubmission


class QueueInfo(NamedTuple):
    """One queue, for reports. Shares are of the whole cluster (of a partition), 0 to 1."""

    path: str
    """From the root, joined by dots: `root.research.nightly`."""
    state: str
    """RUNNING or STOPPED."""
    capacity: float
    maximum_capacity: float
    used_capacity: float
    """Of its own capacity: above 1 it uses what its siblings leave."""
    used: Resource
    """`gpus` and `gpu_milli`: thousandths in `gpu_milli`, of one device."""
    applications: int
    """Those that have not ended."""
    pending_applications: int
    """Those among them whose master may not be started yet."""
    containers: int
    children: tuple[str, ...] = ()
    """Paths."""
    priority: int = 0
    accessible_node_labels: tuple[str, ...] = ()
    default_node_label: str | None = None


class ResourceScheduler(Protocol):
    """Takes SchedulerEvents, and direct calls. After YARN's interface of that name.

    Events may come on a thread of the scheduler's own; direct calls come from the dispatcher's handler thread. What it
    posts, it posts to the central dispatcher.
    """

    def handle(self, event: SchedulerEvent) -> None: ...

    # -- for masters and attempts

    def allocate(
        self,
        attempt_id: str,
        requests: Iterable[ContainerRequest] = (),
        releases: Iterable[str] = (),
        blacklist_additions: Iterable[str] = (),
        blacklist_removals: Iterable[str] = (),
    ) -> None:
        """Give back `releases`, then place or queue `requests`. What is placed comes with `pull_newly_allocated`.

        Blacklists name hosts (not node ids) on which the attempt wants nothing. An attempt that the scheduler does not
        know, or no longer, gets nothing. Only a container that has been fetched can be released.
        """

    def pull_newly_allocated(self, attempt_id: str) -> list[RMContainer]:
        """The containers allocated since the last call; they are ACQUIRED with this."""

    def request_resize(self, container_id: str, resource: Resource) -> bool:
        """Change a running container's size; False if the node, or a limit, does not allow it.

        More is given only if the node has it, less always, and nothing if the node is being emptied. GPUs stay as they
        are. Posts what follows.
        """

    # -- for applications

    def check_submission(self, submission: ApplicationSubmission) -> str | None:
        """Why the application cannot be taken (no such queue, a full one ...), for its diagnostics; None if it can."""

    def queue_of(self, application: str) -> str | None:
        """Path of the queue that an application is in."""

    def check_move(self, application: str, queue: str) -> str | None:
        """Why the application cannot be moved; None if it can."""

    def move_application(self, application: str, queue: str) -> None:
        """Move it with its containers and asks. Raises ValueError where `check_move` has an answer."""

    def update_priority(self, application: str, priority: int) -> None:
        """Among the applications of its queue, from now on."""

    def lifetime_s(self, submission: ApplicationSubmission) -> int | None:
        """The lifetime that an application gets: its own, no longer than the queue's; or the queue's; None: no end."""

    def live_containers(self, attempt_id: str) -> list[RMContainer]:
        """Its containers that have not ended, those taken over included."""

    # -- for nodes

    def has_master_container(self, node_id: str) -> bool:
        """Whether a master's container is in the books of this node."""

    # -- for reports and checks

    def nodes(self) -> Iterator[SchedulerNode]:
        """The usable nodes."""

    def waiting(self) -> list[tuple[str, ContainerRequest]]:
        """What waits for room: (attempt id, request), in the order of service."""

    def why_waiting(self, attempt_id: str, request: ContainerRequest) -> str:
        """Why a waiting request is not served now, in words fit for a report."""

    def queues(self) -> Sequence[QueueInfo]:
        """All queues, parents before children; the root first."""
