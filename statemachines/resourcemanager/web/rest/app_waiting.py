"""GET /api/v1/apps/{app}/waiting: why an application waits, in sentences. Not YARN's, but ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.reports import WaitingAsk, WaitingReport, WaitReason
from statemachines.resourcemanager.web.rest.apps import viewable_app
from statemachines.resourcemanager.web.rest.rest_endpoints import answer, guarded

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

PATH: Final = "/api/v1/apps/{app}/waiting"


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    async def waiting(request: Request) -> Response:
        return answer(await _waiting(rm, request))

    return [Route(PATH, guarded(rm, waiting), methods=["GET"])]


async def _waiting(rm: RMWeb, request: Request) -> dict[str, Any]:
    app_id = (await viewable_app(rm, request)).application_id
    report = (await rm.waits.reports([app_id])).get(app_id)
    if report is None:
        raise Refusal(404, f"app with id: {app_id} not found")
    return waiting_info(report)


def waiting_info(report: WaitingReport) -> dict[str, Any]:
    """Times in Unix ms, memory in MB. `sentence` null: it waits for nothing."""
    return {
        "application_id": report.application_id,
        "as_of_ms": report.as_of_ms,
        "sentence": report.sentence,
        "reason": None if report.reason is None else _reason(report.reason),
        "asks": [_ask(each) for each in report.asks],
    }


def _ask(ask: WaitingAsk) -> dict[str, Any]:
    size = ask.resource
    resource = {"memory_mb": size.memory_mb, "vcores": size.vcores_milli / 1000, **dict(size.others)}
    if size.gpus:
        resource["gpus"] = size.gpu_milli_total / 1000
    return {
        "resource": resource,
        "count": ask.count,
        "priority": ask.priority,
        "partition": ask.partition,
        "hosts": list(ask.hosts),
        "since_ms": ask.since_ms,
        "sentence": ask.sentence,
        "reason": _reason(ask.reason),
    }


def _reason(reason: WaitReason) -> dict[str, Any]:
    """The cause, and the names and numbers of its sentence that there are."""
    values = {key: value for key, value in reason._asdict().items() if key not in ("cause", "sentence")}
    return {"cause": reason.cause.name, **{key: value for key, value in values.items() if value not in (None, "")}}
