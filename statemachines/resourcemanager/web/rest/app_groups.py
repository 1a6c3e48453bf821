"""GET /api/v1/waiting and /api/v1/failures: waiting applications by cause, failed ones by reason. Not YARN's."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from statemachines.resourcemanager.reports import ApplicationReport, waiting_apps
from statemachines.resourcemanager.web.rest.rest_endpoints import answer, guarded
from statemachines.resourcemanager.web.visibility import viewer

if TYPE_CHECKING:
    from statemachines.resourcemanager.read.failures import FailedGroup
    from statemachines.resourcemanager.read.wait_groups import WaitGroup
    from statemachines.resourcemanager.web.shared import RMWeb

WAITING: Final = "/api/v1/waiting"
FAILURES: Final = "/api/v1/failures"
LAST: Final = 100
"""Failed applications that are listed one by one."""
_FAILED: Final = frozenset({"FAILED"})


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    async def waiting(request: Request) -> Response:
        return answer(await _waiting(rm, request))

    async def failures(request: Request) -> Response:
        may_view = viewer(rm.clients.acls, await rm.users.reader(request))
        apps, tallies, now_ms = rm.model.apps_in(_FAILED), rm.model.tallies, rm.model.now_ms()
        groups = tallies.failures.groups(may_view, now_ms)
        shown = {
            "as_of_ms": now_ms,
            "failed": tallies.states["FAILED"],
            "hidden": tallies.states["FAILED"] - sum(each.apps for each in groups),
            "groups": [_failures(each) for each in groups],
        }
        return await rm.workers.run(lambda: answer({**shown, "last": _last(apps, may_view)}))

    return [
        Route(WAITING, guarded(rm, waiting), methods=["GET"]),
        Route(FAILURES, guarded(rm, failures), methods=["GET"]),
    ]


async def _waiting(rm: RMWeb, request: Request) -> dict[str, Any]:
    may_view = viewer(rm.clients.acls, await rm.users.reader(request))
    await rm.wait_groups.fresh()
    groups = await rm.wait_groups.groups(may_view)
    waiting = waiting_apps(rm.model.tallies.states)
    return {
        "as_of_ms": rm.model.now_ms(),
        "waiting": waiting,
        "hidden": max(0, waiting - sum(each.apps for each in groups)),
        "groups": [_waits(each) for each in groups],
    }


def _waits(group: WaitGroup) -> dict[str, Any]:
    return {
        "cause": group.cause.name if group.cause is not None else None,
        "sentence": group.sentence,
        "applications": group.apps,
        "since_ms": group.since_ms,
        "queues": dict(group.queues),
    }


def _failures(group: FailedGroup) -> dict[str, Any]:
    return {
        "reason": group.cause.name if group.cause is not None else None,
        "exit_status": group.exit_status,
        "sentence": group.sentence,
        "applications": group.apps,
        "last_ms": group.last_ms,
        "minutes": list(group.minutes),
    }


def _last(apps: Collection[ApplicationReport], may_view: Callable[[ApplicationReport], bool]) -> list[dict[str, Any]]:
    """The last ones that failed, newest first. A worker's thread: there may be thousands."""
    seen = (app for app in apps if may_view(app))
    return [
        {
            "application_id": app.application_id,
            "name": app.name,
            "user": app.user,
            "queue": app.queue,
            "finished_ms": app.finish_ms,
            "reason": app.failure.name if app.failure is not None else None,
            "exit_status": app.exit_status,
            "diagnostics": app.diagnostics,
        }
        for app in heapq.nlargest(LAST, seen, key=lambda app: (app.finish_ms or 0, app.application_id))
    ]
