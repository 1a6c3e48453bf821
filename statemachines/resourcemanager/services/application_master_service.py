"""The door for application masters: register, allocate as their heartbeat, finish. Handler thread only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

from dispatcher.service import Service
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.errors import (
    ApplicationMasterNotRegisteredError,
    InvalidApplicationMasterRequestError,
    InvalidContainerReleaseError,
    UnknownAttemptError,
)
from statemachines.resourcemanager.events.records import ContainerRequest, ContainerStatus, FinalApplicationStatus
from statemachines.resourcemanager.events.rmappattempt import (
    RMAppAttemptRegistrationEvent,
    RMAppAttemptStatusUpdateEvent,
    RMAppAttemptUnregistrationEvent,
)
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.services import NodesListManagerEventType
from statemachines.resourcemanager.ids import application_of, attempt_of
from statemachines.resourcemanager.machines.rmappattempt import RMAppAttempt
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.machines.states import END_IS_STORED
from statemachines.resourcemanager.resource import GPU_MILLI, Resource
from statemachines.resourcemanager.services.master_session import (
    BEFORE_REGISTERING,
    AllocateResponse,
    MasterSession,
    RegisterResponse,
)

_LAST_RESPONSE_ID = 2**31 - 1
"""After it comes 0 again, as with YARN's 32 bits."""


