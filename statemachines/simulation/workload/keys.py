"""The keys of SLS's objects: which are read, which SLS knows but a replay does not use, and which are unknown."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, Final

from statemachines.simulation.workload.values import shown

_USED: Final[Mapping[str, Set[str]]] = {
    "job": {
        "job.tasks",
        "job.start.ms",
        "job.end.ms",
        "job.id",
        "job.user",
        "job.queue.name",
        "job.count",
        "job.final.state",
        "am.memory-mb",
        "am.memory",
        "am.vcores",
    },
    "task": {
        "container.host",
        "container.start.ms",
        "container.end.ms",
        "container.duration.ms",
        "duration.ms",
        "container.memory-mb",
        "container.memory",
        "container.vcores",
        "container.priority",
        "container.type",
        "count",
    },
    "rack": {"rack", "nodes"},
    "node": {"node", "memory-mb", "vcores", "gpus"},
    "topology": {"num.nodes", "num.racks"},
}
_NOT_USED: Final[Mapping[str, Mapping[str, str | None]]] = {
    "job": {"am.type": "mapreduce", "job.label.expression": None},
    "task": {
        "container.execution.type": "GUARANTEED",
        "container.allocation.id": None,
        "container.request.delay": None,
    },
    "node": {"labels": None},
}
"""Keys of SLS by kind of object, with the value that says what a replay does anyway, if there is one."""
_UNKNOWN_TOLD: Final = 10


class UnusedKeys:
    """Counts the keys that change nothing. One thread."""

    def __init__(self) -> None:
        self._not_used: Counter[tuple[str, str]] = Counter()  # by kind of object and key
        self._unknown: Counter[tuple[str, str]] = Counter()  # likewise

    def note(self, kind: str, values: Mapping[str, Any]) -> None:
        """Count the keys of one object. `kind`: job, task, rack, node or topology."""
        for key in values.keys() - _USED[kind]:
            value = values[key]
            not_used = _NOT_USED.get(kind, {})
            if value is None or (key in not_used and value == not_used[key]):
                continue
            (self._not_used if key in not_used else self._unknown)[kind, key] += 1

    def remarks(self) -> Iterator[str]:
        """Lines for the user: one for all keys that are not used, and one for each that is unknown."""
        if self._not_used:
            keys = ", ".join(f"{key} (of {_times(kind, n)})" for (kind, key), n in self._not_used.items())
            yield f"keys that a replay does not use: {keys}"
        unknown = self._unknown.most_common()
        for (kind, key), number in unknown[:_UNKNOWN_TOLD]:
            near = nearest(key, _USED[kind] | _NOT_USED.get(kind, {}).keys())
            advice = f"; did you mean {near}?" if near is not None else ""
            yield f"unknown key {shown(key)} of {_times(kind, number)} is ignored{advice}"
        if len(unknown) > _UNKNOWN_TOLD:
            yield f"and {len(unknown) - _UNKNOWN_TOLD:,} more unknown keys"


def nearest(key: str, known: Iterable[str]) -> str | None:
    """The known key that `key` most resembles, if one is near."""
    return next(iter(difflib.get_close_matches(key, sorted(known), 1, 0.75)), None)


def misspelt(key: str, values: Mapping[str, Any]) -> str:
    """For the message about a key that is missing: the key in its place, or nothing."""
    known = {key for keys in (*_USED.values(), *_NOT_USED.values()) for key in keys}
    near = nearest(key, values.keys() - known)
    return f"; is {shown(near)} meant to be it?" if near is not None else ""


def _times(kind: str, number: int) -> str:
    return f"{number:,} {kind}" if number == 1 or kind == "topology" else f"{number:,} {kind}s"
