"""The user behind a request, by Unix socket, token or certificate. Needs the extra `web`.

A client sends its token with each request, as a bearer token or as the password of HTTP Basic. A browser asks for that
password, and remembers it until it is closed.

Threads: the loop's thread only.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from dispatcher.web.config import WebConfig
from dispatcher.web.origins import Headers, header, header_values
from dispatcher.web.plain_answers import Pairs, Refusal
from dispatcher.web.security import Principal
from dispatcher.web.tokens import Tokens

if TYPE_CHECKING:
    from dispatcher.web.protocol import Peer

_CHALLENGES: Final[Pairs] = [
    (b"www-authenticate", b'Basic realm="dispatcher", charset="UTF-8"'),
    (b"www-authenticate", b'Bearer realm="dispatcher"'),
]


class NotIdentified(Refusal):
    """The client has to send a token."""

    def __init__(self) -> None:
        super().__init__(
            401,
            "this door needs a token (Authorization: Bearer TOKEN, or your name and TOKEN as the password) or a client "
            "certificate",
        )

    @property
    def pairs(self) -> Pairs:
        return _CHALLENGES


class Identities:
    """Identifies users by token, certificate or socket.

    Raises:
        ConfigError: the tokens file is unsound.
    """

    def __init__(self, settings: WebConfig) -> None:
        self._settings = settings
        self._tokens = Tokens(settings.tokens_file) if settings.tokens_file is not None else None
        self._client_ca = settings.tls is not None and settings.tls.client_ca is not None

    def find(self, headers: Headers, peer: Peer) -> Principal | None:
        """The user of a request; None without credentials, or with invalid ones."""
        if peer.is_local:
            return Principal(peer.user or "local", "admin")
        if self._tokens is not None and header_values(headers, b"authorization"):  # otherwise ignored, as in Hadoop
            return self._by_token(self._tokens, header(headers, b"authorization") or "")
        if self._client_ca:
            return self._by_certificate(peer)
        return Principal("anonymous", self._settings.anonymous_role) if self._tokens is None else None

    @staticmethod
    def _by_token(tokens: Tokens, authorization: str) -> Principal | None:
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return tokens.find(given.strip())
        if scheme.lower() != "basic":
            return None
        try:
            name, _, token = base64.b64decode(given.strip(), validate=True).decode().partition(":")
        except ValueError:
            return None
        found = tokens.find(token)
        # With another user's name, the audit log would show a user that the client did not name.
        return found if found is not None and name in ("", found.name) else None

    def _by_certificate(self, peer: Peer) -> Principal | None:
        tls = self._settings.tls
        if tls is None or peer.user is None:
            return None
        role = self._tokens.role_of(peer.user) if self._tokens is not None else None
        return Principal(peer.user, role or tls.client_role)
