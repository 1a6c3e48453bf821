"""What all schedulers have in common: a policy adds queues, limits and an order.

Threading: events may come on a thread of the scheduler's own, direct calls on the dispatcher's handler thread; each
takes the one lock. What is decided is posted to the central dispatcher under that lock, so posts come in the order of
the decisions; posting does not wait.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.records import ContainerRequest
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent, RMAppAttemptEventType
from statemachines.resourcemanager.events.rmcontainer import RMContainerEvent, RMContainerEventType
from statemachines.resourcemanager.events.scheduler import (
    AppAddedSchedulerEvent,
    AppAttemptAddedSchedulerEvent,
    AppAttemptRemovedSchedulerEvent,
    SchedulerEvent,
)
from statemachines.resourcemanager.ids import application_of
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.resource import Resource
from statemachines.resourcemanager.scheduler.core.application import SchedulerApplication, SchedulerApplicationAttempt
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.resourcemanager.scheduler.core.node_events import NodeEvents
from statemachines.resourcemanager.scheduler.interface import QueueInfo
from statemachines.resourcemanager.submission import ApplicationSubmission


class AbstractScheduler(NodeEvents):
    """A ResourceScheduler without a policy."""

    _application_type: type[SchedulerApplication] = SchedulerApplication

    def __init__(self, context: RMContext, *, on_heartbeat: bool = False) -> None:
        """`on_heartbeat`: nodes get containers when they report, else as soon as there is room."""
        super().__init__(context, on_heartbeat=on_heartbeat)
        self._numbers = 0  # of applications so far
        self._handlers: dict[str, Callable[[Any], None]] = {
            "NODE_ADDED": self._add_node,
            "NODE_REMOVED": self._remove_node,
            "NODE_UPDATE": self._update_node,
            "NODE_RESOURCE_UPDATE": self._update_resource,
            "NODE_LABELS_UPDATE": self._update_label,
            "APP_ADDED": self._add_app,
            "APP_REMOVED": self._remove_app,
            "APP_ATTEMPT_ADDED": self._add_attempt,
            "APP_ATTEMPT_REMOVED": self._remove_attempt,
            "CONTAINER_EXPIRED": self._expire_container,
        }

    # -- what a policy must say ------------------------------------------------------------------------------------

    @abstractmethod
    def check_submission(self, submission: ApplicationSubmission) -> str | None: ...

    @abstractmethod
    def queue_of(self, application: str) -> str | None: ...

    @abstractmethod
    def check_move(self, application: str, queue: str) -> str | None: ...

    @abstractmethod
    def move_application(self, application: str, queue: str) -> None: ...

    @abstractmethod
    def lifetime_s(self, submission: ApplicationSubmission) -> int | None: ...

    @abstractmethod
    def waiting(self) -> list[tuple[str, ContainerRequest]]: ...

    @abstractmethod
    def queues(self) -> Sequence[QueueInfo]: ...

    # -- direct calls -------------------------------------------------------------------------------------------------

    def handle(self, event: SchedulerEvent) -> None:
        with self._lock:
            self._handlers[event.type._name_](event)
            if self._freed:
                self._serve_freed()

    def allocate(
        self,
        attempt_id: str,
        requests: Iterable[ContainerRequest] = (),
        releases: Iterable[str] = (),
        blacklist_additions: Iterable[str] = (),
        blacklist_removals: Iterable[str] = (),
    ) -> None:
        """Give back `releases`, then place or queue `requests`. What is placed comes with `pull_newly_allocated`.

        Blacklists name hosts on which the attempt wants nothing. An attempt that the scheduler does not know, or no
        longer, gets nothing. Only a container that has been fetched can be released.
        """
        with self._lock:
            attempt = self._attempts.get(attempt_id)
            if attempt is None or attempt.is_stopped:
                return
            for container_id in releases:
                container = attempt.live.get(container_id)
                # One that was not fetched would refuse the release, and have no room and no end.
                if container is not None and container not in attempt.new:
                    self._end(attempt, container, RMContainerEventType.RELEASED, "released by its master")
            if self._freed:
                self._serve_freed()
            if blacklist_additions or blacklist_removals:
                blacklist = attempt.blacklist.union(blacklist_additions).difference(blacklist_removals)
                if blacklist != attempt.blacklist:
                    attempt.blacklist = blacklist
                    self._ask_again(attempt)
            self._ask_for(attempt, requests)

    def pull_newly_allocated(self, attempt_id: str) -> list[RMContainer]:
        """The containers allocated since the last call; they are ACQUIRED with this."""
        with self._lock:
            attempt = self._attempts.get(attempt_id)
            if attempt is None or not attempt.new:
                return []
            new, attempt.new = attempt.new, []
            for container in new:
                self._context.post(RMContainerEvent(RMContainerEventType.ACQUIRED, container.entity))
            return new

    def request_resize(self, container_id: str, resource: Resource) -> bool:
        """Change a running container's size; False if its node, or a limit, does not allow it.

        More is given only if its node has it, less always, and nothing if it is being emptied. GPUs stay as they are.
        Posts what follows.
        """
        with self._lock:
            live = self._live(container_id)
            if live is None:
                return False
            attempt, container = live
            node = self._nodes.get(container.node)
            assert node is not None  # a node's containers leave the books before it does
            if container_id not in node.launched or not self._may_resize(attempt, container, resource):
                return False
            is_done = self._resize(attempt, container, node, resource)
            if self._freed:
                self._serve_freed()
            return is_done

    def update_priority(self, application: str, priority: int) -> None:
        """Among the applications of its queue, from now on."""
        with self._lock:
            app = self._apps.get(application)
            if app is None:
                return
            app.priority = priority
            if app.attempt is not None:
                self._backlog_of(app.attempt).set_rank(app.attempt, self._rank_of(app.attempt))

    def live_containers(self, attempt_id: str) -> list[RMContainer]:
        """Its containers that have not ended, those taken over included."""
        with self._lock:
            attempt = self._attempts.get(attempt_id)
            return list(attempt.live.values()) if attempt is not None else []

    def has_master_container(self, node_id: str) -> bool:
        """Whether a master's container is in the books of this node."""
        with self._lock:
            node = self._nodes.get(node_id)
            live = [self._live(container_id) for container_id in node.containers] if node is not None else []
            return any(one is not None and one[0].master == one[1].entity for one in live)

    def nodes(self) -> Iterator[SchedulerNode]:
        """The usable nodes."""
        with self._lock:
            return iter(list(self._nodes))

    def why_waiting(self, attempt_id: str, request: ContainerRequest) -> str:
        """Why a waiting request is not served now, in words fit for a report."""
        with self._lock:
            attempt = self._attempts.get(attempt_id)
            if attempt is None:
                return f"{attempt_id} has ended"
            requirements = self._requirements_of(attempt, request)
            here = [node for node in self._nodes if node.partition == requirements.partition]
            usable = [node for node in here if requirements.may_use(node)]
            able = [node for node in usable if node.could_fit(request.resource, request.gpu_models)]
        if not here:
            return (
                f"there is no node in partition {requirements.partition!r}"
                if requirements.partition
                else "there is no node"
            )
        if not usable:
            return "the nodes that it insists on are not there, or it has blacklisted them"
        if not able:
            return "no node could ever take it"
        if any(node.is_draining for node in able) and all(node.is_draining for node in able):
            return "all that could take it are being emptied"
        if any(requirements.fits(node) for node in able if not node.is_draining):
            return "it waits for a node to report, or for one that it prefers"
        return "all that could take it are busy"

    # -- applications and attempts ------------------------------------------------------------------------------------

    def _add_app(self, event: SchedulerEvent) -> None:
        app_id = event.entity
        is_recovering = isinstance(event, AppAddedSchedulerEvent) and event.is_recovering
        rmapp = self._context.apps.get(app_id)
        if rmapp is None:
            return  # it was killed before the scheduler heard of it, and is not kept
        app = self._application_type(app_id, rmapp.submission, self._numbers)
        refusal = self._app_added(app, is_recovering)
        if refusal is not None:
            # One that is recovered may have an attempt by now: it cannot be rejected any more.
            type = RMAppEventType.KILL if is_recovering else RMAppEventType.APP_REJECTED
            self._context.post(RMAppEvent(type, app_id, refusal))
            return
        self._numbers += 1
        self._apps[app_id] = app
        if not is_recovering:
            self._context.post(RMAppEvent(RMAppEventType.APP_ACCEPTED, app_id))

    def _remove_app(self, event: SchedulerEvent) -> None:
        app = self._apps.get(event.entity)
        if app is None:
            return
        attempt = app.attempt
        if attempt is not None and attempt.is_stopped and attempt.id in self._attempts:
            self._kill_containers(attempt, "its application ended")
            del self._attempts[attempt.id]
        del self._apps[event.entity]
        self._app_removed(app)
        app.attempt = None  # which refers to its application

    def _add_attempt(self, event: SchedulerEvent) -> None:
        is_recovering = transfer_state = False
        if isinstance(event, AppAttemptAddedSchedulerEvent):
            is_recovering, transfer_state = event.is_recovering, event.transfer_state
        attempt_id = event.entity
        app = self._apps.get(application_of(attempt_id))
        if app is None:
            return  # it was recovered, and could not be taken
        attempt = SchedulerApplicationAttempt(attempt_id, app, self._context.epoch, self._default_label(app))
        before, app.attempt = app.attempt, attempt
        if before is not None and before.is_stopped and self._attempts.pop(before.id, None) is not None:
            if not transfer_state:
                self._attempts[before.id] = before
                self._kill_containers(before, "its attempt ended")
                del self._attempts[before.id]
            for container in before.live.values():
                container.attempt = attempt_id
            attempt.live, before.live = before.live, {}
            attempt.blacklist = before.blacklist
        if is_recovering:
            attempt.master = self._context.attempts[attempt_id].master_container
        self._attempts[attempt_id] = attempt
        attempt.rank = self._rank_of(attempt)
        self._attempt_added(attempt)
        if not is_recovering:
            self._context.post(RMAppAttemptEvent(RMAppAttemptEventType.ATTEMPT_ADDED, attempt_id))

    def _remove_attempt(self, event: SchedulerEvent) -> None:
        attempt = self._attempts.get(event.entity)
        if attempt is None or attempt.is_stopped:
            return
        keeps = isinstance(event, AppAttemptRemovedSchedulerEvent) and event.keep_containers
        self._withdraw(attempt)
        self._kill_containers(attempt, "its attempt ended", but_running=keeps)
        if keeps:
            attempt.is_stopped = True
        else:
            del self._attempts[attempt.id]
        self._attempt_removed(attempt)

    def _kill_containers(self, attempt: SchedulerApplicationAttempt, why: str, *, but_running: bool = False) -> None:
        """End all that it has; `but_running`: those of its tasks that run go on."""
        for container in list(attempt.live.values()):
            node = self._nodes.get(container.node)
            is_kept = but_running and container.entity != attempt.master
            if not (is_kept and node is not None and container.entity in node.launched):
                self._end(attempt, container, RMContainerEventType.KILL, why)

    def _expire_container(self, event: SchedulerEvent) -> None:
        """It was fetched, or allowed to grow, and nothing followed: take it, or what it grew by, back."""
        live = self._live(event.entity)
        if live is None:
            return
        attempt, container = live
        node = self._nodes.get(container.node)
        assert node is not None  # a node's containers leave the books before it does
        if container.entity not in node.launched:
            self._end(attempt, container, RMContainerEventType.EXPIRE, "it was not started in time")
            return
        size = container.request.resource.smaller_of(container.last_confirmed)
        if size != container.request.resource:
            self._resize(attempt, container, node, size)
