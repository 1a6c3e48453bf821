"""What the endpoints of every door share: JSON, errors, compression. Needs the extra `web`.

A door shows its errors in a form of its own (a line of JSON, Hadoop's, a page), which is a `ShowRefusal`.
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import wraps
from typing import Any, Final, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match, Route

from dispatcher.errors import DispatcherError
from dispatcher.util.foreign import describe, tell
from dispatcher.util.http_heads import takes_gzip
from dispatcher.util.terminal import one_line
from dispatcher.web.plain_answers import Refusal, error_line, to_json
from dispatcher.web.security import describe_write

log: logging.Logger = logging.getLogger(__name__)

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
ShowRefusal: TypeAlias = Callable[[Request, Refusal], Awaitable[Response]]
"""Makes the answer that tells a client of an error."""

JSON: Final = "application/json"
ZIP_LEVEL: Final = 1
"""Of gzip: JSON of many equal keys shrinks to a tenth of its size at any level."""
_LEAST_ZIPPED_BYTES: Final = 1024
"""A shorter answer fits into one packet anyhow."""


# -- JSON --------------------------------------------------------------------------------------------------------------


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return json_answer(to_json(content), status, headers)


def json_answer(
    body: bytes, status: int = 200, headers: Mapping[str, str] | None = None, content_type: str = JSON
) -> Response:
    """An answer whose body is JSON already. No browser stores it, or takes it for something else."""
    all_headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(body, status, all_headers, content_type)


# -- errors ------------------------------------------------------------------------------------------------------------


async def error_answer(request: Request, refusal: Refusal) -> Response:
    """The error as one line of JSON."""
    return json_answer(error_line(refusal.reason), refusal.status, refusal.headers)


def explained(request: Request, error: Exception) -> Refusal:
    """The answer to a client for an error. A fault of ours is logged."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, DispatcherError):
        return Refusal(503, str(error))
    tell(log, logging.ERROR, "%s %s failed", request.method, one_line(request.url.path), error=error)
    return Refusal(500, f"{describe(error)}; the log has its traceback")


def guarded(
    function: Endpoint,
    show: ShowRefusal = error_answer,
    explain: Callable[[Request, Exception], Refusal] = explained,
) -> Endpoint:
    """The endpoint, with an answer for whatever it raises. The audit line of a write gets the reason."""

    @wraps(function)
    async def endpoint(request: Request) -> Response:
        try:
            return await function(request)
        except Exception as error:
            refusal = explain(request, error)
            describe_write(request.scope, reason=refusal.reason)
            return await show(request, refusal)

    return endpoint


def router_error(show: ShowRefusal = error_answer) -> Callable[[Request, Exception], Awaitable[Response]]:
    """For an app's `exception_handlers`: no such path (404), or not with this method (405)."""

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path, status, headers = one_line(request.scope["path"], 200), error.status_code, error.headers or {}
        # The router names the methods of one route, and a path may have several. An app that is mounted at the root
        # says of another method that there is no such path.
        allowed = {*filter(None, headers.get("Allow", "").split(", ")), *_methods(request)}
        if status == 405 or (status == 404 and allowed and request.method not in allowed):
            methods = ", ".join(sorted(allowed))
            reason = f"{path}: {request.method} is not possible here, but {methods}"
            return await show(request, Refusal(405, reason, {"Allow": methods}))
        reason = f"{path}: no such path" if status == 404 else error.detail
        return await show(request, Refusal(status, reason, headers))

    return http_error


def _methods(request: Request) -> Iterator[str]:
    """Of the app's own routes to the request's path."""
    for route in request.app.router.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            yield from route.methods or ()


# -- compression -------------------------------------------------------------------------------------------------------


def wants_gzip(request: Request) -> bool:
    """Whether the client takes an answer that is compressed."""
    return takes_gzip(request.headers.getlist("accept-encoding"))


def zipped(request: Request, response: Response, level: int = ZIP_LEVEL) -> Response:
    """The response, with gzip where that pays and the client takes it. A stream sees to it itself."""
    if isinstance(response, StreamingResponse) or len(response.body) < _LEAST_ZIPPED_BYTES:
        return response
    response.headers.add_vary_header("Accept-Encoding")  # plain answers too: a cache must not send them to all
    if not wants_gzip(request):
        return response
    response.body = gzip.compress(response.body, level)
    response.headers["content-length"] = str(len(response.body))
    response.headers["content-encoding"] = "gzip"
    return response
