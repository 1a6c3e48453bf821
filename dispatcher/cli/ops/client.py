"""The ops API over a Unix socket, HTTP or HTTPS, with the standard library's client.

What a daemon answers is foreign: each request has one deadline for all of its bytes, an answer has a greatest size, and
whatever goes wrong is one `DoorError` that names the daemon.
"""

from __future__ import annotations

import io
import json
import os
import socket
import ssl
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, IncompleteRead, RemoteDisconnected
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar, cast
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

TIMEOUT_S: Final = 5.0
_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_MESSAGE: Final = 300

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Address:
    """Where a daemon answers."""

    label: str
    """What messages call it."""
    socket: Path | None = None
    """Of a Unix socket; then `host` and `port` mean nothing."""
    host: str = "localhost"
    port: int = 0
    base: str = "/ops/v1"
    """The path before the API's own."""
    tls: ssl.SSLContext | None = None
    token: str | None = None
    name: str | None = None
    """Of the daemon, where it was found by its door on this host."""


class Client:
    """Requests to one daemon, over one connection that is kept open. For one thread at a time."""

    def __init__(self, address: Address, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._connection: _Connection | None = None

    def get(self, model: type[Model], *path: str, **query: object) -> Model:
        """Ask for a path, whose parts are given unquoted, and check the answer.

        Raises:
            DoorError: there is no answer, or none of this shape.
        """
        answer = self.get_json(*path, **query)
        try:
            return model.model_validate(answer)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise self._nonsense(
                f"/{'/'.join(path)} has {where or 'an answer'} of another kind: {first['msg']}"
            ) from error

    def get_json(self, *path: str, **query: object) -> Any:
        """The same, unchecked: what the JSON means. None where the answer is `null`."""
        given = {name: value for name, value in query.items() if value is not None}
        target = f"{self.address.base}/{'/'.join(quote(part, safe='') for part in path)}"
        target += f"?{urlencode(given)}" if given else ""
        status, body = self._request(target)
        if status != 200:
            raise self._refusal(status, body)
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._nonsense(f"no JSON: {_first_of(body)!r}") from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one request ---------------------------------------------------------------------------------------------------

    def _request(self, target: str) -> tuple[int, bytes]:
        deadline = time.monotonic() + self._timeout_s
        if self._connection is not None:
            try:
                return self._exchange(self._connection, target, deadline)
            except (RemoteDisconnected, ConnectionError):
                self.close()  # the daemon has closed a connection that was idle for too long: once more, on a new one
            except BaseException as error:
                self._give_up(error)
        try:
            self._connection = connection = _Connection(self.address, deadline)
            connection.connect()
        except BaseException as error:
            self._give_up(error, is_connecting=True)
        try:
            return self._exchange(connection, target, deadline)
        except BaseException as error:
            self._give_up(error)

    def _exchange(self, connection: _Connection, target: str, deadline: float) -> tuple[int, bytes]:
        connection.deadline = deadline
        headers = {"Accept": "application/json"}
        if self.address.token is not None:
            headers["Authorization"] = f"Bearer {self.address.token}"
        connection.request("GET", target, headers=headers)
        with connection.getresponse() as response:
            body = response.read(_MOST_BYTES + 1)
            if len(body) > _MOST_BYTES:
                raise HTTPException(f"an answer of more than {_MOST_BYTES // 1024 // 1024} MiB")
            missing = response.length or 0
            if missing > 0:
                raise IncompleteRead(body, missing)
            return response.status, body

    def _give_up(self, error: BaseException, *, is_connecting: bool = False) -> NoReturn:
        self.close()
        raise self._explained(error, is_connecting) from error

    def _explained(self, error: BaseException, is_connecting: bool) -> BaseException:
        label = self.address.label
        match error:
            case ssl.SSLCertVerificationError():
                advice = "give the authority that signed it with --ca"
                return RefusedError(f"{label}: its certificate is not trusted ({error.verify_message}); {advice}")
            case TimeoutError():
                return NoAnswerError(
                    f"{label}: no answer within {self._timeout_s:g} s; it is stopped, or all its threads wait "
                    "(py-spy dump --pid PID looks in from outside)"
                )
            case FileNotFoundError() | ConnectionRefusedError() if is_connecting:
                return NoDaemonError(f"{label}: nobody listens there; the daemon has ended, or is starting")
            case PermissionError():
                return NoDaemonError(f"{label}: no permission to open it; run this as the daemon's user")
            case socket.gaierror():
                return NoDaemonError(f"{label}: no such host ({error.strerror})")
            case RemoteDisconnected() | IncompleteRead() | ConnectionError():
                return NoAnswerError(f"{label}: the connection ended before the answer did; has the daemon ended?")
            case HTTPException() | ssl.SSLError():
                return self._nonsense(f"{type(error).__name__}: {error}")
            case OSError() if is_connecting:
                return NoDaemonError(f"{label}: {error.strerror or error}")
            case OSError():
                return NoAnswerError(f"{label}: {error.strerror or error}")
            case UnicodeError() | ValueError():
                return NoDaemonError(f"{label}: {error}")
        return error

    def _nonsense(self, what: str) -> NoAnswerError:
        return NoAnswerError(
            f"{self.address.label}: does not answer as the ops API does: {one_line(what, _MOST_MESSAGE)}"
        )

    def _refusal(self, status: int, body: bytes) -> DoorError:
        label = self.address.label
        try:
            said = json.loads(body)["error"]
        except (ValueError, RecursionError, TypeError, LookupError):
            said = _first_of(body)
        reason = one_line(str(said), _MOST_MESSAGE) or "without a reason"
        if status in (401, 403):
            advice = "give a token with --token-file" if self.address.token is None else "check the token and its role"
            return RefusedError(f"{label}: refuses (HTTP {status}): {reason}; {advice}")
        if status == 404:
            return NotThereError(f"{label}: {reason}")
        return ErrorAnswerError(f"{label}: answers with HTTP {status}: {reason}")


def _first_of(body: bytes) -> str:
    return body[:80].decode("utf-8", "replace").strip()


class _Connection(HTTPConnection):
    """An HTTP connection over any socket, whose deadline holds for all reads together."""

    def __init__(self, address: Address, deadline: float) -> None:
        super().__init__(address.host, address.port or None)
        self._address = address
        self.deadline = deadline

    def connect(self) -> None:
        remaining_s = max(0.001, self.deadline - time.monotonic())
        if self._address.socket is not None:
            connected = socket.socket(socket.AF_UNIX)
            try:
                connected.settimeout(remaining_s)
                connected.connect(os.fspath(self._address.socket))
            except BaseException:
                connected.close()
                raise
        else:
            connected = socket.create_connection((self._address.host, self._address.port), remaining_s)
            if self._address.tls is not None:
                plain = connected
                try:
                    connected = self._address.tls.wrap_socket(plain, server_hostname=self._address.host)
                except BaseException:
                    plain.close()
                    raise
        self.sock = cast(Any, _DeadlineSocket(connected, self))


class _DeadlineSocket:
    """What `http.client` uses of a socket. A peer that sends a byte now and then does not move the deadline.

    As with a socket, its files are still readable once it is closed.
    """

    def __init__(self, connected: socket.socket, connection: _Connection) -> None:
        self._socket = connected
        self._connection = connection
        self._files = 0
        self._is_closed = False

    def sendall(self, data: bytes) -> None:
        self._prepare()
        self._socket.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb", mode
        self._files += 1
        return io.BufferedReader(_Reader(self))

    def receive_into(self, buffer: Any) -> int:
        self._prepare()
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        self._is_closed = True
        self._close_last()

    def close_file(self) -> None:
        self._files -= 1
        self._close_last()

    def _close_last(self) -> None:
        if self._is_closed and not self._files:
            self._socket.close()

    def _prepare(self) -> None:
        remaining_s = self._connection.deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining_s)


class _Reader(io.RawIOBase):
    def __init__(self, source: _DeadlineSocket) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._source.receive_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._source.close_file()
