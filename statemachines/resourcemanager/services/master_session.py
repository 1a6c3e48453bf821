"""The conversation with the master of one attempt. Handler thread only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from statemachines.resourcemanager.events.records import ContainerStatus
from statemachines.resourcemanager.events.services import NodesListManagerEventType
from statemachines.resourcemanager.machines.rmcontainer import RMContainer
from statemachines.resourcemanager.resource import Resource

BEFORE_REGISTERING = -1


class RegisterResponse(NamedTuple):
    """What a master learns when it registers."""

    queue: str
    containers_from_previous_attempts: Sequence[RMContainer]
    """Those that go on, where the application keeps its containers; without the master's own."""


class AllocateResponse(NamedTuple):
    """What a master gets with its heartbeat."""

    allocated: Sequence[RMContainer]
    finished: Sequence[ContainerStatus]
    """Its containers that have ended."""
    response_id: int
    """To be sent with the next heartbeat."""
    updated_nodes: Sequence[tuple[str, NodesListManagerEventType]] = ()
    """Nodes that came, went, or are about to go."""
    resized: Sequence[tuple[str, Resource]] = ()
    """The changes of size asked for with this heartbeat that are granted; the others are not."""


class MasterSession:
    """Where the conversation with one attempt's master is."""

    __slots__ = ("has_finished", "is_listened_to", "last_response", "response_id")

    def __init__(self) -> None:
        self.response_id = BEFORE_REGISTERING  # of the last response; 0 is that to registering
        self.last_response: AllocateResponse | None = None  # to be sent again, if it got lost
        self.has_finished = False
        self.is_listened_to = False  # == response_id >= 0 and not has_finished: one look for each heartbeat
