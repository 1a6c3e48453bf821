"""Records as JSON objects with named fields, so that a record can gain a field that has a default."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import TypeAdapter

from statemachines.resourcemanager.statestore.records import ApplicationAttemptStateData, ApplicationStateData

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
    """Named tuples as dicts at any depth, sets as sorted lists: equal records make equal texts."""
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        if fields is None:
            return [_plain(item) for item in value]
        return {name: _plain(item) for name, item in zip(fields, value, strict=True)}
    return sorted(value) if isinstance(value, frozenset) else value
