"""The user of a request; `/login`, where a browser exchanges a token for a cookie; and `/logout`.

Needs the extra `web`.

A cookie names a session and does not contain the token: browsers send a host's cookies to all of its ports. A session
ends with its token.

Threads: the loop's thread only.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qs, quote

from dispatcher.util.http_heads import takes
from dispatcher.web.config import WebConfig
from dispatcher.web.origins import Headers, header, header_values, is_json
from dispatcher.web.plain_answers import Refusal
from dispatcher.web.protocol import Peer
from dispatcher.web.security import Principal
from dispatcher.web.tokens import Tokens, digest_of

PATH: Final = "/login"
LOGOUT: Final = "/logout"
SHEET: Final = "/login/style.css"
"""The style sheet of the page, for browsers that have not logged in."""
PATHS: Final = frozenset({PATH, LOGOUT, SHEET})
_MOST_SESSIONS: Final = 1000
_LONGEST_BODY: Final = 4096
_BEARER: Final = {"WWW-Authenticate": 'Bearer realm="dispatcher"'}


class Identities:
    """Identifies users by token, session, certificate or socket. `now_s` is monotonic.

    Raises:
        ConfigError: the tokens file is unsound.
    """

    def __init__(self, settings: WebConfig, now_s: Callable[[], float]) -> None:
        self._settings = settings
        self._tokens = Tokens(settings.tokens_file) if settings.tokens_file is not None else None
        self._client_ca = settings.tls is not None and settings.tls.client_ca is not None
        self._now_s = now_s
        self._sessions: dict[str, tuple[str, float]] = {}  # digest of the cookie: digest of the token, end; by age

    @property
    def has_login(self) -> bool:
        return self._tokens is not None

    def find(self, headers: Headers, peer: Peer, cookie_name: str) -> Principal | None:
        """The user of a request; None without credentials, or with invalid ones."""
        if peer.is_local:
            return Principal(peer.user or "local", "admin")
        if self._tokens is not None and header_values(headers, b"authorization"):  # otherwise ignored, as in Hadoop
            return self._by_bearer(header(headers, b"authorization") or "")
        found = self._by_session(headers, cookie_name) or self._by_certificate(peer)
        if found is None and self._tokens is None and not self._client_ca:
            return Principal("anonymous", self._settings.anonymous_role)
        return found

    def log_in(self, token: str) -> tuple[str, Principal] | None:
        """A new session: the cookie's value, and the user; None if the token is not valid."""
        principal = self._tokens.find(token) if self._tokens is not None else None
        if principal is None:
            return None
        now_s = self._now_s()
        ended = [each for each, (_, end_s) in self._sessions.items() if end_s <= now_s]
        for each in ended or list(self._sessions)[: len(self._sessions) - _MOST_SESSIONS + 1]:
            del self._sessions[each]
        value = secrets.token_urlsafe(32)
        self._sessions[digest_of(value)] = (digest_of(token), now_s + self._settings.session_s)
        return value, principal

    def log_out(self, headers: Headers, cookie_name: str) -> None:
        """End the session of a request, if it has one."""
        for value in _cookies(headers, cookie_name):
            self._sessions.pop(digest_of(value), None)

    def has_session(self, headers: Headers, cookie_name: str) -> bool:
        """Whether the user of a request is known by a session, which it can end."""
        return not header_values(headers, b"authorization") and self._by_session(headers, cookie_name) is not None

    def _by_bearer(self, authorization: str) -> Principal | None:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or self._tokens is None:
            return None
        return self._tokens.find(token.strip())

    def _by_session(self, headers: Headers, cookie_name: str) -> Principal | None:
        if self._tokens is None:
            return None
        for value in _cookies(headers, cookie_name):
            token_digest, end_s = self._sessions.get(digest_of(value), ("", 0.0))
            if token_digest and self._now_s() < end_s:
                return self._tokens.find_digest(token_digest)
        return None

    def _by_certificate(self, peer: Peer) -> Principal | None:
        tls = self._settings.tls
        if tls is None or not self._client_ca or peer.user is None:
            return None
        role = self._tokens.role_of(peer.user) if self._tokens is not None else None
        return Principal(peer.user, role or tls.client_role)


def _cookies(headers: Headers, name: str) -> Iterator[str]:
    """The values of the cookies of that name."""
    for value in header_values(headers, b"cookie"):
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(value)
        except CookieError:
            continue
        if name in cookies:
            yield cookies[name].value


