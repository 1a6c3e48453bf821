"""GET /apps/{app}/appattempts, and the containers of an attempt. Only those may ask that may view the application."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from dispatcher.web.plain_answers import Refusal, utf8
from statemachines.resourcemanager.read.fields import (
    ATTEMPT_FIELDS,
    CONTAINER_FIELDS,
    LISTED_ATTEMPT_FIELDS,
    NOWHERE,
    Around,
)
from statemachines.resourcemanager.reports import ApplicationAttemptReport, ApplicationReport, ContainerReport
from statemachines.resourcemanager.web.rest import ids
from statemachines.resourcemanager.web.rest.apps import viewable_app
from statemachines.resourcemanager.web.rest.lists import list_answer
from statemachines.resourcemanager.web.rest.rest_endpoints import json_answer, route
from statemachines.resourcemanager.web.rest.texts import object_writer

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb


_LISTED: Final = object_writer(LISTED_ATTEMPT_FIELDS)
_ALONE: Final = object_writer(ATTEMPT_FIELDS)
_CONTAINER: Final = object_writer(CONTAINER_FIELDS)


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    async def attempts(request: Request) -> Response:
        app, found = await _asked_attempts(rm, request)
        texts = (utf8(_LISTED(each, Around(user=app.user, number=number))) for number, each in enumerate(found, 1))
        return await list_answer(request, rm, "appAttempts", "appAttempt", texts)

    async def attempt(request: Request) -> Response:
        _, found = await _asked_attempt(rm, request)
        return json_answer(b'{"appAttempt":%s}' % utf8(_ALONE(found, NOWHERE)))

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
        (text,) = _texts(rm, app, [report])
        return json_answer(b'{"container":%s}' % text)

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


def _texts(rm: RMWeb, app: ApplicationReport, reports: Iterable[ContainerReport]) -> Iterator[bytes]:
    """Live containers."""
    nodes, around = rm.model.nodes, Around(rm.model.now_ms(), user=app.user)
    for report in reports:
        node = nodes.get(report.node)
        around.address = node.http_address if node is not None else ""
        yield utf8(_CONTAINER(report, around))
