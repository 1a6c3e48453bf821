"""What a door listens with: its sockets, its certificates, and the loop that accepts.

Threads: made by the thread that starts the host, then used by the loop's thread, except `refuse`; `close_in_child` is
called in a forked child, which has no other thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import socket
import ssl
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dispatcher.errors import ConfigError
from dispatcher.util.terminal import one_line
from dispatcher.web import doors
from dispatcher.web.config import TLSConfig, WebConfig
from dispatcher.web.origins import as_address

BACKLOG: Final = 512
_SPARE_CONNECTIONS: Final = 128
"""Connections beyond the limit, accepted only to be refused, or for as long as a TLS handshake takes."""


class Listener(socket.socket):
    """A listening socket that limits the connections it has accepted.

    Beyond the limit, it ends the oldest connection whose TLS handshake is not over. If there is none, it ends the new
    connection. uvicorn cannot do this, because it learns of a connection only after the handshake.

    `handed_over`: the descriptors of the connections that uvicorn knows; the server's protocol updates it.
    `tls`: uvicorn's options for TLS; empty without TLS.
    """

    def __init__(self, listening: socket.socket, most: int, tls: dict[str, Any]) -> None:
        """Take over a listening socket, which is detached."""
        super().__init__(listening.family, listening.type, listening.proto, fileno=listening.detach())
        # In the order of acceptance; False: it is being ended.
        self._accepted: weakref.WeakKeyDictionary[socket.socket, bool] = weakref.WeakKeyDictionary()
        self._most = most
        self.handed_over: set[int] = set()
        self.tls = tls

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        is_full = len(self._accepted) >= self._most  # perhaps with closed ones that are still referred to
        kept = [each for each, is_kept in self._accepted.items() if is_kept and each.fileno() >= 0] if is_full else []
        if len(kept) >= self._most:
            known = self.handed_over
            oldest = next((each for each in kept if self.tls and each.fileno() not in known), None)
            if oldest is None:
                connection.close()
                raise ConnectionAbortedError("too many connections")  # the loop goes on to the next
            self._accepted[oldest] = False
            with contextlib.suppress(OSError):  # the client has closed it
                oldest.shutdown(socket.SHUT_RDWR)  # the loop, which waits for it, closes it
        self._accepted[connection] = True
        return connection, address

    def close_all(self) -> None:
        """Close this socket and its connections without an answer to the clients."""
        for each in (*self._accepted, self):
            each.close()


class DoorLoop(asyncio.SelectorEventLoop):
    """A loop whose servers give clients `handshake_s` for a TLS handshake."""

    def __init__(self, handshake_s: float) -> None:
        self._own_selector = selectors.DefaultSelector()  # closed in a forked child
        self._handshake_s = handshake_s
        super().__init__(self._own_selector)

    async def create_server(self, protocol_factory: Callable[[], Any], *args: Any, **options: Any) -> asyncio.Server:
        if options.get("ssl") is not None:
            options.update(ssl_handshake_timeout=self._handshake_s, ssl_shutdown_timeout=1.0)
        return await super().create_server(protocol_factory, *args, **options)

    def close_selector(self) -> None:
        """Close this process's descriptor of what the loop waits for; a parent process keeps its own."""
        self._own_selector.close()


class Listeners:
    """The sockets of a door.

    Raises:
        ConfigError: a socket cannot, or must not, listen on its address.
    """

    def __init__(self, settings: WebConfig, name: str) -> None:
        self.sockets: list[Listener] = []
        self.socket_path: Path | None = None
        self.address: tuple[str, int] | None = None
        self._identity: tuple[int, int] | None = None  # of the socket's file
        most = settings.connections + _SPARE_CONNECTIONS
        try:
            if settings.unix_socket:
                self._listen_at(settings.socket_path or doors.socket_path(name), most)
            if settings.port is not None:
                tls = _tls_options(settings.tls) if settings.tls is not None else {}
                found = _tcp_socket(settings, settings.host, settings.port)
                self.address = found.getsockname()[:2]
                self.sockets.append(Listener(found, most, tls))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop accepting, and close the sockets. On the thread that accepts, if there is one."""
        self.refuse()
        for each in self.sockets:
            each.close()

    def refuse(self) -> None:
        """Stop accepting, and remove the Unix socket's file unless another has replaced it. Any thread."""
        if self.socket_path is not None:
            with contextlib.suppress(OSError):
                found = self.socket_path.lstat()
                if (found.st_dev, found.st_ino) == self._identity:
                    self.socket_path.unlink()
        for each in self.sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close_in_child(self) -> None:
        """Close a forked child's copies. The parent's stay open, and the file stays."""
        for each in self.sockets:
            each.close_all()

    def _listen_at(self, path: Path, most: int) -> None:
        found = doors.listen_at(path, BACKLOG)
        self.sockets.append(Listener(found, most, {}))
        self.socket_path = path
        known = path.lstat()
        self._identity = (known.st_dev, known.st_ino)


def _tls_options(settings: TLSConfig) -> dict[str, Any]:
    """uvicorn's options for TLS.

    Raises:
        ConfigError: a file cannot be read, or does not hold what it should.
    """
    for name, path in (("cert", settings.cert), ("key", settings.key), ("client_ca", settings.client_ca)):
        if path is not None and not os.access(path, os.R_OK):
            reason = "cannot be read" if path.exists() else "does not exist"
            raise ConfigError(f"web.tls.{name} {one_line(str(path))}: {reason}")
    options: dict[str, Any] = {
        "ssl_certfile": settings.cert,
        "ssl_keyfile": settings.key,
        "ssl_keyfile_password": "-",  # without a password, OpenSSL would ask for one at the terminal
        "ssl_ciphers": None,  # Python's own; uvicorn 0.40 would leave TLS 1.2 only CBC with SHA-1
    }
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        tls.load_cert_chain(settings.cert, settings.key, "-")
    except (OSError, ValueError) as error:
        cert, key = one_line(str(settings.cert)), one_line(str(settings.key))
        raise ConfigError(
            f"web.tls.cert {cert}, web.tls.key {key}: not a certificate and its key in PEM, without a password: "
            f"{_reason(error)}"
        ) from error
    if settings.client_ca is None:
        return options
    try:
        tls.load_verify_locations(settings.client_ca)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"web.tls.client_ca {one_line(str(settings.client_ca))}: no certificates in PEM: {_reason(error)}"
        ) from error
    return {**options, "ssl_ca_certs": settings.client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}


def _tcp_socket(settings: WebConfig, host: str, port: int) -> socket.socket:
    where = f"web.host {one_line(host)}"
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = infos[0]
        known = as_address(str(address[0]))
        is_guarded = settings.tokens_file is not None or (settings.tls is not None and settings.tls.client_ca)
        if not is_guarded and (known is None or not known.is_loopback):
            raise ConfigError(f"{where}: listening beyond this machine needs web.tokens_file or web.tls.client_ca")
        # By its protocol asyncio knows TCP, and turns off the wait for acknowledgements, which costs 40 ms an answer.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
        return listening
    except ConfigError:
        raise
    except (OSError, ValueError) as error:  # ValueError: no host name has such characters or such a length
        reason = _reason(error) if isinstance(error, OSError) else f"not a host name ({error})"
        raise ConfigError(
            f"{where}, web.port {port}: cannot listen there: {reason}; choose another, or port 0 for a free one"
        ) from error


def _reason(error: Exception) -> str:
    return one_line(str(getattr(error, "strerror", None) or error))