class ApplicationMasterService(Service):
    """For application masters: register, allocate as their heartbeat, and finish."""

    def __init__(self, context: RMContext) -> None:
        super().__init__()
        self._context = context
        self._masters = context.master_sessions  # by attempt; the attempts enter and remove them

    def register_application_master(
        self, attempt_id: str, host: str = "", rpc_port: int = -1, tracking_url: str = ""
    ) -> RegisterResponse:
        """The master is there; its first heartbeat may follow, with response id 0.

        Raises:
            UnknownAttemptError: the attempt has ended, or never was, or its master has finished.
            InvalidApplicationMasterRequestError: it has registered before. An unmanaged master of an application that
                keeps its containers may do so again.
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
                f"the master of {attempt_id} is registered already: go on with allocate"
            )
        master.response_id = 0
        master.last_response = None
        master.is_listened_to = True
        context.post(RMAppAttemptRegistrationEvent(attempt_id, host, rpc_port, tracking_url))
        previous: list[RMContainer] = []
        if keeps:
            live = context.scheduler.live_containers(attempt_id)
            previous = [container for container in live if container.entity != attempt.master_container]
        return RegisterResponse(submission.queue, previous)

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
        """Ask for containers, give some back, and fetch what was allocated and what has ended since the last call.

        `progress`: 0 to 1; cut to that. `response_id`: that of the last response; the one before it means that the last
        response got lost, and it is sent again, without looking at the rest; None: responses cannot get lost.
        Blacklists name hosts. `tracking_url` None: as before. `resizes`: (container, size to be).

        Raises:
            UnknownAttemptError: the attempt has ended, or never was, or its master has finished.
            ApplicationMasterNotRegisteredError: the master, or the resource manager, has begun anew: register first.
            InvalidApplicationMasterRequestError: `response_id` is neither that of the last response nor that before it;
                or a container cannot be of the size that is asked for, on any node. Nothing of the call was done.
            InvalidContainerReleaseError: a release of a container that is not its own.
        """
        master = self._masters.get(attempt_id)
        if master is None or not master.is_listened_to:
            self._refuse(attempt_id, master)
        if response_id is not None and response_id != master.response_id:
            return self._repeat(attempt_id, master, response_id)
        context = self._context
        attempt = context.attempts[attempt_id]
        if asks:
            asks = tuple(asks)
            _check_sizes(ask.resource for ask in asks)
        if releases:
            releases = self._own(attempt, releases)
        if resizes:
            resizes = tuple(resizes)
            _check_sizes(size for _, size in resizes)
        if not 0.0 <= progress <= 1.0:
            progress = min(1.0, max(0.0, progress))  # 0 for what is no number
        context.post(RMAppAttemptStatusUpdateEvent(attempt_id, progress, tracking_url))
        scheduler = context.scheduler
        scheduler.allocate(attempt_id, asks, releases, blacklist_additions, blacklist_removals)
        resized = self._resize(attempt_id, resizes) if resizes else ()
        finished = self._fetch_finished(attempt) if attempt.finished_containers else ()
        app = attempt.app
        updated_nodes: Sequence[tuple[str, NodesListManagerEventType]] = ()
        if app.node_updates:
            updated_nodes, app.node_updates = app.node_updates, []
        # Unlike YARN's, the id after the last is that to registering: a master that sends it is not told to register.
        next_id = master.response_id + 1 if master.response_id < _LAST_RESPONSE_ID else 0
        response = AllocateResponse(
            scheduler.pull_newly_allocated(attempt_id), finished, next_id, updated_nodes, resized
        )
        master.response_id = next_id
        master.last_response = response
        return response

    def finish_application_master(
        self,
        attempt_id: str,
        diagnostics: str = "",
        final_status: FinalApplicationStatus = FinalApplicationStatus.SUCCEEDED,
        tracking_url: str = "",
    ) -> bool:
        """The master is done, and ends its own container next.

        Returns whether the end of the application is stored. If not, a master that cannot be without it calls again,
        after a while: that is answered, and changes nothing. One that the cluster does not run need not.

        Raises:
            UnknownAttemptError: the attempt has ended without the master's doing, or never was.
            ApplicationMasterNotRegisteredError: as for `allocate`.
        """
        context = self._context
        attempt = context.attempts.get(attempt_id)
        if attempt is not None and attempt.app.state in END_IS_STORED:
            return True
        master = self._masters.get(attempt_id)
        if master is None or not (master.is_listened_to or master.has_finished):
            self._refuse(attempt_id, master)
        if not master.has_finished:
            master.has_finished = True
            master.is_listened_to = False
            context.post(RMAppAttemptUnregistrationEvent(attempt_id, final_status, diagnostics, tracking_url))
        return attempt is not None and attempt.app.submission.unmanaged_am

    # -- steps --------------------------------------------------------------------------------------------------------

    def _refuse(self, attempt_id: str, master: MasterSession | None) -> NoReturn:
        """Say why a master is not listened to. It lives, all the same."""
        if master is None:
            raise UnknownAttemptError(f"{attempt_id} is not registered: its master should exit")
        self._context.am_liveliness_monitor.received_ping(attempt_id)
        if master.has_finished:
            raise UnknownAttemptError(f"the master of {attempt_id} has finished: it should exit")
        raise ApplicationMasterNotRegisteredError(
            f"the master of {attempt_id} is not registered, or the resource manager was restarted since: "
            "call register_application_master first"
        )

    def _repeat(self, attempt_id: str, master: MasterSession, response_id: int) -> AllocateResponse:
        """The last response again, if the master has that before it."""
        self._context.am_liveliness_monitor.received_ping(attempt_id)
        last = master.last_response
        if last is not None and response_id == (master.response_id - 1) % (_LAST_RESPONSE_ID + 1):
            return last
        raise InvalidApplicationMasterRequestError(
            f"the master of {attempt_id} sent response id {response_id}; its last response had {master.response_id}"
        )

    def _own(self, attempt: RMAppAttempt, releases: Iterable[str]) -> tuple[str, ...]:
        """The releases, once it is clear that the master may release them."""
        keeps = attempt.app.submission.keep_containers_across_attempts
        releases = tuple(releases)
        for container_id in releases:
            try:
                owner = attempt_of(container_id)
            except ValueError as error:
                raise InvalidContainerReleaseError(str(error)) from None
            # Containers that are kept can be those of an earlier attempt.
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

    def _fetch_finished(self, attempt: RMAppAttempt) -> Sequence[ContainerStatus]:
        """What has ended, for the master; the nodes need not keep it any longer."""
        ended, attempt.finished_containers = attempt.finished_containers, []
        pulled: dict[str, list[str]] = {}
        for node, status in ended:
            pulled.setdefault(node, []).append(status.container)
        for node, containers in pulled.items():
            self._context.post(RMNodeEvent(RMNodeEventType.FINISHED_CONTAINERS_PULLED_BY_AM, node, tuple(containers)))
        if attempt.number > 1 and not attempt.app.submission.keep_containers_across_attempts:
            # The master never heard of the containers of earlier attempts.
            return [status for _, status in ended if attempt_of(status.container) == attempt.entity]
        return [status for _, status in ended]


def _check_sizes(sizes: Iterable[Resource]) -> None:
    """Less than nothing would be room that no node has."""
    for size in sizes:
        if not size.is_possible():
            raise InvalidApplicationMasterRequestError(
                f"no container can have {size}: amounts are 0 or more, and the part of a GPU is 1 to {GPU_MILLI} "
                "thousandths"
            )
