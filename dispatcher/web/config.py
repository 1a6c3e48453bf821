"""Settings of a web host: its addresses, access and limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Literal

from pydantic import Field

from dispatcher.config import ConfigModel

RoleName = Literal["view", "user", "admin"]
"""`view`: read. `user`: also submit work, such as an application. `admin`: also operate the daemon."""
ROLES: Final[tuple[RoleName, ...]] = ("view", "user", "admin")
"""From the lowest up. Each role includes those before it."""


class TLSConfig(ConfigModel):
    """TLS of the TCP door."""

    cert: Path = Field(description="PEM file of the door's certificate, followed by any intermediate certificates")
    key: Path = Field(description="PEM file of the certificate's private key, not encrypted")
    client_ca: Path | None = Field(
        default=None,
        description="PEM file of the CAs that sign client certificates. A client without such a certificate is "
        "rejected, and the certificate's CN is the user; null: clients need no certificate",
    )
    client_role: RoleName = Field(
        default="user", description="role of a client whose certificate matches no user in tokens_file"
    )


class WebConfig(ConfigModel):
    """Settings of a web host."""

    gone_keys: ClassVar[Mapping[str, str]] = {"session_s": "browsers send the token with each request: remove the key"}

    unix_socket: bool = Field(
        default=True, description="listen on a Unix socket that only the daemon's own user and root can reach"
    )
    socket_path: Path | None = Field(
        default=None,
        description="path of the Unix socket, in a folder that belongs to the daemon's user; null: NAME-PID.sock "
        "in the folder that `dispatcher ps` searches",
    )
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="TCP address to listen on; an address beyond loopback requires tokens_file or tls.client_ca",
    )
    port: int | None = Field(
        default=None, ge=0, le=65535, description="TCP port; 0 chooses a free port; null disables TCP"
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="further names, or name:port, to accept in the Host header. The door's own addresses and "
        "localhost are always accepted",
    )
    tokens_file: Path | None = Field(
        default=None,
        description="file of mode 0600 with a line `name role sha256-of-token` for each token, as `dispatcher token "
        "new` adds it. With this file, TCP clients need a token. It is read again when it changes",
    )
    anonymous_role: RoleName = Field(
        default="view", description="role of TCP clients if neither tokens_file nor tls.client_ca is set"
    )
    tls: TLSConfig | None = Field(default=None, description="TLS of the TCP door; null: plain HTTP")
    body_bytes: int = Field(
        default=1 << 20, ge=0, description="maximum body of a request, in bytes; a longer one gets 413"
    )
    header_bytes: int = Field(
        default=16_384, ge=512, description="maximum request line with headers, in bytes; longer ones get 431"
    )
    connections: int = Field(
        default=256,
        ge=1,
        le=100_000,
        description="maximum open connections, on the Unix socket and on TCP each. One more takes the place of one "
        "that waits for a request, or gets 503 if all are in use",
    )
    writes: int = Field(
        default=64, ge=1, description="maximum concurrent requests other than GET and HEAD; one more gets 429"
    )
    request_deadline_s: float = Field(
        default=10.0,
        gt=0,
        description="maximum time for a request to arrive, and again for its answer to be sent, in seconds. An "
        "answer that has not begun by then becomes 503",
    )
    keep_alive_s: float = Field(
        default=15.0, gt=0, description="how long a connection can wait for its next request, in seconds"
    )
    requests_per_s: float = Field(
        default=100.0,
        gt=0,
        le=1e6,
        description="maximum requests answered per second, on average. A burst of 3 seconds' worth passes at once. "
        "Further requests wait their turn, so that a flood leaves the interpreter to the handlers",
    )
    event_streams: int = Field(default=32, ge=0, description="maximum open event streams; one more gets 429")
