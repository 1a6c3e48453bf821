"""What all answers of the REST API have in common: JSON, and errors in Hadoop's form."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from dispatcher.util.terminal import one_line
from dispatcher.web.plain_answers import error_line

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

BASE: Final = "/ws/v1/cluster"
JSON: Final = "application/json; charset=utf-8"
MOST_INT: Final = 2**31 - 1
"""Java's int."""
_CLASSES: Final = {
    "BadRequestException": "org.apache.hadoop.yarn.webapp.BadRequestException",
    "ForbiddenException": "org.apache.hadoop.yarn.webapp.ForbiddenException",
    "NotFoundException": "org.apache.hadoop.yarn.webapp.NotFoundException",
}
_OF_STATUS: Final = {400: "BadRequestException", 403: "ForbiddenException", 404: "NotFoundException"}


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


_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
"""`json.dumps` with options makes an encoder for each call, which takes longer than a short text."""


def to_json(content: Any) -> bytes:
    """As UTF-8. Lone surrogates in texts become escapes."""
    return _encode(content).encode("utf-8", "backslashreplace")


def with_texts(fields: Mapping[str, Any], texts: Mapping[str, bytes]) -> bytes:
    """A JSON object of at least one field, and of those whose values are JSON already."""
    more = b"".join([b',"%s":%s' % (key.encode(), text) for key, text in texts.items()])
    return b"%s%s}" % (to_json(fields)[:-1], more)


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


# -- errors ------------------------------------------------------------------------------------------------------------


def remote_exception(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as Hadoop's services answer it."""
    return json_answer(remote_exception_body(status, message), status, headers)


def remote_exception_body(status: int, message: str) -> bytes:
    name = _OF_STATUS.get(status, "WebApplicationException")
    java_class = _CLASSES.get(name, f"javax.ws.rs.{name}")
    about = {"exception": name, "message": one_line(message), "javaClassName": java_class}
    return to_json({"RemoteException": about})


def error_body(path: str, status: int, reason: str) -> bytes:
    """The body of an error that the web host answers: in Hadoop's form where Hadoop's clients ask."""
    return remote_exception_body(status, reason) if path.lstrip("/").startswith("ws/") else error_line(reason)


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
