"""GET /apps, /apps/{app} with its parts, and /appstatistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.records.acls import Caller
from statemachines.resourcemanager.reports import APPLICATION_STATES, ApplicationReport
from statemachines.resourcemanager.web.rest import filters, ids
from statemachines.resourcemanager.web.rest.app_texts import ApplicationTexts, View, timeout_info
from statemachines.resourcemanager.web.rest.lists import list_answer
from statemachines.resourcemanager.web.rest.rest_endpoints import answer, json_answer, listed, route

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

_TIMEOUT_TYPES: Final = ("LIFETIME",)


def routes(rm: RMWeb) -> Sequence[BaseRoute]:
    texts = ApplicationTexts()

    async def apps(request: Request) -> Response:
        wanted = filters.ApplicationFilter.of(request.query_params, rm.clients.acls.path_of)
        texts.forget(rm.model.apps)
        may_view = viewer(rm, await rm.users.reader(request))
        return await list_answer(request, rm, "apps", "app", _found(rm, request, texts, wanted, may_view))

    async def app(request: Request) -> Response:
        caller = await rm.users.reader(request)
        report, view = asked_app(rm, request), _view(rm, request)
        is_whole = viewer(rm, caller)(report)
        attempts = rm.model.attempts.get(report.application_id, ())
        text = texts.text(report, attempts, rm.model.cluster_timestamp, view, is_whole)
        return json_answer(b'{"app":%s}' % text)

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
    """As `asked_app`, for what only those see that may view the application. Raises Refusal: 400, 404, 403."""
    caller = await rm.users.reader(request)
    app = asked_app(rm, request)
    if caller is None or not rm.clients.acls.may_view(app, caller):
        name = "Nobody" if caller is None else f"User {caller.user}"
        raise Refusal(403, f"{name} does not have privilege to see this application {app.application_id}")
    return app


def viewer(rm: RMWeb, caller: Caller | None) -> Callable[[ApplicationReport], bool]:
    """Whether the caller may view an application, which nobody may without a user.

    It is asked once about all applications of one user, queue and list: there may be thousands.
    """
    known: dict[tuple[str, str, str | None], bool] = {}

    def may_view(report: ApplicationReport) -> bool:
        listed = None if report.launch is None else report.launch.acls.get("VIEW_APP")
        key = report.user, report.queue, listed
        may = known.get(key)
        if may is None:
            may = known[key] = caller is not None and rm.clients.acls.may_view(report, caller)
        return may

    return may_view


def _found(
    rm: RMWeb,
    request: Request,
    texts: ApplicationTexts,
    wanted: filters.ApplicationFilter,
    may_view: Callable[[ApplicationReport], bool],
) -> Iterator[bytes | None]:
    """The text of each application that passes, None for others in the wanted states; all of one publication."""
    model, view = rm.model, _view(rm, request)
    attempts, timestamp = model.attempts, model.cluster_timestamp
    left = wanted.limit
    for report in model.apps_in(wanted.states):
        if not wanted.passes(report):
            yield None
            continue
        yield texts.text(report, attempts.get(report.application_id, ()), timestamp, view, may_view(report))
        left -= 1
        if left == 0:
            return


def _view(rm: RMWeb, request: Request) -> View:
    deselected = frozenset(each.lower() for each in filters.listed(request.query_params, "deSelects"))
    address = f"{request.scope['scheme']}://{request.headers.get('host', '')}"
    return View(rm.model.now_ms(), address, deselected)


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
