"""The panels above the list of applications: waiting ones by cause, and failed ones by reason.

Also the kinds of the list, which differ in their columns: an application that has ended uses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from dispatcher.pages import page_texts
from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.read.failures import FailedGroup
from statemachines.resourcemanager.read.fields import ENDED, WAITING, Lists
from statemachines.resourcemanager.read.wait_groups import WaitGroup
from statemachines.resourcemanager.reports import ApplicationReport, FailureCause, WaitCause, waiting_apps
from statemachines.resourcemanager.web.pages.listing import Query
from statemachines.resourcemanager.web.pages.site import ClusterSite

E = TypeVar("E", bound=Enum)

WAITING_PATH: Final = "/cluster/apps/ACCEPTED,SUBMITTED,NEW_SAVING,NEW"
FAILED_PATH: Final = "/cluster/apps/FAILED"
GROUP_FILTERS: Final = ("cause", "reason", "exit")
_QUEUES_SHOWN: Final = 3


class ListKind(NamedTuple):
    """What a list is about."""

    lists: Lists
    why: str
    """The title of the column that says why."""
    sort: str


_OF_ANY: Final = ListKind(Lists.ANY, "Why it waits or failed", "id")
OF_WAITING: Final = ListKind(Lists.WAITING, "Why it waits", "id")
_OF_ENDED: Final = ListKind(Lists.ENDED, "Reason", "finished")


def kind_of(states: Collection[str]) -> ListKind:
    """Of the list of the applications in these states; none: in any."""
    if states and WAITING.issuperset(states):
        return OF_WAITING
    return _OF_ENDED if states and ENDED.issuperset(states) else _OF_ANY


async def panels(
    site: ClusterSite, query: Query, states: Collection[str], may_view: Callable[[ApplicationReport], bool]
) -> Mapping[str, Any]:
    """What the template shows above the list of applications in these states."""
    if kind_of(states) is OF_WAITING:
        groups = await site.rm.wait_groups.groups(may_view)
        shown = sum(each.apps for each in groups)
        return {
            "waiting": [_waiting_row(query, each) for each in groups],
            "hidden": max(0, waiting_apps(site.model.tallies.states) - shown),
        }
    if set(states) == {"FAILED"}:
        tallies = site.model.tallies
        failures = tallies.failures.groups(may_view, site.model.now_ms())
        shown = sum(each.apps for each in failures)
        return {
            "failed": [_failed_row(query, each) for each in failures],
            "hidden": max(0, tallies.states["FAILED"] - shown),
            "forgotten": max(0, site.model.metrics.apps_failed - tallies.states["FAILED"]),
        }
    return {}


def _waiting_row(query: Query, group: WaitGroup) -> Mapping[str, Any]:
    cause = group.cause.name if group.cause is not None else None
    queues = [
        (queue, count, _link(WAITING_PATH, cause=cause, queue=queue)) for queue, count in group.queues[:_QUEUES_SHOWN]
    ]
    return {
        "group": group,
        "link": _link(WAITING_PATH, cause=cause) if cause is not None else None,
        "is_current": cause is not None and cause == query.filters.get("cause"),
        "queues": queues,
        "further": len(group.queues) - _QUEUES_SHOWN,
    }


def _failed_row(query: Query, group: FailedGroup) -> Mapping[str, Any]:
    filters, link, is_current = query.filters, None, False
    if group.cause is not None:
        status = None if group.exit_status is None else str(group.exit_status)
        link = _link(FAILED_PATH, reason=group.cause.name, exit=status)
        is_current = filters.get("reason") == group.cause.name and filters.get("exit") == status
    curve = page_texts.sparkline(group.minutes)
    return {"group": group, "link": link, "is_current": is_current, "curve": curve}


def group_filter(
    site: ClusterSite, filters: Mapping[str, str], may_view: Callable[[ApplicationReport], bool]
) -> Callable[[ApplicationReport], bool] | None:
    """Which applications are in the group that the address names; None: it names none. Raises Refusal (400).

    An application that the user may not view is in none: that would reveal its cause or reason.
    """
    cause, reason, exit_status = _named(filters)
    if cause is None and reason is None and exit_status is None:
        return None
    causes = site.rm.wait_groups.causes

    def matches(app: ApplicationReport) -> bool:
        if cause is not None:
            wait = causes.get(app.application_id)
            if app.state not in WAITING or wait is None or wait.cause is not cause:
                return False
        if reason is not None and app.failure is not reason:
            return False
        return (exit_status is None or app.exit_status == exit_status) and may_view(app)

    return matches


def chosen(filters: Mapping[str, str]) -> str:
    """The group that the address names, in words; empty: it names none. The filters are valid."""
    cause, reason, exit_status = _named(filters)
    if cause is not None:
        return cause.value
    if reason is None:
        return f"exit status {exit_status}" if exit_status is not None else ""
    return reason.sentence(exit_status) if exit_status is not None else reason.value


def _named(filters: Mapping[str, str]) -> tuple[WaitCause | None, FailureCause | None, int | None]:
    """The cause, the reason and the exit status that the address names. Raises Refusal (400)."""
    status = filters.get("exit")
    return (
        _member(WaitCause, filters, "cause"),
        _member(FailureCause, filters, "reason"),
        _whole("exit", status) if status is not None else None,
    )


def _member(kind: type[E], filters: Mapping[str, str], name: str) -> E | None:
    given = filters.get(name)
    if given is None:
        return None
    found = kind.__members__.get(given.upper())
    if found is None:
        raise Refusal(400, f"{name}={given}: not one of {', '.join(kind.__members__)}")
    return found


def _whole(name: str, given: str) -> int:
    digits = given.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        raise Refusal(400, f"{name}={given}: expected a whole number")
    return int(given)


def _link(path: str, **filters: str | None) -> str:
    return Query(path, {name: value for name, value in filters.items() if value is not None}, "", True).address(
        order=None
    )
