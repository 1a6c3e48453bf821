"""Who a client is, and what it may do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING

from dispatcher.web.config import ROLES, RoleName

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Principal:
    """The user behind a request: `request.scope["principal"]` of every request that a `WebHost` passes on."""

    name: str
    role: RoleName

    def may(self, role: RoleName) -> bool:
        """Whether this user may do what `role` may."""
        return ROLES.index(self.role) >= ROLES.index(role)


def require(role: RoleName) -> Callable[[Endpoint], Endpoint]:
    """Decorates an endpoint of Starlette: users below `role` get 403.

    In an app that another server serves, its middleware has to put a `Principal` into the scope; without one, everybody
    is refused.
    """

    def decorate(endpoint: Endpoint) -> Endpoint:
        @wraps(endpoint)
        async def guarded(request: Request) -> Response:
            from starlette.responses import JSONResponse

            principal = request.scope.get("principal")
            if isinstance(principal, Principal) and principal.may(role):
                return await endpoint(request)
            user = f"{principal.name} has role {principal.role}" if isinstance(principal, Principal) else "no user"
            return JSONResponse({"error": f"this needs role {role}, and {user}"}, 403)

        return guarded

    return decorate
