"""GET /apps, /apps/{app} with its parts, and /appstatistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.read.fields import APPLICATION_FIELDS, Around
from statemachines.resourcemanager.reports import APPLICATION_STATES, ApplicationReport
from statemachines.resourcemanager.web.rest import filters, ids
from statemachines.resourcemanager.web.rest.lists import list_answer
from statemachines.resourcemanager.web.rest.rest_endpoints import answer, json_answer, listed, route
from statemachines.resourcemanager.web.rest.texts import Texts, timeout_info
from statemachines.resourcemanager.web.visibility import may_view, viewer

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

_TIMEOUT_TYPES: Final = ("LIFETIME",)


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    texts = Texts(APPLICATION_FIELDS)

    async def apps(request: Request) -> Response:
        wanted = filters.ApplicationFilter.of(request.query_params, rm.clients.acls.path_of)
        texts.forget(rm.model.apps)
        may = viewer(rm.clients.acls, await rm.users.reader(request))
        return await list_answer(request, rm, "apps", "app", _found(rm, request, texts, wanted, may))

    async def app(request: Request) -> Response:
        caller = await rm.users.reader(request)
        report, deselected = asked_app(rm, request), filters.deselected(request.query_params)
        is_whole = may_view(rm.clients.acls, report, caller)
        around = _around(rm, request)
        around.attempts = rm.model.attempts.get(report.application_id, ())
        write = texts.writer(around.cluster_timestamp, is_whole, deselected)
        return json_answer(b'{"app":%s}' % write(report.application_id, report, around))

    async def state(request: Request) -> Response:
        return answer({"state": asked_app(rm, request).state})

    async def queue(request: Request) -> Response:
        return answer({"queue": asked_app(rm, request).queue})

    async def priority(request: Request) -> Response:
        return answer({"priority": asked_app(rm, request).priority})

    async def timeouts(request: Request) -> Response:
        return answer({"timeouts": {"timeout": [timeout_info(asked_app(rm, request).deadline_ms, rm.model.now_ms())]}})

    async def timeout(request: Request) -> Response:
        report, kind = asked_app(rm, request), request.path_params["type"]
        if kind.strip().upper() not in _TIMEOUT_TYPES:
            raise Refusal(400, f"{kind!r} is not a type of timeout; expected one of {', '.join(_TIMEOUT_TYPES)}")
        return answer({"timeout": timeout_info(report.deadline_ms, rm.model.now_ms())})

    async def statistics(request: Request) -> Response:
        return answer({"appStatInfo": listed(rm, "statItem", _statistics(rm, request))})

    return [
        route(rm, "/apps", apps),
        route(rm, "/apps/{app}", app),
        route(rm, "/apps/{app}/state", state),
        route(rm, "/apps/{app}/queue", queue),
        route(rm, "/apps/{app}/priority", priority),
        route(rm, "/apps/{app}/timeouts", timeouts),
        route(rm, "/apps/{app}/timeouts/{type}", timeout),
        route(rm, "/appstatistics", statistics),
    ]


def asked_app(rm: RMWeb, request: Request) -> ApplicationReport:
    """The application that the path names. Raises Refusal: 400, 404."""
    return app_of(rm, ids.application_id(request.path_params["app"]))


def app_of(rm: RMWeb, id: str) -> ApplicationReport:
    """Raises Refusal (404)."""
    app = rm.model.apps.get(id)
    if app is None:
        raise Refusal(404, f"app with id: {id} not found")
    return app


async def viewable_app(rm: RMWeb, request: Request) -> ApplicationReport:
    """The application that the path names, if the caller may view it. Raises Refusal: 400, 404, 403."""
    caller = await rm.users.reader(request)
    app = asked_app(rm, request)
    if not may_view(rm.clients.acls, app, caller):
        name = "Nobody" if caller is None else f"User {caller.user}"
        raise Refusal(403, f"{name} does not have privilege to see this application {app.application_id}")
    return app


def _found(
    rm: RMWeb,
    request: Request,
    texts: Texts[ApplicationReport],
    wanted: filters.ApplicationFilter,
    may: Callable[[ApplicationReport], bool],
) -> Iterator[bytes | None]:
    """The text of each application that passes, None for others in the wanted states; all of one publication."""
    around, deselected = _around(rm, request), filters.deselected(request.query_params)
    whole, public = (texts.writer(around.cluster_timestamp, is_whole, deselected) for is_whole in (True, False))
    attempts, left = rm.model.attempts, wanted.limit
    for report in rm.model.apps_in(wanted.states):
        if not wanted.passes(report) or (wanted.is_about_times and not may(report)):
            yield None
            continue
        id = report.application_id
        around.attempts = attempts.get(id, ())
        yield (whole if may(report) else public)(id, report, around)
        left -= 1
        if left == 0:
            return


def _around(rm: RMWeb, request: Request) -> Around:
    """What the fields of all applications need besides their reports and attempts; of one publication."""
    address = f"{request.scope['scheme']}://{request.headers.get('host', '')}"
    return Around(rm.model.now_ms(), (), rm.model.cluster_timestamp, address)


def _statistics(rm: RMWeb, request: Request) -> list[dict[str, str | int]]:
    """The number of applications by state, of one type or of all."""
    states = filters.names(request.query_params, ("states",), APPLICATION_STATES) or APPLICATION_STATES
    types = sorted({each.lower() for each in filters.listed(request.query_params, "applicationTypes")})
    if len(types) > 1:
        raise Refusal(400, f"# of applicationTypes = {len(types)}: at most one is possible here")
    apps = rm.model.apps.values()
    counts = Counter(
        report.state for report in apps if not types or report.application_type.strip().lower() == types[0]
    )
    kind = types[0] if types else "*"
    return [{"state": state, "type": kind, "count": counts[state]} for state in APPLICATION_STATES if state in states]
