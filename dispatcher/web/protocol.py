"""HTTP connections of a door: uvicorn's, with limits on their number, headers and time. Needs the extra `web`.

Threads: the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import socket
import struct
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from dispatcher.web.answers import raw_refusal
from dispatcher.web.config import WebConfig

_LINGER_S: Final = 0.5
"""A refused client has this long to read why."""
_DRAINED_BODIES: Final = 16
"""The rest of a refused body is read and thrown away, up to this many times `body_bytes`: closing the connection while
its client still sends would lose the answer."""
_PEER: Final = "web_peer"

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


class DoorProtocol(H11Protocol):
    """One connection. A subclass for each door has its `settings`, and its open connections in `all_open`."""

    settings: WebConfig
    all_open: set[DoorProtocol]

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
        if len(self.connections) > self.settings.connections:
            self.connections.discard(self)
            self.refuse(503, f"{self.settings.connections} connections are open already")
            return
        self.app_state = {**self.app_state, _PEER: _peer_of(transport)}

    def connection_lost(self, exc: Exception | None) -> None:
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

    def on_response_complete(self) -> None:
        self._begun_s = None
        super().on_response_complete()

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

    def refuse(self, status: int, reason: str) -> None:
        """Answer without a request, and end the connection as soon as the client has read it, or `_LINGER_S` later."""
        self._is_refused = True
        self._unset_keepalive_if_required()
        if self.is_answering:
            if self.cycle.response_started:  # another answer must not begin in the middle of it
                self.transport.abort()
                return
            self.cycle.disconnected = True  # the app's answer goes nowhere
            self.cycle.message_event.set()
        if not self.transport.is_closing():
            self.transport.write(raw_refusal(status, reason))
            if self.transport.can_write_eof():
                self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.abort)

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
