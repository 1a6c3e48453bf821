"""The records of the state store: applications, attempts and changes of nodes and queues, after YARN's RMState.

Records are immutable; an update replaces one. All times are Unix milliseconds of the resource manager's clock. They are
stored as JSON objects with named fields, so that a record can gain a field that has a default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import TypeAdapter

from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.records.submission import ApplicationSubmission


class ApplicationStateData(NamedTuple):
    """An application, after YARN's class of that name."""

    application_id: str
    submission: ApplicationSubmission
    """With its current queue, priority and lifetime."""
    submit_ms: int
    start_ms: int
    state: str | None = None
    """FINISHED, FAILED or KILLED; None while it has not ended."""
    diagnostics: str = ""
    finish_ms: int | None = None
    launch_ms: int | None = None


class MasterContainerData(NamedTuple):
    """The container of an attempt's master."""

    container_id: str
    node: str
    resource: Resource
    http_address: str = ""
    """Of the node, `host:port`; empty in records of older versions."""


class UsageData(NamedTuple):
    """What containers have used: amounts times milliseconds."""

    memory_mb_ms: int = 0
    vcores_milli_ms: int = 0
    gpu_milli_ms: int = 0


class PreemptedData(NamedTuple):
    """The preempted containers of an attempt, and what they had used."""

    containers: int = 0
    masters: int = 0
    """Among them."""
    memory_mb: int = 0
    vcores_milli: int = 0
    usage: UsageData = UsageData()


class ApplicationAttemptStateData(NamedTuple):
    """An attempt, after YARN's class of that name."""

    attempt_id: str
    master_container: MasterContainerData | None
    """None for an unmanaged master."""
    start_ms: int
    state: str | None = None
    """FINISHED, FAILED or KILLED; None while it has not ended."""
    final_status: str | None = None
    """What its master reported when it unregistered."""
    exit_status: int | None = None
    """Of the master's container."""
    diagnostics: str = ""
    tracking_url: str = ""
    finish_ms: int | None = None
    usage: UsageData = UsageData()
    """Of its containers, until the record was made."""
    preempted: PreemptedData = PreemptedData()
    progress: float = 0.0
    host: str = ""
    """Of a master that has unregistered, as it reported, like `rpc_port`."""
    rpc_port: int = -1
    blacklist: tuple[str, ...] = ()
    """Hosts on which a master has failed."""


class Origin(NamedTuple):
    """When a change was made, and by whom."""

    at_ms: int
    user: str
    """Empty: by this process itself."""


QueueValue = bool | int | float | str | None


class QueueChange(NamedTuple):
    """What an administrator changed of a queue."""

    queue: str
    """Its path."""
    key: str
    """The key in the configuration, or `queue` if the queue itself was added or removed."""
    value: QueueValue
    origin: Origin


class QueueChangeList(NamedTuple):
    """All changes of queues."""

    changes: tuple[QueueChange, ...] = ()


class NodeLabel(NamedTuple):
    """The partition that an administrator gave a node."""

    label: str
    origin: Origin | None = None
    """None in stores of older versions, here and below."""


class NodeCapacity(NamedTuple):
    """The capacity that an administrator gave a node."""

    capacity: Resource
    origin: Origin | None = None


class HostDrain(NamedTuple):
    """A graceful decommissioning of a host."""

    began_ms: int
    timeout_s: int | None
    """Counts from `began_ms`. None: no timeout."""


class HostLists(NamedTuple):
    """Which hosts may have nodes, as administrators changed it."""

    included: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    drains: Mapping[str, HostDrain] = {}
    """By excluded host, if its nodes may stay until their applications have ended."""
    origins: Mapping[str, Origin] = {}
    """By excluded host."""
    included_by: Origin | None = None
    """Of the included ones, once they were changed."""


@dataclass(slots=True)
class RecoveredApplication:
    """An application and its attempts, by id, in the order of their ids."""

    data: ApplicationStateData
    attempts: dict[str, ApplicationAttemptStateData] = field(default_factory=dict)


@dataclass(slots=True)
class RMState:
    """The whole content of a store."""

    applications: dict[str, RecoveredApplication] = field(default_factory=dict)
    """In the order of submission."""
    node_labels: dict[str, NodeLabel] = field(default_factory=dict)
    """By node."""
    node_capacities: dict[str, NodeCapacity] = field(default_factory=dict)
    """By node."""
    host_lists: HostLists = field(default_factory=HostLists)
    queue_changes: QueueChangeList = field(default_factory=QueueChangeList)


Record = ApplicationStateData | ApplicationAttemptStateData | Resource | Origin | HostLists | QueueChangeList
R = TypeVar("R", bound=Record)

_ADAPTERS: dict[type, TypeAdapter[Any]] = {record: TypeAdapter(record) for record in get_args(Record)}


def encode(record: Record) -> str:
    """The record as JSON text; lone surrogates become `?`. Raises TypeError if a field has a wrong type."""
    # pydantic would write tuples as arrays without names, and refuse a whole record for one lone surrogate.
    return json.dumps(_plain(record), ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")


def decode(text: str, record: type[R]) -> R:
    """The record in a text that `encode` made. Raises pydantic's ValidationError."""
    result: R = _ADAPTERS[record].validate_json(text, strict=True)
    return result


def _plain(value: Any) -> Any:
    """Named tuples as dicts at any depth, sets and mappings sorted: equal records make equal texts."""
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        if fields is None:
            return [_plain(item) for item in value]
        return {name: _plain(item) for name, item in zip(fields, value, strict=True)}
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in sorted(value)}
    return sorted(value) if isinstance(value, frozenset) else value
