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
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, Self

from dispatcher.errors import ConfigError
from dispatcher.util.terminal import one_line
from dispatcher.web import doors
from dispatcher.web.config import TLSConfig, WebConfig
from dispatcher.web.origins import as_address

BACKLOG: Final = 512
_SPARE_CONNECTIONS: Final = 128
"""Connections beyond the limit, accepted only to be refused, or for as long as a TLS handshake takes."""


class Listener(socket.socket):
    """A listening socket that tracks the connections it has accepted, and makes room for those beyond `most`.

    The oldest whose TLS handshake is not over is ended then; without one, the new connection is.
    """

    __slots__ = ("_accepted", "_handed_over", "_most")

    @classmethod
    def of(cls, listening: socket.socket, most: int, handed_over: Collection[int] | None) -> Self:
        """Take over a listening socket, which is detached. `handed_over`: see `Listeners`; None without TLS."""
        listener = cls(listening.family, listening.type, listening.proto, fileno=listening.detach())
        listener._accepted = weakref.WeakKeyDictionary()
        listener._most = most
        listener._handed_over = handed_over
        return listener

    _accepted: weakref.WeakKeyDictionary[socket.socket, bool]  # in the order of acceptance; False: it is being ended
    _most: int
    _handed_over: Collection[int] | None

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        is_full = len(self._accepted) >= self._most  # perhaps with closed ones that are still referred to
        kept = [each for each, is_kept in self._accepted.items() if is_kept and each.fileno() >= 0] if is_full else []
        if len(kept) >= self._most:
            known = self._handed_over
            oldest = next((each for each in kept if known is not None and each.fileno() not in known), None)
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
    """A loop whose servers use TLS on TCP only, and give clients `handshake_s` for it."""

    def __init__(self, handshake_s: float) -> None:
        self._own_selector = selectors.DefaultSelector()  # closed in a forked child
        self._handshake_s = handshake_s
        super().__init__(self._own_selector)

    async def create_server(self, protocol_factory: Callable[[], Any], *args: Any, **options: Any) -> asyncio.Server:
        if options["sock"].family == socket.AF_UNIX:
            options["ssl"] = None
        if options.get("ssl") is not None:
            options.update(ssl_handshake_timeout=self._handshake_s, ssl_shutdown_timeout=1.0)
        return await super().create_server(protocol_factory, *args, **options)

    def close_selector(self) -> None:
        """Close this process's descriptor of what the loop waits for; a parent process keeps its own."""
        self._own_selector.close()


class Listeners:
    """The sockets of a door.

    `handed_over` has the descriptors of connections that the server knows, as it says; others are in a TLS handshake.

    Raises:
        ConfigError: a socket cannot, or must not, listen on its address.
    """

    def __init__(self, settings: WebConfig, name: str) -> None:
        self.sockets: list[Listener] = []
        self.handed_over: set[int] = set()  # the loop's thread only
        self.socket_path: Path | None = None
        self.address: tuple[str, int] | None = None
        self._identity: tuple[int, int] | None = None  # of the socket's file
        most = settings.connections + _SPARE_CONNECTIONS
        try:
            if settings.unix_socket:
                self._listen_at(settings.socket_path or doors.socket_path(name), most)
            if settings.port is not None:
                found = _tcp_socket(settings, settings.host, settings.port)
                self.address = found.getsockname()[:2]
                self.sockets.append(Listener.of(found, most, self.handed_over if settings.tls is not None else None))
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
        self.sockets.append(Listener.of(found, most, None))
        self.socket_path = path
        known = path.lstat()
        self._identity = (known.st_dev, known.st_ino)


def tls_for(settings: TLSConfig) -> ssl.SSLContext:
    """The TLS side of a server.

    Raises:
        ConfigError: a file cannot be read, or does not hold what it should.
    """
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    for key, path in (("cert", settings.cert), ("key", settings.key), ("client_ca", settings.client_ca)):
        if path is not None and not os.access(path, os.R_OK):
            reason = "cannot be read" if path.exists() else "does not exist"
            raise ConfigError(f"web.tls.{key} {one_line(str(path))}: {reason}")
    try:
        tls.load_cert_chain(settings.cert, settings.key, password=lambda: b"")  # never ask at the terminal
    except (OSError, ValueError) as error:
        cert, key = one_line(str(settings.cert)), one_line(str(settings.key))
        raise ConfigError(
            f"web.tls.cert {cert}, web.tls.key {key}: not a certificate and its key in PEM, without a password: "
            f"{_reason(error)}"
        ) from error
    if settings.client_ca is not None:
        try:
            tls.load_verify_locations(settings.client_ca)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"web.tls.client_ca {one_line(str(settings.client_ca))}: no certificates in PEM: {_reason(error)}"
            ) from error
        tls.verify_mode = ssl.CERT_REQUIRED
    return tls


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
    except (OSError, ValueError) as error:  # ValueError: no host name has such characters or such a length
        reason = _reason(error) if isinstance(error, OSError) else f"not a host name ({error})"
        raise ConfigError(
            f"{where}, web.port {port}: cannot listen there: {reason}; choose another, or port 0 for a free one"
        ) from error


def _reason(error: Exception) -> str:
    return one_line(str(getattr(error, "strerror", None) or error))
