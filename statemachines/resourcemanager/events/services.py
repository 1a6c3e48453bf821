"""Events for the launcher, the state store, the application manager and the nodes list; fatal events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from statemachines.resourcemanager.events.records import RMEvent


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
    STORE_NODE_LABEL = auto()
    REMOVE_NODE_LABEL = auto()
    STORE_NODE_CAPACITY = auto()
    REMOVE_NODE_CAPACITY = auto()
    STORE_HOST_LISTS = auto()
    STORE_QUEUE_CHANGES = auto()


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


@dataclass(eq=False, repr=False, slots=True)
class RMStateStoreEvent(RMEvent):
    """`entity` is an application or an attempt, `state` its record; or a node, and its NodeLabel or NodeCapacity.

    The HostLists and the QueueChangeList are one record each, whatever `entity` is.

    `notify` False: the write is not answered by an event. `on_stored` is called on the handler thread once the record
    is durable. `on_failed` is called there if it cannot be written; without it, that stops the resource manager.
    """

    type: RMStateStoreEventType
    state: Any = None
    notify: bool = True
    on_stored: Callable[[], None] | None = None
    on_failed: Callable[[Exception], None] | None = None


@dataclass(eq=False, repr=False, slots=True)
class RMAppManagerEvent(RMEvent):
    """`entity` is an application; `queue` is the target of an APP_MOVE."""

    type: RMAppManagerEventType
    queue: str = ""


@dataclass(eq=False, repr=False, slots=True)
class NodesListManagerEvent(RMEvent):
    """`entity` is a node."""

    type: NodesListManagerEventType


@dataclass(eq=False, repr=False, slots=True)
class RMFatalEvent(RMEvent):
    """The resource manager must stop; `entity` names the failed part."""

    type: RMFatalEventType
    cause: BaseException | None = None
