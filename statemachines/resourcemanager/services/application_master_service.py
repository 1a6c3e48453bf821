"""The service for application masters, after YARN's ApplicationMasterService. Handler thread only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, NoReturn

from dispatcher.service import Service
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.records import ContainerRequest, ContainerStatus, FinalApplicationStatus
from statemachines.resourcemanager.events.rmappattempt import (
    RMAppAttemptRegistrationEvent,
    RMAppAttemptStatusUpdateEvent,
    RMAppAttemptUnregistrationEvent,
)
from statemachines.resourcemanager.machines.node_changes import NodeUpdate
from statemachines.resourcemanager.machines.rmappattempt import BEFORE_REGISTERING, MasterSession, RMAppAttempt
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.machines.states import END_IS_STORED
from statemachines.resourcemanager.records.errors import (
    ApplicationMasterNotRegisteredError,
    InvalidApplicationMasterRequestError,
    InvalidContainerReleaseError,
    UnknownAttemptError,
)
from statemachines.resourcemanager.records.ids import application_of, attempt_of
from statemachines.resourcemanager.records.resource import GPU_MILLI, MOST, NOTHING, MaximumAllocation, Resource
from statemachines.resourcemanager.scheduler.core.amounts import add, amounts_of, resource_of
from statemachines.resourcemanager.services.allocations import check_allocation

_LAST_RESPONSE_ID = 2**31 - 1
"""The id after it is 0, as with YARN's 32 bits."""


class RegisterResponse(NamedTuple):
    """The response to a master's registration."""

    queue: str
    containers_from_previous_attempts: Sequence[RMContainer]
    """Live containers, if the application keeps them; without the master's own."""
    maximum_allocation: MaximumAllocation = MaximumAllocation()
    """The largest container that may be asked for."""


class PreemptionMessage(NamedTuple):
    """Notice to a master of containers that are about to be killed, after YARN's PreemptionContract."""

    containers: Sequence[str]
    """Killed with exit status EXIT_PREEMPTED after the grace period, unless the need for them has gone."""
    resource: Resource
    """Their sum. The master may release as much in other containers instead."""


class AllocateResponse(NamedTuple):
    """The response to a master's heartbeat."""

    allocated: Sequence[RMContainer]
    finished: Sequence[ContainerStatus]
    """Its containers that have ended."""
    response_id: int
    """To be sent with the next heartbeat."""
    updated_nodes: Sequence[NodeUpdate] = ()
    """Nodes that became usable, unusable or DECOMMISSIONING."""
    resized: Sequence[tuple[str, Resource]] = ()
    """The requested resizes that were granted."""
    headroom: Resource = NOTHING
    """What it could still be allocated, after this call: by the limits of user and queues, and the free room."""
    preemption: PreemptionMessage | None = None
    """New notices of preemption, if any."""


