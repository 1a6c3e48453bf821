"""The user on whose behalf a request is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request

from dispatcher.web.security import Principal
from statemachines.resourcemanager.acls import Caller

if TYPE_CHECKING:
    from statemachines.resourcemanager.web.shared import RMWeb


def user_of(rm: RMWeb, request: Request) -> Caller:
    """Whom the client's token or certificate names; under auth simple, whom the client names."""
    principal = request.scope.get("principal")
    if rm.config.auth_in_use == "token" and isinstance(principal, Principal):
        return Caller(principal.name, is_admin=principal.may("admin"))
    return Caller(request.query_params.get("user.name") or rm.config.static_user)
