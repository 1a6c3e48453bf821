"""Events for a container."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Protocol

from statemachines.resourcemanager.events.records import ContainerStatus, NMContainerStatus, RMEvent
from statemachines.resourcemanager.records.resource import Resource


class RMContainerEventType(Enum):
    """The events of containers, as YARN's RMContainerEventType."""

    START = auto()
    ACQUIRED = auto()
    KILL = auto()
    RESERVED = auto()
    LAUNCHED = auto()
    FINISHED = auto()
    RELEASED = auto()
    EXPIRE = auto()
    RECOVER = auto()
    ACQUIRE_UPDATED_CONTAINER = auto()
    CHANGE_RESOURCE = auto()
    NM_DONE_CHANGE_RESOURCE = auto()


_START: Final = RMContainerEventType.START
"""Bound once: to look a member up in its class takes as long as a call."""


@dataclass(eq=False, repr=False, slots=True)
class RMContainerEvent(RMEvent):
    """`status` is for events that end a container; if it has failed, `payload` has its exit status for the journal."""

    type: RMContainerEventType
    status: ContainerStatus | None = None
    payload: Any = None


class _DescribedContainer(Protocol):
    """A container with a payload for the journal."""

    @property
    def entity(self) -> str: ...

    def payload_text(self) -> str: ...


class RMContainerStartEvent(RMContainerEvent):
    """START, with the container's payload."""

    __slots__ = ("container",)

    def __init__(self, container: _DescribedContainer) -> None:
        self.type = _START
        self.timestamp = -1.0
        self.entity = container.entity
        self.status = None
        self.container: _DescribedContainer = container

    @property
    def payload(self) -> Any:
        """Built on demand: most runs have no journal."""
        return self.container.payload_text()


class RMContainerRecoverEvent(RMContainerEvent):
    """RECOVER, with its node's report."""

    __slots__ = ("report",)

    def __init__(self, entity: str, report: NMContainerStatus, payload: Any = None) -> None:
        super().__init__(RMContainerEventType.RECOVER, entity, report.status, payload)
        self.report: NMContainerStatus = report


class RMContainerReservedEvent(RMContainerEvent):
    """RESERVED, with the reserved size."""

    __slots__ = ("resource",)

    def __init__(self, entity: str, resource: Resource, payload: Any = None) -> None:
        super().__init__(RMContainerEventType.RESERVED, entity, payload=payload)
        self.resource: Resource = resource


class RMContainerResourceEvent(RMContainerEvent):
    """ACQUIRE_UPDATED_CONTAINER (with the new size) or NM_DONE_CHANGE_RESOURCE (with the size on the node)."""

    __slots__ = ("resource",)

    def __init__(self, type: RMContainerEventType, entity: str, resource: Resource) -> None:
        super().__init__(type, entity)
        self.resource: Resource = resource
