"""What a query asks for: filters of applications and nodes. Every bad value is a Refusal (400)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from starlette.datastructures import QueryParams

from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.reports import APPLICATION_STATES, ApplicationReport

FINAL_STATUSES: Final = ("UNDEFINED", "SUCCEEDED", "FAILED", "KILLED")
DESELECTABLE: Final = (
    "resourceRequests",
    "timeouts",
    "appNodeLabelExpression",
    "amNodeLabelExpression",
    "resourceInfo",
)
_EVER: Final = (1 << 63) - 1
_WHOLE_NUMBER: Final = re.compile(r"\+?[0-9]{1,19}")


@dataclass(slots=True)
class ApplicationFilter:
    """What an application must be; each None lets all pass. One request's."""

    states: frozenset[str] | None
    final_status: str | None
    user: str | None
    queue: str | None
    name: str | None
    types: frozenset[str] | None
    """In lower case."""
    tags: frozenset[str] | None
    """In lower case; one in common is enough."""
    started_ms: tuple[int, int] | None
    finished_ms: tuple[int, int] | None
    limit: int
    path_of: Callable[[str], str | None]
    """The path of a queue by any of its names."""
    _is_asked_queue: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, query: QueryParams, path_of: Callable[[str], str | None]) -> ApplicationFilter:
        final_status = _text(query, "finalStatus")
        if final_status is not None:
            (final_status,) = _known("finalStatus", [final_status.strip()], FINAL_STATUSES)
        return cls(
            states=names(query, ("states", "state"), APPLICATION_STATES),
            final_status=final_status,
            user=_text(query, "user"),
            queue=_text(query, "queue"),
            name=_text(query, "name"),
            types=_lowered(query, "applicationTypes"),
            tags=_lowered(query, "applicationTags"),
            started_ms=_span(query, "startedTime"),
            finished_ms=_span(query, "finishedTime"),
            limit=_number(query, "limit", _EVER, least=1),
            path_of=path_of,
        )

    @property
    def is_about_times(self) -> bool:
        """Whether it asks for what only those see that may view an application."""
        return self.started_ms is not None or self.finished_ms is not None

    def passes(self, app: ApplicationReport) -> bool:
        started_ms, finished_ms = self.started_ms, self.finished_ms
        return (
            (self.states is None or app.state in self.states)
            and (self.final_status is None or app.final_status == self.final_status)
            and (self.user is None or app.user == self.user)
            and (self.queue is None or self._is_in_queue(app.queue))
            and (self.name is None or app.name == self.name)
            and (self.types is None or app.application_type.strip().lower() in self.types)
            and (self.tags is None or not self.tags.isdisjoint([tag.lower() for tag in app.tags]))
            and (started_ms is None or started_ms[0] <= app.start_ms <= started_ms[1])
            and (finished_ms is None or finished_ms[0] <= (app.finish_ms or 0) <= finished_ms[1])
        )

    def _is_in_queue(self, queue: str) -> bool:
        """A queue may be given by its name or its path."""
        known = self._is_asked_queue.get(queue)
        if known is None:
            assert self.queue is not None
            path = self.path_of(self.queue)
            known = queue == self.queue or (path is not None and path == self.path_of(queue))
            self._is_asked_queue[queue] = known
        return known


def names(query: QueryParams, parameters: Sequence[str], allowed: Collection[str]) -> frozenset[str] | None:
    """Names in upper case, out of lists with commas in any case; None: none is given."""
    given = [name for parameter in parameters for name in listed(query, parameter)]
    return frozenset(_known(parameters[0], given, allowed)) or None


def listed(query: QueryParams, parameter: str) -> list[str]:
    """The items of a list with commas, which may also be given several times."""
    items = (item.strip() for text in query.getlist(parameter) for item in text.split(","))
    return [item for item in items if item]


def deselected(query: QueryParams) -> frozenset[str]:
    """Fields that `deSelects` leaves out, in lower case. Raises Refusal (400)."""
    given, known = listed(query, "deSelects"), {name.lower() for name in DESELECTABLE}
    for name in given:
        if name.lower() not in known:
            raise Refusal(400, f"deSelects: {name!r} is not one of {', '.join(DESELECTABLE)}")
    return frozenset(name.lower() for name in given)


def _known(parameter: str, given: Sequence[str], allowed: Collection[str]) -> list[str]:
    for name in given:
        if name.upper() not in allowed:
            raise Refusal(400, f"{parameter}: {name!r} is not one of {', '.join(allowed)}")
    return [name.upper() for name in given]


def _lowered(query: QueryParams, parameter: str) -> frozenset[str] | None:
    return frozenset(each.lower() for each in listed(query, parameter)) or None


def _text(query: QueryParams, parameter: str) -> str | None:
    """The first value that is not empty."""
    return next((each for each in query.getlist(parameter) if each), None)


def _span(query: QueryParams, parameter: str) -> tuple[int, int] | None:
    """Unix ms from `...Begin` to `...End`, both included; None: neither is given."""
    begin, end = f"{parameter}Begin", f"{parameter}End"
    if _text(query, begin) is None and _text(query, end) is None:
        return None
    begin_ms, end_ms = _number(query, begin, 0), _number(query, end, _EVER)
    if begin_ms > end_ms:
        raise Refusal(400, f"{end} is {end_ms}, which is before {begin}, {begin_ms}")
    return begin_ms, end_ms


def _number(query: QueryParams, parameter: str, default: int, least: int = 0) -> int:
    text = _text(query, parameter)
    if text is None:
        return default
    plain = text.strip()
    found = int(plain) if _WHOLE_NUMBER.fullmatch(plain) else -1
    if not least <= found <= _EVER:
        raise Refusal(400, f"{parameter}={text!r}: expected a whole number, {least} or greater")
    return found
