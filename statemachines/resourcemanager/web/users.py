"""On whose behalf a request is made, and what its role allows.

    auth simple   the user that the client names: `?user.name=`, or else the cookie `hadoop.auth` of an earlier answer;
                  or else the peer of the Unix socket, or web.static_user
    auth token    the user of the token or certificate; an administrator may act for the user of `?user.name=`

The cookie, `u=alice&p=alice&t=simple`, only repeats the name that the client gave, for clients of Hadoop that expect
it. It isn't signed: whoever could forge it could name the user in the address.

Threads: the loop's thread only.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatcher.util.terminal import one_line
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.security import Principal, describe_write
from statemachines.resourcemanager.records.acls import Caller
from statemachines.resourcemanager.records.web_config import RMWebConfig
from statemachines.resourcemanager.web.groups import Groups

PARAMETER: Final = "user.name"
COOKIE: Final = "hadoop.auth"
LONGEST_USER: Final = 255
_USER: Final = re.compile(r"""[^\x00-\x20\x7f-\U0010ffff&;,="\\%]+""")
"""A name that stands in a cookie as it is: Hadoop's own cannot contain `&` either."""


def is_user_name(name: str) -> bool:
    """Whether a user may have this name: printable ASCII without blanks and `& ; , = " \\ %`."""
    return len(name) <= LONGEST_USER and _USER.fullmatch(name) is not None


class UserError(Refusal):
    """There is no user (401), or not one that may do this (400, 403)."""


class Users:
    """Finds the users of requests."""

    def __init__(self, config: RMWebConfig) -> None:
        self._config = config
        self._is_simple = config.auth_in_use == "simple"
        self._is_anonymous = config.tokens_file is None and (config.tls is None or config.tls.client_ca is None)
        self.groups: Groups = Groups()

    # -- who it is ----------------------------------------------------------------------------------------------------

    async def reader(self, request: Request) -> Caller | None:
        """The user whose rights decide what an answer shows; None: there is no user, so show what everyone may see.

        Raises:
            UserError: `user.name` is not a user's name (400).
        """
        user, _ = self._user(request, self.principal(request))
        return None if user is None else await self.caller(user, self._is_admin(request, user))

    async def writer(self, request: Request) -> Caller:
        """The user that asks for a change. The request's audit line names it.

        Raises:
            UserError: the client names no user or is not known (401), may change nothing (403), or `user.name` is not
                a user's name (400).
        """
        principal = self.principal(request)
        if principal is None:
            raise UserError(401, "there is no user: this server has not identified the client")
        user, is_named = self._user(request, principal)
        if user is None or (self._is_simple and self._config.require_user and not is_named):
            raise UserError(401, f"name your user: add ?{PARAMETER}=USER to the address, or send the cookie {COOKIE}")
        acts_for_other = not self._is_local_name(principal) and user != principal.name
        describe_write(request.scope, user=user, by=principal.name if acts_for_other else "")
        if not self._names_itself and not principal.may("user"):
            raise UserError(403, f"role user is required; {principal.name} has role {principal.role}")
        if not self._is_simple and user == self._config.static_user:
            raise UserError(403, f"The default static user cannot carry out this operation ({user}).")
        return await self.caller(user, self._is_admin(request, user))

    async def caller(self, user: str, is_admin: bool = False) -> Caller:
        """Any user, by name; `is_admin`: its role makes it an administrator."""
        return Caller(user, await self.groups.of(user), is_admin)

    @staticmethod
    def principal(request: Request) -> Principal | None:
        """Whom the host has identified; None: another server runs the app."""
        principal = request.scope.get("principal")
        return principal if isinstance(principal, Principal) else None

    @property
    def _names_itself(self) -> bool:
        """Whether clients over TCP name themselves without proof, so that their role means nothing."""
        return self._is_simple and self._is_anonymous

    def _is_local_name(self, principal: Principal) -> bool:
        """Whether the principal is anonymous: a client over TCP, without token or certificate."""
        return self._names_itself and principal.name == "anonymous"

    def _user(self, request: Request, principal: Principal | None) -> tuple[str | None, bool]:
        """The user, and whether the client proves or names it."""
        if self._is_simple:
            named = self.named_user(request.scope) or _user_of_cookie(request)
            if named is not None:
                return named, True
            if principal is None or self._is_local_name(principal):
                return self._config.static_user, False
            return principal.name, True
        if principal is None:
            return None, False
        if principal.may("admin"):
            return self.named_user(request.scope) or principal.name, True
        return principal.name, True

    def _is_admin(self, request: Request, user: str) -> bool:
        """Whether the role makes the user an administrator. One who acts for another user has that user's rights."""
        principal = self.principal(request)
        if principal is None or not principal.may("admin"):
            return False
        return user == principal.name or (self._is_local_name(principal) and user == self._config.static_user)

    # -- what the client says -----------------------------------------------------------------------------------------

    def named_user(self, scope: Scope) -> str | None:
        """The user that the address names. Raises UserError (400) for what is no user's name."""
        query: bytes = scope["query_string"]
        if b"user" not in query.lower() and b"%" not in query:
            return None
        for key, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            if key == PARAMETER and value:
                if not is_user_name(value):
                    shown = one_line(value, 100)
                    raise UserError(
                        400, f"{PARAMETER}={shown}: not a user's name; use ASCII without blanks and & ; , ="
                    )
                return value
        return None

    # -- the cookie of an answer --------------------------------------------------------------------------------------

    def cookie_for(self, scope: Scope) -> str | None:
        """The Set-Cookie of an answer to a client that names its user in the address; None: it gets none."""
        if not self._is_simple:
            return None
        try:
            user = self.named_user(scope)
        except UserError:
            return None  # the endpoint tells it
        if user is None:
            return None
        secure = "; Secure" if scope["scheme"] == "https" else ""
        return f"{COOKIE}=u={user}&p={user}&t=simple; Path=/; HttpOnly; SameSite=Strict{secure}"


def _user_of_cookie(request: Request) -> str | None:
    """The user that the cookie repeats. Names of cookies cannot contain `=`, values can."""
    for header in request.headers.getlist("cookie"):
        for part in header.split(";"):
            name, _, value = part.strip().partition("=")
            if name == COOKIE:
                user = value.strip('"').partition("&")[0].removeprefix("u=")
                return user if is_user_name(user) else None
    return None


class UserCookies:
    """Around every request: hands its cookie to a client that has named its user."""

    def __init__(self, app: ASGIApp, users: Users) -> None:
        self._app = app
        self._users = users

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cookie = self._users.cookie_for(scope) if scope["type"] == "http" else None
        if cookie is None:
            await self._app(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("set-cookie", cookie)
            await send(message)

        await self._app(scope, receive, send_with_cookie)
