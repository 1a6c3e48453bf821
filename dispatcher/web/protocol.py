"""HTTP connections of a door: uvicorn's, with limits on their number, headers and time. Needs the extra `web`.

The Unix socket and TCP have places of their own (`Places`), so that clients of one cannot shut out those of the other.
Once all are taken, a connection that waits for its client's request yields its place to a new one.

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
_DRAINED_BODIES: Final = 16
"""The rest of a refused body is read and thrown away, up to this many times `body_bytes`: closing the connection while
its client still sends would lose the answer."""
_NEW_S: Final = 0.05
"""A new client has this long to send its request before its connection is the first to yield."""
_RESTING_S: Final = 1.0
"""A client that has had an answer has this long to send its next request before its connection may be the first."""
_PEER: Final = "web_peer"
_OVERRIDDEN: Final = (
    "connection_made",
    "connection_lost",
    "data_received",
    "on_response_complete",
    "send_400_response",
)

log = logging.getLogger(__name__)
log.addFilter(lambda record: record.levelno >= logging.ERROR)  # a client must not fill the log by sending nonsense


@dataclass(slots=True)
class Peer:
    """The other end of a connection. `user`: of a Unix socket's client, or the CN of a client's certificate."""

    transport: asyncio.Transport
    is_local: bool
    address: str
    door_address: str
    user: str | None
    is_lost: bool = False

    @classmethod
    def of(cls, scope: Any) -> Peer:
        """The peer that has sent a request."""
        found = scope["state"][_PEER]
        assert isinstance(found, Peer)
        return found


class Places:
    """The connections on one of a door's sockets, `most` of them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken: set[DoorProtocol] = set()
        # Those that wait for a request, with the time since when they do, longest first.
        self._new: dict[DoorProtocol, float] = {}  # for their first
        self._resting: dict[DoorProtocol, float] = {}  # for another one

    def take(self, connection: DoorProtocol, now_s: float) -> bool:
        """Take a place for a new connection, if necessary one that another yields; False: all are in use."""
        if len(self._taken) >= self.most:
            idle = self._longest_idle(now_s)
            if idle is None:
                return False
            self.leave(idle)
            idle.yield_place()
        self._taken.add(connection)
        self._new[connection] = now_s
        return True

    def begin(self, connection: DoorProtocol) -> None:
        """Its request has come."""
        self._new.pop(connection, None)
        self._resting.pop(connection, None)

    def rest(self, connection: DoorProtocol, now_s: float) -> None:
        """Its answer is over."""
        if connection in self._taken:
            self._resting[connection] = now_s

    def leave(self, connection: DoorProtocol) -> None:
        self._taken.discard(connection)
        self.begin(connection)

    def _longest_idle(self, now_s: float) -> DoorProtocol | None:
        """The connection that yields: one that has been idle for long, else a new one before one that was in use."""
        for idle, least_s in ((self._new, _NEW_S), (self._resting, _RESTING_S), (self._new, 0), (self._resting, 0)):
            for connection, since_s in idle.items():
                if now_s - since_s < least_s:
                    break
                if not connection.has_unread():
                    return connection
        return None


class DoorProtocol(H11Protocol):
    """One connection. A subclass for each door has its `settings` and what all its connections share.

    `all_open`: those that are open. `handed_over`: the descriptors of their sockets. `places`: by whether the socket is
    the Unix one.
    """

    settings: WebConfig
    all_open: set[DoorProtocol]
    handed_over: set[int]
    places: dict[bool, Places]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = log
        self._is_refused = False
        self._begun_s: float | None = None  # when the request that is arriving began; None: none is
        self._unsent_s: float | None = None  # since when bytes of an answer that is over wait for the client
        self._closing_s: float | None = None
        self._drained = 0  # bytes of a body whose request was answered already

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.all_open.add(self)
        self._begun_s = self.loop.time()
        connection = transport.get_extra_info("socket")
        self._fileno = connection.fileno()
        self.handed_over.add(self._fileno)
        self._places = self.places[connection.family == socket.AF_UNIX]
        if not self._places.take(self, self._begun_s):
            self.connections.discard(self)
            self.refuse(503, self._no_place)
            return
        self.app_state = {**self.app_state, _PEER: _peer_of(transport)}

    def connection_lost(self, exc: Exception | None) -> None:
        self._places.leave(self)
        self.handed_over.discard(self._fileno)
        peer = self.app_state.get(_PEER)
        if peer is not None:
            peer.is_lost = True
        self.all_open.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._begun_s is None and not self.is_answering:
            self._begun_s = self.loop.time()
        if self._is_draining:
            self._drained += len(data)
            if self._drained > _DRAINED_BODIES * self.settings.body_bytes:
                self.transport.abort()
                return
        super().data_received(data)
        if self.is_answering:
            self._begun_s, self._drained = None, 0
            self._places.begin(self)

    def on_response_complete(self) -> None:
        self._begun_s = None
        self._places.rest(self, self.loop.time())
        super().on_response_complete()
        if self.is_answering:  # the next request was here already
            self._places.begin(self)

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

    @property
    def _is_draining(self) -> bool:
        return not self.is_answering and self.conn.their_state is h11.SEND_BODY

    @property
    def _no_place(self) -> str:
        return f"{self._places.most} connections are open already"

    def has_unread(self) -> bool:
        """Whether something has come from the client that the loop has not read yet."""
        poll = select.poll()
        poll.register(self._fileno, select.POLLIN)
        return bool(poll.poll(0))

    def yield_place(self) -> None:
        """End the connection, which waits for its client, in favor of another."""
        self._is_refused = True
        self._forget_keep_alive()
        # Between two requests nothing is sent: the client would take it for the answer to its next one.
        if self._begun_s is not None and not self.transport.is_closing():
            self.transport.write(raw_refusal(503, self._no_place))
        self.transport.close()

    def refuse(self, status: int, reason: str) -> None:
        """Answer without a request, and end the connection as soon as the client has read it, or `_LINGER_S` later."""
        self._is_refused = True
        self._forget_keep_alive()
        if self.is_answering:
            if self.cycle.response_started:  # another answer must not begin in the middle of it
                self.transport.abort()
                return
            self.cycle.disconnected = True  # the app's answer goes nowhere
            self.cycle.message_event.set()
        if not self.transport.is_closing():
            self.transport.write(raw_refusal(status, reason))
            if self.transport.can_write_eof():
                with suppress(OSError):  # the client has gone
                    self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def _forget_keep_alive(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()

    def end_if_late(self, now_s: float) -> None:
        """End the connection if its client keeps it waiting. Called about once a second."""
        deadline_s = self.settings.request_deadline_s
        if self.transport.is_closing():
            self._closing_s = self._closing_s or now_s
            if now_s - self._closing_s > 1.0:
                self.transport.abort()
        elif self._is_refused or self.is_answering:
            return
        elif self._begun_s is not None and now_s - self._begun_s > deadline_s:
            if self._is_draining:
                self.transport.abort()
                return
            self.refuse(408, f"the request did not arrive within {deadline_s:g} s")
        elif not self.transport.get_write_buffer_size():
            self._unsent_s = None
        else:
            self._unsent_s = self._unsent_s or now_s
            if now_s - self._unsent_s > deadline_s:
                self.transport.abort()


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
