"""Events for the launcher, the state store, the application manager and the nodes list; fatal events."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from statemachines.resourcemanager.events.base import RMEvent


class AMLauncherEventType(Enum):
    LAUNCH = auto()
    CLEANUP = auto()


class RMStateStoreEventType(Enum):
    STORE_APP = auto()
    UPDATE_APP = auto()
    REMOVE_APP = auto()
    STORE_APP_ATTEMPT = auto()
    UPDATE_APP_ATTEMPT = auto()
    REMOVE_APP_ATTEMPT = auto()


class RMAppManagerEventType(Enum):
    APP_COMPLETED = auto()
    APP_MOVE = auto()


class NodesListManagerEventType(Enum):
    NODE_USABLE = auto()
    NODE_UNUSABLE = auto()
    NODE_DECOMMISSIONING = auto()


class RMFatalEventType(Enum):
    STATE_STORE_OP_FAILED = auto()
    STATE_STORE_FENCED = auto()
    CRITICAL_THREAD_CRASH = auto()


class AMLauncherEvent(RMEvent):
    """`entity` is an attempt."""

    __slots__ = ()


class RMStateStoreEvent(RMEvent):
    """`entity` is an application or an attempt, `state` its record. `notify` False: the write is not answered."""

    __slots__ = ("notify", "state")

    def __init__(self, type: RMStateStoreEventType, entity: str, state: Any = None, notify: bool = True) -> None:
        self.type = type
        self.timestamp = -1.0
        self.entity = entity
        self.state = state
        self.notify = notify


class RMAppManagerEvent(RMEvent):
    """`entity` is an application; `queue` is the target of an APP_MOVE."""

    __slots__ = ("queue",)

    def __init__(self, type: RMAppManagerEventType, entity: str, queue: str = "") -> None:
        super().__init__(type, entity)
        self.queue = queue


class NodesListManagerEvent(RMEvent):
    """`entity` is a node."""

    __slots__ = ()


class RMFatalEvent(RMEvent):
    """The resource manager must stop; `entity` names the failed part."""

    __slots__ = ("cause",)

    def __init__(self, type: RMFatalEventType, entity: str, cause: BaseException | None = None) -> None:
        super().__init__(type, entity)
        self.cause = cause