class ApplicationMasterService(Service):
    """Masters register, allocate (which is their heartbeat) and finish."""

    def __init__(self, context: RMContext) -> None:
        super().__init__()
        self._context = context
        self._masters = context.master_sessions  # by attempt; added and removed by the attempts

    def register_application_master(
        self, attempt_id: str, host: str = "", rpc_port: int = -1, tracking_url: str = ""
    ) -> RegisterResponse:
        """Register a master; its first heartbeat has response id 0.

        Raises:
            UnknownAttemptError: the attempt does not exist or has ended, or its master has finished.
            InvalidApplicationMasterRequestError: it has registered before. Only an unmanaged master of an application
                that keeps its containers may register again.
        """
        master = self._masters.get(attempt_id)
        if master is None or master.has_finished:
            self._refuse(attempt_id, master)
        context = self._context
        attempt = context.attempts[attempt_id]
        submission = attempt.app.submission
        keeps = submission.keep_containers_across_attempts
        if master.response_id != BEFORE_REGISTERING and not (keeps and submission.unmanaged_am):
            raise InvalidApplicationMasterRequestError(
                f"the master of {attempt_id} is already registered: call allocate"
            )
        context.am_liveliness_monitor.received_ping(attempt_id)
        master.response_id = 0
        master.last_response = None
        master.is_listened_to = True
        context.post(RMAppAttemptRegistrationEvent(attempt_id, host, rpc_port, tracking_url))
        previous: list[RMContainer] = []
        if keeps:
            live = context.scheduler.live_containers(attempt_id)
            previous = [container for container in live if container.entity != attempt.master_container]
        return RegisterResponse(submission.queue, previous, context.scheduler.maximum_allocation(submission.queue))

    def allocate(
        self,
        attempt_id: str,
        asks: Iterable[ContainerRequest] = (),
        releases: Iterable[str] = (),
        progress: float = 0.0,
        *,
        response_id: int | None = None,
        blacklist_additions: Iterable[str] = (),
        blacklist_removals: Iterable[str] = (),
        tracking_url: str | None = None,
        resizes: Iterable[tuple[str, Resource]] = (),
    ) -> AllocateResponse:
        """Request and release containers; pull those that were allocated and that finished since the last call.

        `progress`: 0 to 1, clamped. `response_id`: of the last response. The previous id means that the last response
        got lost: it is sent again, and the other arguments are ignored. None: responses cannot get lost. Blacklists
        name hosts. `tracking_url` None: no change. `resizes`: (container, new size).

        Raises:
            UnknownAttemptError: the attempt does not exist or has ended, or its master has finished.
            ApplicationMasterNotRegisteredError: the master or the resource manager was restarted: register first.
            InvalidApplicationMasterRequestError: `response_id` is neither the last one nor the one before, or no
                container can have a requested size. Nothing was done.
            InvalidResourceRequestError: a requested container, or a new size, is larger than the maximum allocation of
                the application's queue. Nothing was done.
            InvalidContainerReleaseError: a released container belongs to another attempt. Nothing was done.
        """
        master = self._masters.get(attempt_id)
        if master is None or not master.is_listened_to:
            self._refuse(attempt_id, master)
        if response_id is not None and response_id != master.response_id:
            return self._repeat(attempt_id, master, response_id)
        context = self._context
        # At once: a busy handler thread may expire the attempt before it comes to the event.
        context.am_liveliness_monitor.received_ping(attempt_id)
        attempt = context.attempts[attempt_id]
        if asks:
            asks = tuple(asks)
            self._check_sizes(attempt, dict.fromkeys([ask.resource for ask in asks]))
        if releases:
            releases = self._own(attempt, releases)
        if resizes:
            resizes = tuple(resizes)
            self._check_sizes(attempt, [size for _, size in resizes])
        if not 0.0 <= progress <= 1.0:
            progress = min(1.0, max(0.0, progress))  # 0 for NaN
        context.post(RMAppAttemptStatusUpdateEvent(attempt_id, progress, tracking_url))
        scheduler = context.scheduler
        scheduler.ask(attempt_id, asks, releases, blacklist_additions, blacklist_removals)
        resized = self._resize(attempt_id, resizes) if resizes else ()
        return self._answer(attempt, master, resized)

    def finish_application_master(
        self,
        attempt_id: str,
        diagnostics: str = "",
        final_status: FinalApplicationStatus = FinalApplicationStatus.SUCCEEDED,
        tracking_url: str = "",
    ) -> bool:
        """Unregister a master, which then exits.

        Returns whether the end of the application is stored. A managed master repeats the call until it is, without
        further effect; an unmanaged one gets True at once.

        Raises:
            UnknownAttemptError: the attempt does not exist, or has ended otherwise.
            ApplicationMasterNotRegisteredError: as for `allocate`.
        """
        context = self._context
        attempt = context.attempts.get(attempt_id)
        if attempt is not None and attempt.app.state in END_IS_STORED:
            return True
        master = self._masters.get(attempt_id)
        if master is None or not (master.is_listened_to or master.has_finished):
            self._refuse(attempt_id, master)
        context.am_liveliness_monitor.received_ping(attempt_id)
        if not master.has_finished:
            master.has_finished = True
            master.is_listened_to = False
            context.post(RMAppAttemptUnregistrationEvent(attempt_id, final_status, diagnostics, tracking_url))
        return attempt is not None and attempt.app.submission.unmanaged_am

    # -- steps --------------------------------------------------------------------------------------------------------

    def _refuse(self, attempt_id: str, master: MasterSession | None) -> NoReturn:
        """Raise why a master is refused. The call counts as a ping nevertheless."""
        if master is None:
            raise UnknownAttemptError(f"{attempt_id} is not registered: its master should exit")
        self._context.am_liveliness_monitor.received_ping(attempt_id)
        if master.has_finished:
            raise UnknownAttemptError(f"the master of {attempt_id} has finished: it should exit")
        raise ApplicationMasterNotRegisteredError(
            f"the master of {attempt_id} is not registered, or the resource manager was restarted since: "
            "call register_application_master first"
        )

    def _answer(
        self, attempt: RMAppAttempt, master: MasterSession, resized: Sequence[tuple[str, Resource]]
    ) -> AllocateResponse:
        """The response, with all that has happened since the last one."""
        changes = self._context.node_changes
        finished = self._fetch_finished(attempt) if attempt.finished_containers else ()
        updated_nodes: Sequence[NodeUpdate] = ()
        if master.heard is not changes.latest:
            updated_nodes, master.heard = changes.since(master.heard), changes.latest
        # The ids wrap to 0, which also answers registering. YARN would ask a master that sends it to register.
        next_id = master.response_id + 1 if master.response_id < _LAST_RESPONSE_ID else 0
        allocated, headroom, preempted = self._context.scheduler.heartbeat_answer(attempt.entity)
        notice = _notice_of(preempted) if preempted else None
        response = AllocateResponse(allocated, finished, next_id, updated_nodes, resized, headroom, notice)
        master.response_id = next_id
        master.last_response = response
        return response

    def _repeat(self, attempt_id: str, master: MasterSession, response_id: int) -> AllocateResponse:
        """The last response again, if the master has only the one before it."""
        self._context.am_liveliness_monitor.received_ping(attempt_id)
        last: AllocateResponse | None = master.last_response
        if last is not None and response_id == (master.response_id - 1) % (_LAST_RESPONSE_ID + 1):
            return last
        raise InvalidApplicationMasterRequestError(
            f"the master of {attempt_id} sent response id {response_id}; its last response had {master.response_id}"
        )

    def _check_sizes(self, attempt: RMAppAttempt, sizes: Collection[Resource]) -> None:
        """Refuse impossible sizes, as a negative amount would create room that no node has, and too large ones."""
        for size in sizes:
            if not size.is_possible():
                raise InvalidApplicationMasterRequestError(
                    f"no container can have {size}: amounts must be 0 to {MOST}, and the share of a GPU 1 to "
                    f"{GPU_MILLI} thousandths"
                )
        check_allocation(self._context, attempt.app.submission.queue, sizes)

    def _own(self, attempt: RMAppAttempt, releases: Iterable[str]) -> tuple[str, ...]:
        """The releases, checked to be the master's own."""
        keeps = attempt.app.submission.keep_containers_across_attempts
        releases = tuple(releases)
        for container_id in releases:
            try:
                owner = attempt_of(container_id)
            except ValueError as error:
                raise InvalidContainerReleaseError(str(error)) from None
            # Kept containers may belong to an earlier attempt.
            if owner != attempt.entity and not (keeps and application_of(owner) == attempt.app.entity):
                raise InvalidContainerReleaseError(f"{container_id} does not belong to {attempt.entity}")
        return releases

    def _resize(self, attempt_id: str, resizes: Iterable[tuple[str, Resource]]) -> Sequence[tuple[str, Resource]]:
        context = self._context
        granted = []
        for container_id, resource in resizes:
            container = context.containers.get(container_id)
            is_its_own = container is not None and container.attempt == attempt_id
            if is_its_own and context.scheduler.request_resize(container_id, resource):
                granted.append((container_id, resource))
        return granted

    @staticmethod
    def _fetch_finished(attempt: RMAppAttempt) -> Sequence[ContainerStatus]:
        """The finished containers, for the master; their nodes need no longer report them."""
        ended, attempt.finished_containers = attempt.finished_containers, []
        attempt.let_nodes_forget(ended)
        if attempt.number > 1 and not attempt.app.submission.keep_containers_across_attempts:
            # The master does not know the containers of earlier attempts.
            return [status for _, status in ended if attempt_of(status.container) == attempt.entity]
        return [status for _, status in ended]


def _notice_of(preempted: Sequence[RMContainer]) -> PreemptionMessage:
    amounts: dict[str, int] = {}
    for container in preempted:
        add(amounts, amounts_of(container.request.resource))
    return PreemptionMessage([container.entity for container in preempted], resource_of(amounts))
