"""What all endpoints that change something share: who asks, the body, and the application that is meant.

The loop's thread. Nothing here waits for a handler thread but with a deadline.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dispatcher.util.terminal import one_line
from dispatcher.web import endpoints
from dispatcher.web.plain_answers import SOON, Refusal
from dispatcher.web.security import describe_write
from statemachines.resourcemanager.records.acls import Caller
from statemachines.resourcemanager.web.rest.apps import app_of
from statemachines.resourcemanager.web.rest.ids import application_id
from statemachines.resourcemanager.web.rest.rest_endpoints import BASE, check_accept, explained, remote_exception
from statemachines.resourcemanager.web.rest.writing.bodies import Fields, object_of
from statemachines.resourcemanager.web.shared import RMWeb, WriteDeadline

if TYPE_CHECKING:
    from statemachines.resourcemanager.reports import ApplicationReport

Change: TypeAlias = Callable[[Request, Caller, WriteDeadline], Awaitable[Response]]


def changing(rm: RMWeb, path: str, methods: list[str], operation: str, function: Change) -> Route:
    """The route of an endpoint that changes something: `function` gets the request, its user and its deadline.

    `operation`: as YARN's audit log names it. `path`: below BASE.
    """

    async def change(request: Request) -> Response:
        describe_write(request.scope, operation=operation, target=_target(request))
        check_accept(request)
        deadline = WriteDeadline(rm)
        caller = await rm.users.writer(request)
        if not rm.model.is_active():
            raise Refusal(503, "the resource manager is not active: it starts, or stops", SOON)
        return await function(request, caller, deadline)

    return Route(BASE + path, endpoints.guarded(change, remote_exception, explained), methods=methods)


def _target(request: Request) -> str:
    """The entity that the path names, or the path."""
    return next(iter(request.path_params.values()), request.url.path)


async def fields_of(request: Request) -> Fields:
    """The object in the request's body. Raises Refusal: 400; 415 for a compressed body."""
    encoding = request.headers.get("content-encoding", "")
    if encoding.strip().lower() not in ("", "identity"):
        raise Refusal(415, f"Content-Encoding: {one_line(encoding, 100)}: send the body uncompressed")
    return object_of(await request.body())


async def known_app(rm: RMWeb, request: Request, deadline: WriteDeadline) -> ApplicationReport:
    """The application that the path names, as of the last publication.

    Raises:
        Refusal: 400: that is no id; 404: there is no such application; 503: whether there is one cannot be found out.
    """
    app_id = application_id(request.path_params["app"])
    if app_id not in rm.model.apps:  # another way to submit may have brought it a moment ago
        try:
            await rm.model.published(deadline.left_s())
        except TimeoutError:
            busy = f"{app_id} is not known yet, and the resource manager is busy with something else; ask again"
            raise Refusal(503, busy, SOON) from None
    return app_of(rm, app_id)


def address_of(request: Request, path: str) -> str:
    """The address of a path below BASE, for the header Location.

    The path is to be made of ids as ours are spelt: what the client has sent may not fit into a header.
    """
    return str(request.url.replace(path=BASE + path, query="", fragment=""))
