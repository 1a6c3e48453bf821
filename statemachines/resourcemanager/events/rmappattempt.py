"""Events for an attempt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from statemachines.resourcemanager.events.records import ContainerStatus, FinalApplicationStatus, RMEvent

if TYPE_CHECKING:
    from statemachines.resourcemanager.records.stored_state import ApplicationAttemptStateData


class RMAppAttemptEventType(Enum):
    """The events of attempts, as YARN's RMAppAttemptEventType."""

    START = auto()
    KILL = auto()
    FAIL = auto()
    LAUNCHED = auto()
    LAUNCH_FAILED = auto()
    EXPIRE = auto()
    REGISTERED = auto()
    STATUS_UPDATE = auto()
    UNREGISTERED = auto()
    CONTAINER_ALLOCATED = auto()
    CONTAINER_FINISHED = auto()
    ATTEMPT_NEW_SAVED = auto()
    ATTEMPT_UPDATE_SAVED = auto()
    ATTEMPT_ADDED = auto()
    RECOVER = auto()


# Diagnostics by the resource manager itself, or parts of them. Reports find the cause of a failure by these:
LAUNCH_FAILED: Final = "launch failed"
MASTER_SILENT: Final = "the master was silent for too long"
FAILED_BY_USER: Final = "failed by its user"
QUEUE_GONE: Final = "no longer exists"

_STATUS_UPDATE: Final = RMAppAttemptEventType.STATUS_UPDATE
"""Bound once: to look a member up in its class takes as long as a call."""


@dataclass(eq=False, repr=False, slots=True)
class RMAppAttemptEvent(RMEvent):
    """`status` and `node` are for CONTAINER_FINISHED, `diagnostics` for events that end an attempt."""

    type: RMAppAttemptEventType
    diagnostics: str = ""
    status: ContainerStatus | None = None
    node: str = ""


class RMAppStartAttemptEvent(RMAppAttemptEvent):
    """START. `transfer_state`: the attempt takes over the containers of the previous one."""

    __slots__ = ("transfer_state",)

    def __init__(self, entity: str, transfer_state: bool) -> None:
        super().__init__(RMAppAttemptEventType.START, entity)
        self.transfer_state: bool = transfer_state


class RMAppAttemptRecoverEvent(RMAppAttemptEvent):
    """RECOVER, with the attempt's stored state."""

    __slots__ = ("state",)

    def __init__(self, entity: str, state: ApplicationAttemptStateData) -> None:
        super().__init__(RMAppAttemptEventType.RECOVER, entity)
        self.state: ApplicationAttemptStateData = state


class RMAppAttemptRegistrationEvent(RMAppAttemptEvent):
    """REGISTERED, with the master's addresses."""

    __slots__ = ("host", "rpc_port", "tracking_url")

    def __init__(self, entity: str, host: str = "", rpc_port: int = -1, tracking_url: str = "") -> None:
        super().__init__(RMAppAttemptEventType.REGISTERED, entity)
        self.host: str = host
        self.rpc_port: int = rpc_port
        self.tracking_url: str = tracking_url


class RMAppAttemptStatusUpdateEvent(RMAppAttemptEvent):
    """STATUS_UPDATE. `progress`: 0 to 1; `tracking_url` None: no change."""

    __slots__ = ("progress", "tracking_url")

    def __init__(self, entity: str, progress: float = 0.0, tracking_url: str | None = None) -> None:
        self.type = _STATUS_UPDATE
        self.timestamp = -1.0
        self.entity = entity
        self.progress: float = progress
        self.tracking_url: str | None = tracking_url


class RMAppAttemptUnregistrationEvent(RMAppAttemptEvent):
    """UNREGISTERED, with the application's end as its master reports it."""

    __slots__ = ("final_status", "tracking_url")

    def __init__(
        self,
        entity: str,
        final_status: FinalApplicationStatus = FinalApplicationStatus.SUCCEEDED,
        diagnostics: str = "",
        tracking_url: str = "",
    ) -> None:
        super().__init__(RMAppAttemptEventType.UNREGISTERED, entity, diagnostics)
        self.final_status: FinalApplicationStatus = final_status
        self.tracking_url: str = tracking_url
