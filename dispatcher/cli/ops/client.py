"""The ops API over a Unix socket, HTTP or HTTPS, with the standard library's client.

Answers are not trusted: a request has one deadline and one limit on the bytes it may receive, and every failure is a
`DoorError` that names the daemon.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, IncompleteRead, RemoteDisconnected
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ValidationError

from dispatcher.cli.ops.errors import (
    DoorError,
    ErrorAnswerError,
    NoAnswerError,
    NoDaemonError,
    NotThereError,
    RefusedError,
)
from dispatcher.util.terminal import one_line
from dispatcher.web.doors import Door

TIMEOUT_S: Final = 5.0
_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_HEAD: Final = 1024 * 1024
"""Bytes of headers and chunk sizes, which `http.client` bounds too."""
_MOST_MESSAGE: Final = 300

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Address:
    """Where a daemon answers."""

    label: str
    """The daemon's name in messages."""
    socket: Path | None = None
    """The path of its Unix socket; `host` and `port` are then unused."""
    host: str = "localhost"
    port: int = 0
    base: str = "/ops/v1"
    """The path under which the API is mounted."""
    tls: ssl.SSLContext | None = None
    token: str | None = None
    door: Door | None = None
    """The daemon's door, if it was found on this host."""


class Client:
    """Sends requests to one daemon over a connection that stays open. One thread at a time."""

    def __init__(self, address: Address, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._connection: _Connection | None = None

    def get(self, model: type[Model], *path: str, **query: object) -> Model:
        """Request a path, whose parts are given unquoted, and validate the answer. Blocks until the deadline at most.

        Raises:
            DoorError: no answer, or not a valid one.
        """
        return self._validated(model, self.get_json(*path, **query), path)

    def get_json(self, *path: str, **query: object) -> Any:
        """Request a path, and return the decoded JSON without validation."""
        return self._json_of(*self._request(self._target(path, query)))

    def post(self, model: type[Model], *path: str, content: object) -> Model:
        """Post `content` as JSON, and validate the answer. Never repeated: the daemon may have made the change already.

        Raises:
            DoorError: no answer, or not a valid one.
        """
        return self._validated(model, self.send("POST", *path, content=content), path)

    def send(self, method: str, *path: str, content: object = None, **query: object) -> Any:
        """Send a change with any method, and return the decoded JSON without validation. Never repeated.

        `content` becomes a body of JSON; None sends no body. A list in `query` repeats its key.

        Raises:
            DoorError: no answer, or an error.
        """
        self.close()  # the daemon may be closing a connection that was idle
        body = b"" if content is None else json.dumps(content).encode()
        return self._json_of(*self._request(self._target(path, query), method, body))

    def _target(self, path: tuple[str, ...], query: dict[str, object]) -> str:
        """The target of a request. A query's None is left out; a list repeats its key."""
        given = {name: value for name, value in query.items() if value is not None}
        target = f"{self.address.base}/{'/'.join(quote(part, safe='') for part in path)}"
        return target + (f"?{urlencode(given, doseq=True)}" if given else "")

    def _json_of(self, status: int, body: bytes) -> Any:
        if status != 200:
            raise self._refusal(status, body)
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._nonsense(f"not JSON: {_first_of(body)!r}") from error

    def _validated(self, model: type[Model], answer: Any, path: Sequence[str]) -> Model:
        try:
            return model.model_validate(answer)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise self._nonsense(f"/{'/'.join(path)}: invalid {where or 'answer'}: {first['msg']}") from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one request ---------------------------------------------------------------------------------------------------

    def _request(self, target: str, method: str = "GET", content: bytes = b"") -> tuple[int, bytes]:
        deadline = time.monotonic() + self._timeout_s
        if self._connection is not None:
            try:
                return self._exchange(self._connection, target, deadline, method, content)
            except (RemoteDisconnected, ConnectionError):
                self.close()  # the daemon has closed the idle connection: retry once on a new one
            except _FAILURES as error:
                self._give_up(error)
        try:
            self._connection = connection = _Connection(self.address, deadline)
            connection.connect()
        except _FAILURES as error:
            self._give_up(error, is_connecting=True)
        try:
            return self._exchange(connection, target, deadline, method, content)
        except _FAILURES as error:
            self._give_up(error)

    def _exchange(
        self, connection: _Connection, target: str, deadline: float, method: str, content: bytes
    ) -> tuple[int, bytes]:
        connection.deadline, connection.allowed_bytes = deadline, _MOST_BYTES + _MOST_HEAD
        headers = {"Accept": "application/json"}
        if self.address.token is not None:
            headers["Authorization"] = f"Bearer {self.address.token}"
        if content:
            headers["Content-Type"] = "application/json"
        connection.request(method, target, content or None, headers)
        with connection.getresponse() as response:
            body = response.read(_MOST_BYTES + 1)
            if len(body) > _MOST_BYTES:
                raise _TooLongError
            missing = response.length or 0
            if missing > 0:
                raise IncompleteRead(body, missing)
            return response.status, body

    def _give_up(self, error: Exception, *, is_connecting: bool = False) -> NoReturn:
        self.close()
        raise self._explained(error, is_connecting) from error

    def _explained(self, error: Exception, is_connecting: bool) -> DoorError:
        label = self.address.label
        match error:
            case ssl.SSLCertVerificationError():
                advice = "pass the CA that signed it with --ca"
                return RefusedError(f"{label}: certificate not trusted ({error.verify_message}); {advice}")
            case TimeoutError():
                return NoAnswerError(
                    f"{label}: no answer within {self._timeout_s:g} s; the process is suspended, or its threads are "
                    "blocked (`py-spy dump --pid PID` shows their stacks)"
                )
            case FileNotFoundError() | ConnectionRefusedError() if is_connecting:
                return NoDaemonError(
                    f"{label}: no process is listening there; the daemon has stopped or is still starting"
                )
            case PermissionError():
                return NoDaemonError(f"{label}: permission denied; run this as the daemon's user")
            case socket.gaierror():
                return NoDaemonError(f"{label}: no such host ({error.strerror})")
            case RemoteDisconnected() | IncompleteRead() | ConnectionError():
                return NoAnswerError(f"{label}: the connection closed before the answer was complete")
            case _TooLongError():
                return self._nonsense(f"an answer of more than {_MOST_BYTES // 1024 // 1024} MiB")
            case OSError() if not isinstance(error, ssl.SSLError):
                kind = NoDaemonError if is_connecting else NoAnswerError
                return kind(f"{label}: {error.strerror or error}")
            case ValueError() if is_connecting:
                return NoDaemonError(f"{label}: {error}")
        return self._nonsense(f"{type(error).__name__}: {error}")

    def _nonsense(self, what: str) -> NoAnswerError:
        return NoAnswerError(f"{self.address.label}: not an answer of the ops API: {one_line(what, _MOST_MESSAGE)}")

    def _refusal(self, status: int, body: bytes) -> DoorError:
        label = self.address.label
        try:
            answer = json.loads(body)
            said = answer["error"] if "error" in answer else answer["RemoteException"]["message"]
        except (ValueError, RecursionError, TypeError, LookupError):
            said = _first_of(body)
        reason = one_line(str(said), _MOST_MESSAGE) or "no reason given"
        if status in (401, 403):
            advice = "pass a token with --token-file" if self.address.token is None else "check the token and its role"
            return RefusedError(f"{label}: access denied (HTTP {status}): {reason}; {advice}")
        if status == 404:
            return NotThereError(f"{label}: {reason}")
        return ErrorAnswerError(f"{label}: HTTP {status}: {reason}")


class _TooLongError(HTTPException):
    """The daemon sends more than an answer may have."""


_FAILURES: Final = (OSError, HTTPException, ValueError)
"""What `http.client`, sockets and their peers' nonsense raise."""


def _first_of(body: bytes) -> str:
    return body[:80].decode("utf-8", "replace").strip()


class _Connection(HTTPConnection):
    """An HTTP connection over any socket, with one deadline and one allowance of bytes for all reads of a request."""

    def __init__(self, address: Address, deadline: float) -> None:
        super().__init__(address.host, address.port or None)
        self._address = address
        self.deadline = deadline
        self.allowed_bytes = 0

    def connect(self) -> None:
        """Whatever this raises, `close` closes the socket."""
        connected: Any
        if self._address.socket is not None:
            self.sock = connected = _Socket(socket.AF_UNIX)
            connected.settimeout(self.remaining_s())
            connected.connect(os.fspath(self._address.socket))
        else:
            self.sock = connected = socket.create_connection((self.host, self.port), self.remaining_s())
            if self._address.tls is None:
                self.sock = connected = _Socket(fileno=connected.detach())
            else:
                self._address.tls.sslsocket_class = _TLSSocket
                self.sock = connected = self._address.tls.wrap_socket(connected, server_hostname=self.host)
        connected.limits = self

    def remaining_s(self) -> float:
        """
        Raises:
            TimeoutError: the deadline has passed.
        """
        remaining_s = self.deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        return remaining_s


class _Socket(socket.socket):
    """A socket on which a peer that sends single bytes does not extend the request's deadline."""

    limits: _Connection

    def sendall(self, data: Any, flags: int = 0) -> None:
        self.settimeout(self.limits.remaining_s())
        super().sendall(data, flags)

    def recv_into(self, *buffer: Any) -> int:
        self.settimeout(self.limits.remaining_s())
        received = super().recv_into(*buffer)
        self.limits.allowed_bytes -= received
        if self.limits.allowed_bytes < 0:
            raise _TooLongError
        return received


class _TLSSocket(_Socket, ssl.SSLSocket):
    """The same over TLS."""
