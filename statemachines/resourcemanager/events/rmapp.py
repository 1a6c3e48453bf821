"""Events for an application."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from statemachines.resourcemanager.events.records import RMEvent

if TYPE_CHECKING:
    from statemachines.resourcemanager.records.stored_state import RecoveredApplication


class RMAppEventType(Enum):
    """The events of applications, as YARN's RMAppEventType."""

    START = auto()
    RECOVER = auto()
    KILL = auto()
    APP_REJECTED = auto()
    APP_ACCEPTED = auto()
    ATTEMPT_REGISTERED = auto()
    ATTEMPT_UNREGISTERED = auto()
    ATTEMPT_FINISHED = auto()
    ATTEMPT_FAILED = auto()
    ATTEMPT_KILLED = auto()
    ATTEMPT_LAUNCHED = auto()
    NODE_UPDATE = auto()
    APP_RUNNING_ON_NODE = auto()
    APP_NEW_SAVED = auto()
    APP_UPDATE_SAVED = auto()
    APP_SAVE_FAILED = auto()


_APP_RUNNING_ON_NODE: Final = RMAppEventType.APP_RUNNING_ON_NODE
"""Bound once: to look a member up in its class takes as long as a call."""


@dataclass(eq=False, repr=False, slots=True)
class RMAppEvent(RMEvent):
    """`node` is for APP_RUNNING_ON_NODE, `diagnostics` for events that end an application.

    Diagnostics are the payload of an event that has no other, so that the journal says why an application ended.
    """

    type: RMAppEventType
    diagnostics: str = ""
    node: str = ""
    payload: Any = None

    def __post_init__(self) -> None:
        if self.diagnostics and self.payload is None:
            self.payload = {"diagnostics": self.diagnostics}


class RMAppRunningOnNodeEvent(RMAppEvent):
    """APP_RUNNING_ON_NODE."""

    __slots__ = ()

    def __init__(self, entity: str, node: str) -> None:
        self.type = _APP_RUNNING_ON_NODE
        self.timestamp = -1.0
        self.entity = entity
        self.node = node
        self.diagnostics = ""
        self.payload = None


class RMAppRecoverEvent(RMAppEvent):
    """RECOVER, with the application's stored state."""

    __slots__ = ("state",)

    def __init__(self, entity: str, state: RecoveredApplication) -> None:
        super().__init__(RMAppEventType.RECOVER, entity)
        self.state: RecoveredApplication = state


class RMAppFailedAttemptEvent(RMAppEvent):
    """ATTEMPT_FAILED or ATTEMPT_KILLED. `keep_containers`: the next attempt takes over the containers."""

    __slots__ = ("keep_containers",)

    def __init__(self, type: RMAppEventType, entity: str, diagnostics: str, keep_containers: bool) -> None:
        super().__init__(type, entity, diagnostics)
        self.keep_containers: bool = keep_containers
