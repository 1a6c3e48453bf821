"""The text columns of an event's row: its payload as JSON, and its handler's error. Neither function raises."""

from __future__ import annotations

import json
from typing import Any


def encode_payload(payload: Any) -> str:
    try:
        return json.dumps(payload, default=str, separators=(",", ":"))
    except Exception as error:  # e.g. a key that is not a string, a cycle, a __str__ that raises
        return json.dumps({"unencodable": describe(error)})


def describe(error: BaseException) -> str:
    """The error's class and message."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}: (its __str__ raised)"
