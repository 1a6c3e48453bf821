"""The records of the state store, one per application and per attempt, after YARN's RMState.

Records are immutable; an update replaces one. All times are Unix milliseconds of the resource manager's clock. They are
stored as JSON objects with named fields, so that a record can gain a field that has a default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

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


class ApplicationAttemptStateData(NamedTuple):
    """An attempt, after YARN's class of that name."""

    attempt_id: str
    master_container: MasterContainerData | None
    """None for an unmanaged master."""
    start_ms: int
    state: str | None = None
    """FINISHED, FAILED or KILLED; None while it has not ended."""
    final_status: str | None = None
    """As its master reported when it unregistered."""
    exit_status: int | None = None
    """Of the master's container."""
    diagnostics: str = ""
    tracking_url: str = ""
    finish_ms: int | None = None


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
    node_labels: dict[str, str] = field(default_factory=dict)
    """By node: the partition that an administrator gave it."""


R = TypeVar("R", ApplicationStateData, ApplicationAttemptStateData)

_ADAPTERS: dict[type, TypeAdapter[Any]] = {
    record: TypeAdapter(record) for record in (ApplicationStateData, ApplicationAttemptStateData)
}


def encode(record: ApplicationStateData | ApplicationAttemptStateData) -> str:
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
