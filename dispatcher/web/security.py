"""Who a client is, what it may do, and the log of what it did."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from dispatcher.util.foreign import tell
from dispatcher.util.functions import require_methods
from dispatcher.util.terminal import one_line
from dispatcher.web.config import ROLES, RoleName
from dispatcher.web.plain_answers import error_line

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    Endpoint = Callable[[Request], Awaitable[Response]]

audit_log: Final = logging.getLogger("dispatcher.audit")
"""A line for each request that changes something, allowed (INFO) or refused (WARNING)."""
if audit_log.level == logging.NOTSET:
    audit_log.setLevel(logging.INFO)  # the root logger's WARNING would drop what was allowed


@dataclass(frozen=True, slots=True)
class Principal:
    """The user behind a request: `request.scope["principal"]` of every request passed on by a `WebHost`."""

    name: str
    role: RoleName

    def may(self, role: RoleName) -> bool:
        """Whether this user may do what `role` may."""
        return ROLES.index(self.role) >= ROLES.index(role)


def require(role: RoleName) -> Callable[[Endpoint], Endpoint]:
    """Decorate an endpoint of Starlette: users below `role` get 403.

    If another server serves the app, your middleware must put a `Principal` into the scope, or every request gets 403.
    """

    def decorate(endpoint: Endpoint) -> Endpoint:
        @wraps(endpoint)
        async def guarded(request: Request) -> Response:
            from starlette.responses import Response

            principal = request.scope.get("principal")
            if isinstance(principal, Principal) and principal.may(role):
                return await endpoint(request)
            user = (
                f"{principal.name} has role {principal.role}"
                if isinstance(principal, Principal)
                else "there is no user"
            )
            reason = f"role {role} is required; {user}"
            describe_write(request.scope, reason=reason)
            return Response(error_line(reason), 403, media_type="application/json")

        return guarded

    return decorate


@dataclass(slots=True)
class WriteNote:
    """What the audit line of a request says. One thread at a time."""

    operation: str
    target: str
    reason: str = ""
    user: str = ""
    """For whom it is done; empty: the user that the host has identified."""
    by: str = ""
    """Who acts for `user`; empty: the user itself."""


def describe_write(
    scope: MutableMapping[str, Any],
    *,
    operation: str | None = None,
    target: str | None = None,
    reason: str | None = None,
    user: str | None = None,
    by: str | None = None,
) -> None:
    """Name a request's operation, target and user, and the reason for its rejection, for its audit line.

    Without this call, the line has the method, the path, and the user that the host has identified. `by`: the
    administrator who acts for `user`.
    """
    require_methods(scope, "scope", "the scope of a request", "get")
    note = scope.get("audit")
    if isinstance(note, WriteNote):
        said = {"operation": operation, "target": target, "reason": reason, "user": user, "by": by}
        for name, value in said.items():
            if value is not None:
                setattr(note, name, value)


def user_of(request: Request) -> str:
    """The name of the user whom the host has identified, or ''."""
    principal = request.scope.get("principal")
    return principal.name if isinstance(principal, Principal) else ""


def audited(endpoint: Endpoint) -> Endpoint:
    """The endpoint of a change, with its audit line also where no `WebHost` writes it."""

    @wraps(endpoint)
    async def change(request: Request) -> Response:
        is_ours = "audit" not in request.scope
        note = request.scope.setdefault("audit", WriteNote(request.method, request.url.path))
        response = await endpoint(request)
        if is_ours:
            address = request.client.host if request.client else "-"
            audit(user_of(request) or "-", address, note, response.status_code)
        return response

    return change


def audit(user: str, address: str, note: WriteNote, status: int | None) -> None:
    """Log a line as YARN's RMAuditLogger does: keys and values, between tabs.

    `user`: whom the host has identified. `status`: of the answer, if there was one.
    """
    is_allowed = status is not None and status < 400
    pairs: Mapping[str, str] = {
        "USER": note.user or user,
        **({"BY": note.by} if note.by else {}),
        "IP": address,
        "OPERATION": note.operation,
        "TARGET": note.target,
        "RESULT": "SUCCESS" if is_allowed else "FAILURE",
    }
    if not is_allowed:
        answer = str(status) if status is not None else "no answer"
        pairs = {**pairs, "DESCRIPTION": f"{answer}: {note.reason}" if note.reason else answer}
    line = "\t".join(f"{key}={one_line(value, 500)}" for key, value in pairs.items())
    tell(audit_log, logging.INFO if is_allowed else logging.WARNING, "%s", line)
