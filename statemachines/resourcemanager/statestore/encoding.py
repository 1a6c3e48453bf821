"""Records as JSON: objects with the names of their fields, so that a record can gain a field that has a default."""

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
    """The record as JSON text. What is no Unicode in its strings (lone surrogates) becomes `?`.

    Raises:
        TypeError: a field holds what its type does not allow.
    """
    # pydantic would write tuples as arrays, without names, and refuse a whole record for one lone surrogate.
    return json.dumps(_plain(record), ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")


def decode(text: str, record: type[R]) -> R:
    """The record of a text that `encode` made.

    Raises:
        ValidationError: (pydantic's) it is no such record.
    """
    result: R = _ADAPTERS[record].validate_json(text, strict=True)
    return result


def _plain(value: Any) -> Any:
    """Named tuples as dicts, at any depth; sets sorted, so that equal records make equal texts."""
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        if fields is None:
            return [_plain(item) for item in value]
        return {name: _plain(item) for name, item in zip(fields, value, strict=True)}
    return sorted(value) if isinstance(value, frozenset) else value
