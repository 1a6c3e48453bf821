"""What all endpoints that change something share: who asks, and the deadline.

The loop's thread. Nothing here waits for a handler thread but with a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dispatcher.util.terminal import one_line
from dispatcher.web.security import describe_write
from dispatcher.web.waiting import within
from statemachines.resourcemanager.records.acls import Caller
from statemachines.resourcemanager.web.rest.errors import SOON, rest_error
from statemachines.resourcemanager.web.rest.ids import application_id
from statemachines.resourcemanager.web.rest.reading import check_accept
from statemachines.resourcemanager.web.rest.rest_answers import BASE, RestError
from statemachines.resourcemanager.web.rest.writing.bodies import Fields, object_of

if TYPE_CHECKING:
    from statemachines.resourcemanager.reports import ApplicationReport
    from statemachines.resourcemanager.web.shared import RMWeb

T = TypeVar("T")
Change = Callable[[Request, Caller, "Deadline"], Awaitable[Response]]

_OF_THE_HOST: Final = 0.9
"""How much of the host's own deadline for an answer a change may take: the host's error does not tell what to do."""


class Deadline:
    """When the answer to one request is due."""

    def __init__(self, rm: RMWeb) -> None:
        config = rm.config
        self.seconds = min(config.write_timeout_s, _OF_THE_HOST * config.request_deadline_s)
        self._model = rm.model
        self._at_s = asyncio.get_running_loop().time() + self.seconds

    def left_s(self) -> float:
        return max(0.0, self._at_s - asyncio.get_running_loop().time())

    async def result(self, future: Future[T], advice: str) -> T:
        """What the handler thread makes of a call, as long as there is time.

        Raises:
            RestError: 503: there is no answer in time; `advice` says what to do.
        """
        try:
            return await within(future, self.left_s())
        except TimeoutError:
            late = f"the resource manager has not done this within {self.seconds:g} s; {advice}"
            raise RestError(503, late, SOON) from None

    async def published(self, most_s: float | None = None) -> None:
        """Wait until the model has all that was done before, so that the client's next request sees it.

        What was done stays done, so an answer must not fail for this: it returns when the time is over, too.
        """
        left_s = self.left_s() if most_s is None else min(most_s, self.left_s())
        with suppress(TimeoutError):
            await self._model.published(left_s)


def changing(rm: RMWeb, path: str, methods: list[str], operation: str, function: Change) -> Route:
    """The route of an endpoint that changes something: `function` gets the request, its user and its deadline.

    `operation`: as YARN's audit log names it. `path`: below BASE.
    """

    async def change(request: Request) -> Response:
        describe_write(request.scope, operation=operation, target=_target(request))
        try:
            check_accept(request)
            deadline = Deadline(rm)
            caller = await rm.users.writer(request)
            if not rm.model.is_active():
                raise RestError(503, "the resource manager is not active: it starts, or stops", SOON)
            return await function(request, caller, deadline)
        except Exception as error:
            found = rest_error(request, error)
            describe_write(request.scope, reason=found.message)
            return found.response()

    return Route(BASE + path, change, methods=methods)


def _target(request: Request) -> str:
    """The entity that the path names, or the path."""
    return next(iter(request.path_params.values()), request.url.path)


async def fields_of(request: Request) -> Fields:
    """The object in the request's body. Raises RestError: 400; 415 for a compressed body."""
    encoding = request.headers.get("content-encoding", "")
    if encoding.strip().lower() not in ("", "identity"):
        raise RestError(415, f"Content-Encoding: {one_line(encoding, 100)}: send the body uncompressed")
    return object_of(await request.body())


async def known_app(rm: RMWeb, request: Request, deadline: Deadline) -> ApplicationReport:
    """The application that the path names, as of the last publication.

    Raises:
        RestError: 400: that is no id; 404: there is no such application; 503: whether there is one cannot be found out.
    """
    app_id = application_id(request.path_params["app"])
    if app_id not in rm.model.apps:  # another way to submit may have brought it a moment ago
        try:
            await rm.model.published(deadline.left_s())
        except TimeoutError:
            busy = f"{app_id} is not known yet, and the resource manager is busy with something else; ask again"
            raise RestError(503, busy, SOON) from None
    return app_of(rm, app_id)


def app_of(rm: RMWeb, app_id: str) -> ApplicationReport:
    app = rm.model.apps.get(app_id)
    if app is None:
        raise RestError(404, f"app with id: {app_id} not found")
    return app


def address_of(request: Request, path: str) -> str:
    """The address of a path below BASE, for the header Location.

    The path is to be made of ids as ours are spelt: what the client has sent may not fit into a header.
    """
    return str(request.url.replace(path=BASE + path, query="", fragment=""))
