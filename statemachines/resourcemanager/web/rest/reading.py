"""Endpoints that read: what is checked before them, and what is done with their answers.

The loop's thread.
"""

from __future__ import annotations

import gzip
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dispatcher.util.http_heads import takes
from statemachines.resourcemanager.web.rest.errors import SOON, rest_error
from statemachines.resourcemanager.web.rest.rest_answers import BASE, RestError
from statemachines.resourcemanager.web.shared import RMWeb, wants_gzip

Endpoint = Callable[[Request], Awaitable[Response]]

ZIP_LEVEL: Final = 1
"""Of gzip: JSON of many equal keys shrinks to a tenth of its size at any level."""
_LEAST_ZIPPED: Final = 1024
"""Bytes: a shorter answer fits into one packet anyhow."""


def route(
    rm: RMWeb, path: str, function: Endpoint, methods: Iterable[str] = ("GET",), *, always: bool = False
) -> Route:
    """A path below BASE. HEAD is answered as GET; `always`: also while the resource manager is not started."""
    return Route(BASE + path, guarded(rm, function, always=always), methods=list(methods))


def guarded(rm: RMWeb, function: Endpoint, *, always: bool = False) -> Endpoint:
    """The endpoint behind the checks that all have in common; whatever it raises becomes an error in Hadoop's form."""

    async def endpoint(request: Request) -> Response:
        try:
            check_accept(request)
            if not always and not rm.model.is_readable():
                raise RestError(503, "the resource manager is not started", SOON)
            return _zipped(request, await function(request))
        except Exception as error:
            return rest_error(request, error).response()

    return endpoint


def check_accept(request: Request) -> None:
    """Raises RestError (406) for a client that does not take JSON."""
    if not accepts_json(request.headers.get("accept", "")):
        raise RestError(406, "only application/json is served here; change the header Accept")


def accepts_json(accept: str) -> bool:
    """Whether a client with this header takes JSON. One that names no type takes any.

    >>> [accepts_json(each) for each in ("*/*", "application/xml", "application/xml, application/json;q=0.5")]
    [True, False, True]
    """
    if accept in ("*/*", "", "application/json"):
        return True
    return not accept.strip(", ") or takes([accept], "application/json", "application/*", "*/*")


def _zipped(request: Request, response: Response) -> Response:
    """A stream sees to it itself."""
    if isinstance(response, StreamingResponse) or len(response.body) < _LEAST_ZIPPED or not wants_gzip(request):
        return response
    response.body = gzip.compress(response.body, ZIP_LEVEL)
    response.headers["content-length"] = str(len(response.body))
    response.headers["content-encoding"] = "gzip"
    response.headers["vary"] = "Accept-Encoding"
    return response
