"""The session of one attempt's master, and the responses it gets. Handler thread only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from statemachines.resourcemanager.events.records import ContainerStatus
from statemachines.resourcemanager.events.services import NodesListManagerEventType
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.resource import Resource

BEFORE_REGISTERING = -1


class RegisterResponse(NamedTuple):
    """The response to a master's registration."""

    queue: str
    containers_from_previous_attempts: Sequence[RMContainer]
    """Live containers, if the application keeps them; without the master's own."""


class AllocateResponse(NamedTuple):
    """The response to a master's heartbeat."""

    allocated: Sequence[RMContainer]
    finished: Sequence[ContainerStatus]
    """Its containers that have ended."""
    response_id: int
    """To be sent with the next heartbeat."""
    updated_nodes: Sequence[tuple[str, NodesListManagerEventType]] = ()
    """Nodes that became usable, unusable or DECOMMISSIONING."""
    resized: Sequence[tuple[str, Resource]] = ()
    """The requested resizes that were granted."""


class MasterSession:
    """Whether a master has registered or finished, and its last response."""

    __slots__ = ("has_finished", "is_listened_to", "last_response", "response_id")

    def __init__(self) -> None:
        self.response_id = BEFORE_REGISTERING  # of the last response; 0 after registering
        self.last_response: AllocateResponse | None = None  # sent again if it got lost
        self.has_finished = False
        self.is_listened_to = False  # == response_id >= 0 and not has_finished: one check per heartbeat
