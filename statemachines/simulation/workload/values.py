"""What the workload readers share: the bounds of values, and the words for those that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

MOST_MS = 100 * 366 * 24 * 3600 * 1000
"""100 years. The journal keeps int64 nanoseconds: microseconds that are taken for ms would not fit."""
MOST_CONTAINERS = 10_000_000
"""In one workload. A count with some zeros too many must be an error, not a machine out of memory."""
MOST_NODES = 1_000_000


def shown(value: object) -> str:
    """The value as it stands in the file, cut short, on one line and in ASCII."""
    if value is None or value == "":
        return "nothing"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def not_whole(value: object, least: int, most: int) -> str:
    """The problem of a value that is not a whole number within the bounds."""
    return f"found {shown(value)}, expected a whole number from {least} to {most}"


def not_text(value: object) -> str:
    """The problem of a value that is not a name."""
    return f"found {shown(value)}, expected text without control characters"


def before(value: int, key: str, earlier: int) -> str:
    """The problem of a time that lies before the time of `key`, which comes first."""
    return f"found {value}, which is before {key}; expected {earlier} or more"


def again(name: str) -> str:
    """The problem of a name that was given before."""
    return f"found {shown(name)} again, expected each name once"


def workload_name(path: Path) -> str:
    """What to call the workload in this file or folder."""
    absolute = path.resolve()
    return absolute.name if absolute.is_dir() else absolute.stem
