"""GET /apps/{app}/appattempts, and the containers of an attempt. Only those may ask that may view the application."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from dispatcher.web.plain_answers import Refusal, to_json
from statemachines.resourcemanager.reports import ApplicationAttemptReport, ApplicationReport, ContainerReport
from statemachines.resourcemanager.web.rest import ids
from statemachines.resourcemanager.web.rest.app_texts import logs_url
from statemachines.resourcemanager.web.rest.apps import viewable_app
from statemachines.resourcemanager.web.rest.lists import list_answer
from statemachines.resourcemanager.web.rest.resources import cores
from statemachines.resourcemanager.web.rest.rest_endpoints import answer, listed, route

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

STILL_RUNNING: Final = -1000
"""The exit status of a container that has none yet (YARN's ContainerExitStatus.INVALID)."""


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    async def attempts(request: Request) -> Response:
        app, found = await _asked_attempts(rm, request)
        items = [_in_list(app, each, number) for number, each in enumerate(found, 1)]
        return answer({"appAttempts": listed(rm, "appAttempt", items)})

    async def attempt(request: Request) -> Response:
        _, found = await _asked_attempt(rm, request)
        return answer({"appAttempt": _alone(found)})

    async def containers(request: Request) -> Response:
        app, found = await _asked_attempt(rm, request)
        live = rm.model.containers.get(found.attempt_id, {})
        return await list_answer(request, rm, "containers", "container", _texts(rm, app, live.values()))

    async def container(request: Request) -> Response:
        app, found = await _asked_attempt(rm, request)
        id = ids.container_id(request.path_params["container"])
        report = rm.model.containers.get(found.attempt_id, {}).get(id)
        if report is None:
            raise Refusal(404, f"container with id: {id} is no live container of {found.attempt_id}")
        return answer({"container": _container(rm, app, report, rm.model.now_ms())})

    path = "/apps/{app}/appattempts"
    return [
        route(rm, path, attempts),
        route(rm, path + "/{attempt}", attempt),
        route(rm, path + "/{attempt}/containers", containers),
        route(rm, path + "/{attempt}/containers/{container}", container),
    ]


async def _asked_attempts(
    rm: RMWeb, request: Request
) -> tuple[ApplicationReport, tuple[ApplicationAttemptReport, ...]]:
    """Raises Refusal: 400, 404, 403."""
    app = await viewable_app(rm, request)
    return app, rm.model.attempts.get(app.application_id, ())


async def _asked_attempt(rm: RMWeb, request: Request) -> tuple[ApplicationReport, ApplicationAttemptReport]:
    id = ids.attempt_id(request.path_params["attempt"])
    app, attempts = await _asked_attempts(rm, request)
    for each in attempts:
        if each.attempt_id == id:
            return app, each
    raise Refusal(404, f"{app.application_id} has no attempt {id}")


def _in_list(app: ApplicationReport, attempt: ApplicationAttemptReport, number: int) -> dict[str, Any]:
    address, container = attempt.node_http_address, attempt.master_container
    return {
        "id": number,
        "appAttemptId": attempt.attempt_id,
        "startTime": attempt.start_ms,
        "finishedTime": attempt.finish_ms or 0,
        "containerId": container or "",
        "nodeHttpAddress": address,
        "nodeId": attempt.master_node or "",
        "logsLink": logs_url(address, container, app.user) if address and container is not None else "",
        "blacklistedNodes": ",".join(attempt.blacklist),
        "nodesBlacklistedBySystem": ",".join(attempt.system_blacklist),
        "exportPorts": "",
        "appAttemptState": _state(attempt),
    }


def _alone(attempt: ApplicationAttemptReport) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "appAttemptId": attempt.attempt_id,
        "host": attempt.host or "N/A",
        "rpcPort": attempt.rpc_port,
        "trackingUrl": attempt.tracking_url,
        "originalTrackingUrl": attempt.tracking_url,
        "diagnosticsInfo": attempt.diagnostics,
        "appAttemptState": _state(attempt),
        "startedTime": attempt.start_ms,
        "finishedTime": attempt.finish_ms or 0,
    }
    if attempt.master_container is not None:
        shown["amContainerId"] = attempt.master_container
    return shown


def _state(attempt: ApplicationAttemptReport) -> str:
    """The state by YARN's names for clients, who do not see that something is being stored."""
    if attempt.state == "LAUNCHED_UNMANAGED_SAVING":
        return "ALLOCATED_SAVING"
    if attempt.state != "FINAL_SAVING":
        return attempt.state
    if attempt.host:  # its master has registered
        return "RUNNING"
    return "LAUNCHED" if attempt.master_container is not None else "SCHEDULED"


def _texts(rm: RMWeb, app: ApplicationReport, reports: Iterable[ContainerReport]) -> Iterator[bytes]:
    now_ms = rm.model.now_ms()
    for report in reports:
        yield to_json(_container(rm, app, report, now_ms))


def _container(rm: RMWeb, app: ApplicationReport, report: ContainerReport, now_ms: int) -> dict[str, Any]:
    """A live container."""
    node = rm.model.nodes.get(report.node)
    address = node.http_address if node is not None else ""
    return {
        "containerId": report.container_id,
        "allocatedMB": report.resource.memory_mb,
        "allocatedVCores": cores(report.resource.vcores_milli),
        "assignedNodeId": report.node,
        "priority": report.priority,
        "startedTime": report.created_ms,
        "finishedTime": 0,
        "elapsedTime": max(0, now_ms - report.created_ms),
        "diagnosticsInfo": "",
        "logUrl": logs_url(address, report.container_id, app.user) if address else "",
        "containerExitStatus": STILL_RUNNING,
        "containerState": report.state,
        "nodeHttpAddress": f"http://{address}" if address else "",
        "nodeId": report.node,
    }
