"""What a row has of an event in text: its payload as JSON, and the error of its handler. Neither ever raises."""

from __future__ import annotations

import json
from typing import Any


def encode_payload(payload: Any) -> str:
    try:
        return json.dumps(payload, default=str, separators=(",", ":"))
    except (
        Exception
    ) as error:  # e.g. a key that is not a string, a cycle, a __str__ that raises: the event still counts
        return json.dumps({"unencodable": describe(error)})


def describe(error: BaseException) -> str:
    """The error's class and message."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}: (its __str__ raised)"
