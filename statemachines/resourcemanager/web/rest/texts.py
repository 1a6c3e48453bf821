"""Entities as JSON, by functions that are compiled from their fields. The texts of applications and nodes are made once
for each of their reports and kept; what grows with time is put in at the answer.

The loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from json.encoder import encode_basestring
from math import isfinite
from typing import Any, Final, Generic, NamedTuple, TypeVar

from dispatcher.web.plain_answers import json_text, to_json
from statemachines.resourcemanager.read.compiled import compiled, values_of
from statemachines.resourcemanager.read.fields import ENDED, Around, Field, Unit
from statemachines.resourcemanager.reports import ApplicationReport
from statemachines.resourcemanager.scheduler.queue_info import PendingRequests
from statemachines.resourcemanager.web.rest.filters import DESELECTABLE
from statemachines.resourcemanager.web.rest.resources import (
    GPUS,
    MEMORY,
    VCORES,
    at_most,
    cores,
    json_left,
    json_of,
    left,
)
from statemachines.resourcemanager.web.rest.resources import text as printed
from statemachines.resourcemanager.web.rest.rest_endpoints import MOST_INT, finite, percent

R = TypeVar("R")

_LAST_S: Final = 253_402_300_799
"""The end of the year 9999: no later one can be written."""
SPARE: Final = 256
"""Texts of forgotten entities that may be kept, besides a quarter of all."""


# -- values ------------------------------------------------------------------------------------------------------------


def timeout_info(deadline_ms: int | None, now_ms: int) -> dict[str, Any]:
    """The limit on how long an application may live: until this time, Unix ms, or for ever."""
    if deadline_ms is None:
        return {"type": "LIFETIME", "expiryTime": "UNLIMITED", "remainingTimeInSeconds": -1}
    expiry = datetime.fromtimestamp(min(deadline_ms // 1000, _LAST_S), UTC)
    return {
        "type": "LIFETIME",
        "expiryTime": f"{expiry:%Y-%m-%dT%H:%M:%S}.{deadline_ms % 1000:03d}+0000",
        "remainingTimeInSeconds": max(0, deadline_ms - now_ms) // 1000,
    }


_UNLIMITED: Final = to_json({"timeout": [timeout_info(None, 0)]})

_RESOURCES_S: Final = (
    '{"entry":[' + ",".join(f'{{"key":"{name}","value":%d}}' for name in (MEMORY, VCORES, GPUS)) + "]}"
)


def _lifetime(deadline_ms: int, now_ms: int) -> bytes:
    return to_json({"timeout": [timeout_info(deadline_ms, now_ms)]})


def _use(app: ApplicationReport) -> str:
    """What it has and waits for in all partitions, under the partition that it asks for by default."""
    return (
        f'{{"resourceUsagesByPartition":[{{"partitionName":{encode_basestring(app.node_label or "")},'
        f'"used":{json_of(app.allocated)},"reserved":{json_of(app.reserved)},"pending":{json_of(app.pending)}}}]}}'
    )


def _requests(requests: Iterable[PendingRequests]) -> Iterator[str]:
    """Its pending requests. As from Hadoop, those for any node are for `*`, and so are those for one host or rack."""
    for each in requests:
        only = each.host or each.rack
        for name in ("*",) if only is None else (only, "*"):
            fields = {
                "priority": each.priority,
                "allocationRequestId": -1,
                "resourceName": name,
                "numContainers": each.containers,
                "relaxLocality": only is None,
                "nodeLabelExpression": each.partition,
                "executionTypeRequest": {"executionType": "GUARANTEED", "enforceExecutionType": False},
            }
            yield f'{json_text(fields)[:-1]},"capability":{json_of(each.resource)}}}'


_WRITTEN: Final[dict[Unit, str]] = {
    Unit.TEXT: "quoted({})",
    Unit.NAME: "quoted({})",
    Unit.TAGS: "quoted(joined({}))",
    Unit.COUNT: "{}",
    Unit.SHARE: "percent({})",
    Unit.TIME_MS: "{} or 0",
    Unit.DURATION_MS: "{}",
    Unit.MEMORY_MB: "{}",
    Unit.CORES_MILLI: "cores({})",
    Unit.RESOURCE_S: "int(value) if isfinite(value := {}) else 0",
    Unit.USE: "use({})",
    Unit.REQUESTS: "requests({})",
    Unit.RESOURCE: "json_of({})",
    Unit.LEFT: "json_left(*{})",
    Unit.LEFT_CORES: "left_cores(*{})",
    Unit.NUMBER: "finite({})",
    Unit.WHOLE: "int(finite({}))",
    Unit.LIMIT: "{} or MOST_INT",
    Unit.MAXIMUM: "json_of(at_most({}))",
    Unit.RESOURCE_TEXT: "quoted(printed({}))",
    Unit.PARTITIONS: "partitions(report, {})",
    Unit.PARTITION_USES: "partition_uses(report, {})",
    Unit.USERS: "users({})",
    Unit.QUEUES: "queues({}, around)",
}
"""The expression whose text is the JSON of a value. `json_text` writes values of other units."""
_NEVER_MISSING: Final = frozenset({Unit.TIME_MS, Unit.DURATION_MS, Unit.RESOURCE_S})
"""A field of another unit is left out if its value is None."""
_GROWING: Final[dict[Unit, tuple[str, str]]] = {
    Unit.TIME_MS: ("%d", "{} or 0"),
    Unit.DURATION_MS: ("%d", "{}"),
    Unit.RESOURCE_S: ("%d", "{}"),
    Unit.RESOURCES_S: (_RESOURCES_S, "*{}"),
    Unit.LIFETIME_MS: ("%b", "unlimited if (value := {}) is None else lifetime(value, around.now_ms)"),
}
"""How values that grow are put between bytes: the format and the expression. They are never None."""
_NAMES: Final[dict[str, Any]] = {
    "ENDED": ENDED,
    "quoted": encode_basestring,
    "joined": ",".join,
    "percent": percent,
    "cores": cores,
    "isfinite": isfinite,
    "unlimited": _UNLIMITED,
    "lifetime": _lifetime,
    "use": _use,
    "requests": lambda found: f"[{','.join(_requests(found))}]",
    "json_of": json_of,
    "json_left": json_left,
    "left_cores": lambda total, taken: left(total, taken)[VCORES],
    "json_text": json_text,
    "finite": finite,
    "MOST_INT": MOST_INT,
    "at_most": at_most,
    "printed": printed,
}
_ENCODED: Final = ".encode('utf-8', 'backslashreplace')"
"""Lone surrogates become escapes."""


# -- objects -----------------------------------------------------------------------------------------------------------


def _members(fields: Sequence[Field[Any]], lines: list[str], names: dict[str, Any], *, is_first: bool = False) -> str:
    """The members of a JSON object, each with a comma before it, as an f-string.

    `is_first`: the object begins here, with a field that always has a value.
    """
    members = ""
    if any(field.is_live for field in fields):
        lines.append("is_over = report.state in ENDED")
    for field, value in values_of(fields, lines, names):
        begins, written = is_first and not members, _WRITTEN.get(field.unit, "json_text({})")
        if begins or field.is_live or field.unit in _NEVER_MISSING:
            shown = ("-1 if is_over else " if field.is_live else "") + written.format(value)
            members += f'{"{{" if begins else ","}"{field.rest}":{{{shown}}}'
        else:
            text = f"text_{len(lines)}"
            lines.append(f"value = {value}")
            lines.append(f"{text} = '' if value is None else f',\"{field.rest}\":{{{written.format('value')}}}'")
            members += f"{{{text}}}"
    return f"f'{members}'"


def _growing(fields: Sequence[Field[Any]], lines: list[str], names: dict[str, Any]) -> tuple[str, list[str]]:
    """The same for values that grow: a format of bytes, and the expressions for it."""
    form, values = "", []
    for field, value in values_of(fields, lines, names):
        if field.unit in _GROWING:
            shown, written = _GROWING[field.unit]
            form += f',"{field.rest}":{shown}'
            values.append(written.format(value))
        else:
            text, written = f"text_{len(lines)}", _WRITTEN[field.unit].format("value")
            lines.append(f"value = {value}")
            lines.append(f"{text} = b'' if value is None else f',\"{field.rest}\":{{{written}}}'{_ENCODED}")
            form += "%b"
            values.append(text)
    return form, values


def object_writer(fields: Iterable[Field[R]], **writers: Callable[..., str]) -> Callable[[R, Around], str]:
    """The function that makes the JSON object of an entity. `writers`: of the objects in it, as units name them."""
    names, lines = {**_NAMES, **writers}, list[str]()
    members = _members([field for field in fields if field.rest is not None], lines, names, is_first=True)
    return compiled("write(report, around)", [*lines, f"return {members} '}}'"], names)


class _TextPiece(NamedTuple):
    """Consecutive fields that are shown or left out together."""

    fields: Sequence[Field[Any]]
    is_public: bool
    is_growing: bool
    deselected_as: str | None
    """The name by which a request leaves them out, in lower case."""

    @property
    def masked(self) -> bytes:
        shown = {str(field.rest): field.masked for field in self.fields if field.masked is not None}
        return b"," + to_json(shown)[1:-1] if shown else b""


def _pieces(fields: Iterable[Field[Any]]) -> Iterator[_TextPiece]:
    def alike(field: Field[Any]) -> tuple[bool, bool, str | None]:
        deselected_as = str(field.rest).lower() if field.rest in DESELECTABLE else None
        return field.is_public or field.is_public_rest, field.is_growing, deselected_as

    for shared, found in groupby((field for field in fields if field.rest is not None), alike):
        yield _TextPiece(tuple(found), *shared)


_Text = Callable[[str, R, Around], bytes]
"""By id; `around` has the attempts of an application."""


class Texts(Generic[R]):
    """The texts of all entities of one kind. Their first field does not grow, and always has a value."""

    def __init__(self, fields: Iterable[Field[R]]) -> None:
        self._pieces = tuple(_pieces(fields))
        self._make = self._compiled_make()
        # By id: a report, its attempts, and the texts of the pieces that do not grow.
        self._kept: dict[str, tuple[Any, ...]] = {}
        self._cluster_timestamp = 0
        self._writers: dict[tuple[bool, frozenset[str]], _Text[R]] = {}

    def writer(
        self, cluster_timestamp: int = 0, is_whole: bool = True, deselected: frozenset[str] = frozenset()
    ) -> _Text[R]:
        """The function that makes an entity's JSON object; unless `is_whole`, without what is only for users who may
        view it."""
        if cluster_timestamp != self._cluster_timestamp:
            self._kept.clear()
            self._cluster_timestamp = cluster_timestamp
        found = self._writers.get((is_whole, deselected))
        if found is None:
            found = self._writers[is_whole, deselected] = self._compiled_text(is_whole, deselected)
        return found

    def _keep(self, id: str, report: R, around: Around) -> tuple[Any, ...]:
        made = self._make(report, around)
        if around.cluster_timestamp == self._cluster_timestamp:  # no long answer from before a restart
            self._kept[id] = made
        return made

    def _compiled_make(self) -> Callable[[R, Around], tuple[Any, ...]]:
        names, lines = dict(_NAMES), list[str]()
        kept = [piece for piece in self._pieces if not piece.is_growing]
        texts = [_members(piece.fields, lines, names, is_first=piece is kept[0]) for piece in kept]
        encoded = ", ".join(text + _ENCODED for text in texts)
        return compiled("make(report, around)", [*lines, f"return report, around.attempts, {encoded}"], names)

    def _compiled_text(self, is_whole: bool, deselected: frozenset[str]) -> _Text[R]:
        names = {**_NAMES, "texts": self, "found": self._kept.get}
        lines = [
            "kept = found(id)",
            "if kept is None or kept[0] is not report or kept[1] is not around.attempts:",
            "    kept = texts._keep(id, report, around)",
        ]
        form, values, kept = "", list[str](), 2
        for piece in self._pieces:
            if piece.deselected_as is not None and (not is_whole or piece.deselected_as in deselected):
                pass
            elif not (is_whole or piece.is_public):
                form += "%b"
                values.append(repr(piece.masked))
            elif piece.is_growing:
                more, grown = _growing(piece.fields, lines, names)
                form += more
                values += grown
            else:
                form += "%b"
                values.append(f"kept[{kept}]")
            kept += not piece.is_growing
        lines.append(f"return b'{form}}}' % ({', '.join(values)},)")
        return compiled("text(id, report, around)", lines, names)

    def forget(self, known: Collection[str]) -> None:
        """Drop the texts of entities that have left `known`, once there are many."""
        if len(self._kept) > len(known) * 1.25 + SPARE:
            for id in self._kept.keys() - known:
                del self._kept[id]
