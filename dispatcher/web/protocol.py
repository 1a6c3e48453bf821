"""HTTP connections of a door: uvicorn's, without those whose clients are slow. Needs the extra `web`.

uvicorn limits the requests in flight, the size of headers, and the time between two requests. It waits forever for the
rest of a request, and for a client that doesn't read. Here such a connection ends at the deadline, or as soon as
another connection needs its place.

Threads: the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import select
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from dispatcher.errors import DispatcherError
from dispatcher.web.config import WebConfig
from dispatcher.web.plain_answers import raw_refusal

_LINGER_S: Final = 0.5
"""A refused client has this long to read why."""
_PEER: Final = "web_peer"
_OVERRIDDEN: Final = (
    "connection_made",
    "connection_lost",
    "data_received",
    "on_response_complete",
    "send_400_response",
)

log: logging.Logger = logging.getLogger(__name__)
log.addFilter(lambda record: record.exc_info is not None)  # a client must not fill the log by sending nonsense


@dataclass(slots=True)
class Peer:
    """The other end of a connection. `user`: of a Unix socket's client, or the CN of a client's certificate."""

    transport: asyncio.Transport
    is_local: bool
    address: str
    door_address: str
    user: str | None

    @classmethod
    def of(cls, scope: Any) -> Peer:
        """The peer that has sent a request."""
        found = scope["state"][_PEER]
        assert isinstance(found, Peer)
        return found


class DoorProtocol(H11Protocol):
    """One connection. A subclass for each listening socket has its `settings` and what its connections share.

    `handed_over`: the descriptors of those that are open. `waiting`: those that wait for their clients, longest first.
    """

    settings: WebConfig
    handed_over: set[int]
    waiting: dict[DoorProtocol, None]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger: logging.Logger = log
        self._has_begun = True  # whether a request is arriving, or, on a new connection, is due
        self._is_refused = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state: dict[str, Any | Peer] = {**self.app_state, _PEER: _peer_of(transport)}
        self._fileno = transport.get_extra_info("socket").fileno()
        self.handed_over.add(self._fileno)
        self._make_room()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        self.handed_over.discard(self._fileno)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        if not self._has_begun and not self.is_answering:
            self._has_begun = True
            self._wait()
        self._make_room()  # for connections that found no other idle when they were made
        super().data_received(data)
        if self.is_answering:
            self._end_wait()

    def on_response_complete(self) -> None:
        self._has_begun = False
        self._wait()
        super().on_response_complete()
        if self.is_answering:  # the next request was here already
            self._end_wait()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn while it handles the error of a request that cannot be read."""
        error = sys.exc_info()[1]
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
            self.refuse(431, f"the request line with the headers is longer than {self.settings.header_bytes:,} bytes")
        else:
            self.refuse(400, "this is not an HTTP request")

    @property
    def is_answering(self) -> bool:
        """Whether a request was read whose answer is not over."""
        return self.cycle is not None and not self.cycle.response_complete

    def _make_room(self) -> None:
        """End idle connections while there are too many. If too many are left, uvicorn answers the next request 503."""
        while len(self.connections) > self.settings.connections:
            idle = self._longest_idle()
            if idle is None:
                return
            idle.yield_place()

    def _longest_idle(self) -> DoorProtocol | None:
        """The other connection that yields: one whose request has not arrived, else one that rests after an answer.

        A connection with bytes that the loop has not read yet does not yield.
        """
        for has_begun in (True, False):
            for idle in self.waiting:
                if idle is not self and idle._has_begun is has_begun:
                    unread = select.poll()
                    unread.register(idle._fileno, select.POLLIN)
                    if not unread.poll(0):
                        return idle
        return None

    def refuse(self, status: int, reason: str) -> None:
        """Answer without a request, and end the connection as soon as the client has read it, or `_LINGER_S` later."""
        if self.is_answering:  # another answer must not begin in the middle of it
            self.transport.abort()
            return
        if not self.transport.is_closing():
            self._is_refused = True
            self.transport.write(raw_refusal(status, reason))
            if self.transport.can_write_eof():  # closing while the client still sends would lose the answer
                with suppress(OSError):  # the client has gone
                    self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def yield_place(self) -> None:
        """End the connection at once. uvicorn learns of it a turn later, and must not count it until then."""
        self._end_wait()
        self.connections.discard(self)
        self.transport.abort()

    def _wait(self) -> None:
        """Wait for the client: for its request, and until it has read the answer."""
        self._end_wait()
        self.waiting[self] = None
        self._deadline = self.loop.call_later(self.settings.request_deadline_s, self._end_late)

    def _end_wait(self) -> None:
        self.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()

    def _end_late(self) -> None:
        is_draining = self.conn.their_state is h11.SEND_BODY  # the rest of a body whose request was answered
        if self._is_refused or self.transport.is_closing() or self.transport.get_write_buffer_size() or is_draining:
            self.transport.abort()
        elif self._has_begun or self.conn.trailing_data[0]:
            self.refuse(408, f"the request did not arrive within {self.settings.request_deadline_s:g} s")


def check_uvicorn() -> None:
    """See that uvicorn still calls what a door overrides: without that, the door's limits would silently be off.

    Raises:
        DispatcherError: it doesn't.
    """
    gone = [name for name in _OVERRIDDEN if not callable(getattr(H11Protocol, name, None))]
    if gone:
        raise DispatcherError(
            f"uvicorn {version('uvicorn')} has no H11Protocol.{gone[0]}, on which the limits of a door rely. "
            f"Install an earlier one: pip install 'uvicorn<{version('uvicorn')}'"
        )


def _peer_of(transport: asyncio.Transport) -> Peer:
    connection = transport.get_extra_info("socket")
    if connection.family == socket.AF_UNIX:
        return Peer(transport, True, "local", "", _user_of(connection))
    remote, local = transport.get_extra_info("peername"), connection.getsockname()
    certificate = transport.get_extra_info("peercert") or {}
    names = [value for pairs in certificate.get("subject", ()) for key, value in pairs if key == "commonName"]
    return Peer(transport, False, str(remote[0]) if remote else "", str(local[0]), names[0] if names else None)


def _user_of(connection: Any) -> str:
    uid = os.geteuid()
    if hasattr(socket, "SO_PEERCRED"):
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        uid = struct.unpack("3i", raw)[1]
    return _user_name(uid)


@cache  # the system may ask a server on the network
def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
