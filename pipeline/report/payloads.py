"""The events whose payload the report reads, and the fields it reads of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

OWNER_AUDIT: Final = "RMAuditLogger"
OWNER_OPERATIONS: Final = (
    "Submit Application Request",
    "Register App Master",
    "AM Allocated Container",
    "AM Released Container",
    "Application Finished - Succeeded",
    "Application Finished - Failed",
    "Application Finished - Killed",
)
"""The operations in audit lines of Hadoop's resource manager whose user is the application's owner."""

DIAGNOSTICS: Final = {"diagnostics": "VARCHAR"}
PAYLOADS: Final[Mapping[tuple[str, str], Mapping[str, str]]] = {
    **{
        (OWNER_AUDIT, operation): dict.fromkeys(("APPID", "USER", "QUEUENAME"), "VARCHAR")
        for operation in OWNER_OPERATIONS
    },
    ("RMAppEventType", "START"): dict.fromkeys(("name", "user", "queue"), "VARCHAR"),
    ("RMAppEventType", "APP_REJECTED"): DIAGNOSTICS,
    ("RMAppEventType", "APP_SAVE_FAILED"): DIAGNOSTICS,
    ("RMAppEventType", "ATTEMPT_FAILED"): DIAGNOSTICS,
    ("RMAppEventType", "KILL"): DIAGNOSTICS,
    ("RMContainerEventType", "START"): {
        **dict.fromkeys(("application", "attempt", "node", "kind"), "VARCHAR"),
        **dict.fromkeys(("memory_mb", "vcores_milli", "gpus", "gpu_milli"), "BIGINT"),
        "gpu_devices": "INTEGER[]",
    },
    ("RMNodeEventType", "STARTED"): {
        **dict.fromkeys(("host", "rack", "gpu_model"), "VARCHAR"),
        **dict.fromkeys(("memory_mb", "vcores_milli", "gpus"), "BIGINT"),
    },
}
"""The fields and their types in SQL, by event class and type; a payload may lack any of them."""


def fields_of(event_class: str, event_type: str, payload: str = "payload") -> str:
    """SQL: the fields of the payload of such an event, as a struct; null without a payload in JSON."""
    kinds = PAYLOADS[event_class, event_type]
    shape = {name: [kind.removesuffix("[]")] if kind.endswith("[]") else kind for name, kind in kinds.items()}
    return f"CASE WHEN json_valid({payload}) THEN json_transform({payload}, '{json.dumps(shape)}') END"


def is_event(event_class: str, *event_types: str) -> str:
    """SQL: whether an event has this class and one of these types."""
    return f"event_class = '{event_class}' AND event_type IN ({', '.join(map(repr, event_types))})"
