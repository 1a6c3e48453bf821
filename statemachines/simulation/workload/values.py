"""The bounds of values, and the messages for bad ones, of all workload readers."""

from __future__ import annotations

import json
from pathlib import Path

MOST_MS = 100 * 366 * 24 * 3600 * 1000
"""100 years. The journal keeps int64 nanoseconds, which microseconds mistaken for ms would overflow."""
MOST_CONTAINERS = 10_000_000
"""In one workload: a count with too many zeros must be an error, not exhaust the memory."""
MOST_NODES = 1_000_000


def shown(value: object) -> str:
    """The value as in the file, shortened, on one line and in ASCII."""
    if value is None or value == "":
        return "nothing"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def not_whole(value: object, least: int, most: int) -> str:
    return f"found {shown(value)}, expected a whole number from {least} to {most}"


def not_text(value: object) -> str:
    return f"found {shown(value)}, expected text without control characters"


def before(value: int, key: str, earlier: int) -> str:
    """The problem of a time before that of `key`."""
    return f"found {value}, which is before {key}; expected {earlier} or more"


def again(name: str) -> str:
    return f"found {shown(name)} again, expected each name once"


def workload_name(path: Path) -> str:
    absolute = path.resolve()
    return absolute.name if absolute.is_dir() else absolute.stem
