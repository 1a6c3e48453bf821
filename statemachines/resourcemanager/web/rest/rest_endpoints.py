"""What all endpoints of the REST API share: JSON, errors in Hadoop's form, and what is checked before they run.

The loop's thread.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dispatcher.util.foreign import tell
from dispatcher.util.http_heads import takes
from dispatcher.util.terminal import one_line
from dispatcher.web import endpoints
from dispatcher.web.endpoints import Endpoint, zipped
from dispatcher.web.plain_answers import SOON, Refusal, error_line, to_json
from statemachines.resourcemanager.web.shared import known_refusal

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb

log: logging.Logger = logging.getLogger(__name__)

BASE: Final = "/ws/v1/cluster"
JSON: Final = "application/json; charset=utf-8"
MOST_INT: Final = 2**31 - 1
"""Java's int."""
_OF_STATUS: Final = {400: "BadRequestException", 403: "ForbiddenException", 404: "NotFoundException"}


# -- endpoints ---------------------------------------------------------------------------------------------------------


def route(
    rm: RMWeb, path: str, function: Endpoint, methods: Iterable[str] = ("GET",), *, always: bool = False
) -> Route:
    """A path below BASE. HEAD is answered as GET; `always`: also while the resource manager is not started."""
    return Route(BASE + path, guarded(rm, function, always=always), methods=list(methods))


def guarded(rm: RMWeb, function: Endpoint, *, always: bool = False) -> Endpoint:
    """The endpoint behind the checks that all have in common; whatever it raises becomes an error in Hadoop's form."""

    async def checked(request: Request) -> Response:
        check_accept(request)
        if not always and not rm.model.is_readable():
            raise Refusal(503, "the resource manager is not started", SOON)
        return zipped(request, await function(request))

    return endpoints.guarded(checked, remote_exception, explained)


def check_accept(request: Request) -> None:
    """Raises Refusal (406) for a client that does not take JSON."""
    if not accepts_json(request.headers.get("accept", "")):
        raise Refusal(406, "only application/json is served here; change the header Accept")


def accepts_json(accept: str) -> bool:
    """Whether a client with this header takes JSON. One that names no type takes any.

    >>> [accepts_json(each) for each in ("*/*", "application/xml", "application/xml, application/json;q=0.5")]
    [True, False, True]
    """
    if accept in ("*/*", "", "application/json"):
        return True
    return not accept.strip(", ") or takes([accept], "application/json", "application/*", "*/*")


# -- JSON --------------------------------------------------------------------------------------------------------------


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return json_answer(to_json(content), status, headers)


def json_answer(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return endpoints.json_answer(body, status, headers, JSON)


def listed(rm: RMWeb, key: str, items: Sequence[Any]) -> dict[str, Any] | None:
    """A list within its wrapper, such as `{"app": [...]}`; None for an empty one, if that is configured."""
    return None if not items and rm.config.empty_as_null else {key: items}


def finite(number: float) -> float:
    """0.0 for what JSON cannot express."""
    return number if math.isfinite(number) else 0.0


def percent(share: float) -> float:
    return finite(100 * share)


# -- errors ------------------------------------------------------------------------------------------------------------


def explained(request: Request, error: Exception) -> Refusal:
    """The error as an answer. Of a fault of ours, the client gets a number to find it by in the log, and no more."""
    known = known_refusal(error)
    if known is not None:
        return known
    number = secrets.token_hex(6)
    path = one_line(request.scope["path"], 200)
    tell(log, logging.ERROR, "fault %s: %s %s", number, request.method, path, error=error)
    return Refusal(500, f"internal error; the resource manager's log has it as fault {number}")


async def remote_exception(request: Request, refusal: Refusal) -> Response:
    """An error as Hadoop's services answer it."""
    return json_answer(remote_exception_body(refusal.status, refusal.reason), refusal.status, refusal.headers)


def remote_exception_body(status: int, message: str) -> bytes:
    name = _OF_STATUS.get(status, "WebApplicationException")
    package = "org.apache.hadoop.yarn.webapp" if status in _OF_STATUS else "javax.ws.rs"
    about = {"exception": name, "message": one_line(message), "javaClassName": f"{package}.{name}"}
    return to_json({"RemoteException": about})


def error_body(path: str, status: int, reason: str) -> bytes:
    """The body of an error that the web host answers: in Hadoop's form where Hadoop's clients ask."""
    return remote_exception_body(status, reason) if path.lstrip("/").startswith("ws/") else error_line(reason)
