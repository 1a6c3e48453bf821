"""What all answers of the REST API have in common: JSON, and errors in Hadoop's form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from dispatcher.util.terminal import one_line

BASE: Final = "/ws/v1/cluster"
_CLASSES: Final = {
    "BadRequestException": "org.apache.hadoop.yarn.webapp.BadRequestException",
    "ForbiddenException": "org.apache.hadoop.yarn.webapp.ForbiddenException",
    "NotFoundException": "org.apache.hadoop.yarn.webapp.NotFoundException",
}
_OF_STATUS: Final = {400: "BadRequestException", 403: "ForbiddenException", 404: "NotFoundException"}


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    body = text.encode("utf-8", "backslashreplace")
    return Response(body, status, headers, "application/json; charset=utf-8")


def remote_exception(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as Hadoop's services answer it."""
    name = _OF_STATUS.get(status, "WebApplicationException")
    java_class = _CLASSES.get(name, f"javax.ws.rs.{name}")
    about = {"exception": name, "message": one_line(message), "javaClassName": java_class}
    return answer({"RemoteException": about}, status, headers)


async def http_error(request: Request, error: Exception) -> Response:
    """The error of a router: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    path = one_line(request.url.path, 200)
    reasons = {404: f"{path}: no such path", 405: f"{path}: {request.method} is not possible here"}
    return remote_exception(error.status_code, reasons.get(error.status_code, error.detail), error.headers)
