"""What all answers of the REST API have in common: JSON, errors in Hadoop's form, and what is checked first.

The loop's thread.
"""

from __future__ import annotations

import gzip
import json
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match, Route

from dispatcher.util.foreign import tell
from dispatcher.util.terminal import one_line
from statemachines.resourcemanager.resource import Resource

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]

BASE: Final = "/ws/v1/cluster"
JSON: Final = "application/json; charset=utf-8"
ZIP_LEVEL: Final = 1
"""Of gzip: JSON of many equal keys shrinks to a tenth of its size at any level."""
_LEAST_ZIPPED: Final = 1024
"""Bytes: a shorter answer fits into one packet anyhow."""
_CLASSES: Final = {
    "BadRequestException": "org.apache.hadoop.yarn.webapp.BadRequestException",
    "ForbiddenException": "org.apache.hadoop.yarn.webapp.ForbiddenException",
    "NotFoundException": "org.apache.hadoop.yarn.webapp.NotFoundException",
}
_OF_STATUS: Final = {400: "BadRequestException", 403: "ForbiddenException", 404: "NotFoundException"}
_RETRY: Final = {"Retry-After": "1"}
_ACCEPTED: Final = frozenset({"*/*", "application/*", "application/json"})


class RestError(Exception):
    """Raised by an endpoint: the answer is this error, in Hadoop's form."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers

    def response(self) -> Response:
        return remote_exception(self.status, self.message, self.headers)


# -- JSON --------------------------------------------------------------------------------------------------------------


def to_json(content: Any) -> bytes:
    """As UTF-8. Lone surrogates in texts become escapes."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return json_answer(to_json(content), status, headers)


def json_answer(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, status, headers, JSON)


def listed(rm: RMWeb, key: str, items: Sequence[Any]) -> dict[str, Any] | None:
    """A list within its wrapper, such as `{"app": [...]}`; None for an empty one, if that is configured."""
    return None if not items and rm.config.empty_as_null else {key: items}


def finite(number: float) -> float:
    """0.0 for what JSON cannot express."""
    return number if math.isfinite(number) else 0.0


def percent(share: float) -> float:
    return finite(100 * share)


def cores(milli: int) -> int:
    """Whole virtual cores: thousandths are rounded up."""
    return -(-milli // 1000)


def amount(resource: Resource) -> dict[str, int]:
    """A resource as an object of Hadoop's API."""
    return {"memory": resource.memory_mb, "vCores": cores(resource.vcores_milli)}


# -- errors ------------------------------------------------------------------------------------------------------------


def remote_exception(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as Hadoop's services answer it."""
    return json_answer(remote_exception_body(status, message), status, headers)


def remote_exception_body(status: int, message: str) -> bytes:
    name = _OF_STATUS.get(status, "WebApplicationException")
    java_class = _CLASSES.get(name, f"javax.ws.rs.{name}")
    about = {"exception": name, "message": one_line(message), "javaClassName": java_class}
    return to_json({"RemoteException": about})


async def http_error(request: Request, error: Exception) -> Response:
    """The error of a router: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    path, headers = one_line(request.scope["path"], 200), error.headers
    if error.status_code == 405:
        methods = ", ".join(sorted(_methods(request)))
        headers = {"Allow": methods}
        return remote_exception(405, f"{path}: {request.method} is not possible here, but {methods}", headers)
    reasons = {404: f"{path}: no such path"}
    return remote_exception(error.status_code, reasons.get(error.status_code, error.detail), headers)


def _methods(request: Request) -> set[str]:
    """Of all routes to the request's path: each has its own."""
    routes = [each for each in request.app.router.routes if isinstance(each, Route)]
    found = [each.methods or () for each in routes if each.matches(request.scope)[0] is not Match.NONE]
    return {method for methods in found for method in methods}


# -- endpoints ---------------------------------------------------------------------------------------------------------


def route(
    rm: RMWeb, path: str, function: Endpoint, methods: Iterable[str] = ("GET",), *, always: bool = False
) -> Route:
    """A path below BASE. HEAD is answered as GET; `always`: also while the resource manager is not started."""
    return Route(BASE + path, guarded(rm, function, always=always), methods=list(methods))


def guarded(rm: RMWeb, function: Endpoint, *, always: bool = False) -> Endpoint:
    """The endpoint behind the checks that all have in common; whatever it raises becomes an error in Hadoop's form."""

    async def endpoint(request: Request) -> Response:
        try:
            if not accepts_json(request.headers.get("accept", "")):
                return remote_exception(406, "only application/json is served here; change the header Accept")
            if not always and not rm.model.is_readable():
                return remote_exception(503, "the resource manager is not started", _RETRY)
            return _zipped(request, await function(request))
        except RestError as error:
            return error.response()
        except Exception as error:
            return _fault(request, error)

    return endpoint


def _fault(request: Request, error: Exception) -> Response:
    """Our own fault. The client gets a number to find it by in the log, and no more."""
    number = secrets.token_hex(6)
    path = one_line(request.scope["path"], 200)
    tell(log, logging.ERROR, "fault %s: %s %s", number, request.method, path, error=error)
    return remote_exception(500, f"internal error; the resource manager's log has it as fault {number}")


def accepts_json(accept: str) -> bool:
    """Whether a client with this header takes JSON. One that names no type takes any.

    >>> [accepts_json(each) for each in ("*/*", "application/xml", "application/xml, application/json;q=0.5")]
    [True, False, True]
    """
    if accept in ("*/*", "", "application/json"):
        return True
    kinds = [each.split(";") for each in accept.lower().split(",") if each.strip()]
    return not kinds or any(kind.strip() in _ACCEPTED and not _is_refused(more) for kind, *more in kinds)


def _is_refused(parameters: Sequence[str]) -> bool:
    weights = [each.partition("=")[2].strip() for each in parameters if each.strip().startswith("q=")]
    return any(weight.rstrip("0") in ("", "0.", ".") for weight in weights)


def wants_zip(request: Request) -> bool:
    encodings = [each.split(";") for each in request.headers.get("accept-encoding", "").lower().split(",")]
    return any(name.strip() in ("gzip", "*") and not _is_refused(more) for name, *more in encodings)


def _zipped(request: Request, response: Response) -> Response:
    """A stream sees to it itself."""
    if isinstance(response, StreamingResponse) or len(response.body) < _LEAST_ZIPPED or not wants_zip(request):
        return response
    response.body = gzip.compress(response.body, ZIP_LEVEL)
    response.headers["content-length"] = str(len(response.body))
    response.headers["content-encoding"] = "gzip"
    response.headers["vary"] = "Accept-Encoding"
    return response