class LoginPage:
    """`/login`: GET shows a form, POST takes the token, as a form or as JSON, and sets the cookie. `/logout` ends both.

    `site` is its title; `style_sheet` the text of its style sheet, whose classes are those of the site's pages.
    """

    def __init__(self, identities: Identities, session_s: float, site: str = "", style_sheet: str = "") -> None:
        from dispatcher.web.pages import LOGIN, environment  # doors without a login start sooner

        self._identities = identities
        self._session_s = session_s
        self._form = environment().get_template(LOGIN)
        self._site = site
        self.style_sheet = style_sheet.encode()

    def show(self, fields: bytes, user: str | None = None, problem: str = "") -> bytes:
        """The page. `fields`: the query of a GET, or the form of a POST that has failed; `user`: of a session."""
        [target] = parse_qs(fields.decode("latin-1")).get("next", ["/"])[:1]
        title = "Log in" if user is None else "Logged in"
        values = {"title": title, "site": self._site, "sheet": SHEET, "user": user, "problem": problem}
        return self._form.render(values, next=own_path(target)).encode()

    def log_out(self, headers: Headers, cookie_name: str) -> list[tuple[bytes, bytes]]:
        """End the session; returns the headers that send the browser to the form, without its cookie."""
        self._identities.log_out(headers, cookie_name)
        cookie = f"{cookie_name}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"
        return [(b"location", PATH.encode()), (b"set-cookie", cookie.encode())]

    def answer(
        self, headers: Headers, body: bytes, cookie_name: str, scheme: str
    ) -> tuple[Principal, str, list[tuple[bytes, bytes]]]:
        """The user who has logged in, the path to go to, and the cookie.

        Raises:
            Refusal: the body is malformed (400, 415), or the token is not valid (401).
        """
        token, target = _fields(headers, body)
        found = self._identities.log_in(token)
        if found is None:
            raise Refusal(401, "this token is not valid", _BEARER)
        value, principal = found
        secure = "; Secure" if scheme == "https" else ""
        cookie = f"{cookie_name}={value}; Path=/; Max-Age={self._session_s:.0f}; HttpOnly; SameSite=Strict{secure}"
        return principal, target, [(b"set-cookie", cookie.encode())]


def cookie_name_of(scope: Any) -> str:
    """The name has the port, since cookies ignore it: two doors of one host must not read each other's."""
    server = scope.get("server") or ("", None)
    return f"dispatcher_session_{server[1] or 0}"


def not_logged_in(headers: Headers, path: str, has_login: bool) -> Refusal:
    """401 for programs; for browsers that want a page, the way to `/login`."""
    reason = "this door needs a token (Authorization: Bearer TOKEN) or a client certificate"
    if has_login and wants_page(headers):
        return Refusal(303, reason, {"Location": f"{PATH}?next={quote(path)}"})
    return Refusal(401, reason, _BEARER)


def wants_page(headers: Headers) -> bool:
    """Whether the client is a browser that shows what it gets."""
    return takes(header_values(headers, b"accept"), "text/html")


def own_path(target: str) -> str:
    """`target` if it is a path on this door, else `/`: a link to `/login` must not lead elsewhere."""
    is_own = target.startswith("/") and not target.startswith("//") and "\\" not in target and target.isprintable()
    return quote(target, safe="/?&=%:;,+@!$'()*~-._") if is_own else "/"


def _fields(headers: Headers, body: bytes) -> tuple[str, str]:
    if len(body) > _LONGEST_BODY:
        raise Refusal(413, f"a login has at most {_LONGEST_BODY:,} bytes")
    content_type = (header(headers, b"content-type") or "").partition(";")[0].strip().lower()
    try:
        if is_json(headers):
            data = json.loads(body)
            token, target = data["token"], data.get("next", "/")
        elif content_type == "application/x-www-form-urlencoded":
            form = parse_qs(body.decode("ascii"))
            token, target = form["token"][0].strip(), form.get("next", ["/"])[0]
        else:
            raise Refusal(415, "send the token as application/json or as a form")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Refusal(400, 'expected the token, as {"token": "..."} or as the form of this page') from None
    if not isinstance(token, str) or not isinstance(target, str):
        raise Refusal(400, "token and next must be strings")
    return token, own_path(target)
