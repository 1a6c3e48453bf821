"""Settings of a web host: where it listens, whom it lets in, and its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from dispatcher.config import ConfigModel

RoleName = Literal["view", "user", "admin"]
"""What a client may do: look; also work, such as submitting an application; also operate the daemon."""
ROLES: Final[tuple[RoleName, ...]] = ("view", "user", "admin")
"""The lowest first. Each may do what those before it may."""


class TLSConfig(ConfigModel):
    """Certificates of the TCP door."""

    cert: Path = Field(description="PEM file of the door's certificate, followed by its intermediate ones")
    key: Path = Field(description="PEM file of the certificate's private key, without a password")
    client_ca: Path | None = Field(
        None,
        description="PEM file of the authorities whose clients are let in: a client without a certificate of theirs is "
        "refused, and the certificate's CN is the user; null: clients need no certificate",
    )
    client_role: RoleName = Field(
        "user", description="role of a user by certificate whose name has no line in tokens_file"
    )


class WebConfig(ConfigModel):
    """Settings of a web host."""

    unix_socket: bool = Field(
        True, description="listen on a Unix socket, which only the daemon's own user, and root, can reach"
    )
    socket_path: Path | None = Field(
        None,
        description="the Unix socket, in a folder that belongs to the daemon's user; null: NAME-PID.sock in the folder "
        "in which `dispatcher ps` looks",
    )
    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="TCP address to listen on; beyond loopback it needs tokens_file or tls.client_ca",
    )
    port: int | None = Field(None, ge=0, le=65535, description="TCP port; 0: a free one; null: no TCP")
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description="further names, or name:port, that clients may use for the door, as in the Host header; its own "
        "addresses and localhost are always allowed",
    )
    tokens_file: Path | None = Field(
        None,
        description="file of mode 0600 with a line `name role sha256-of-token` for each token; `dispatcher token new` "
        "makes them. With it, TCP clients need a token; it is read again when it changes",
    )
    anonymous_role: RoleName = Field(
        "view", description="role of TCP clients from this machine while there is neither tokens_file nor tls.client_ca"
    )
    session_s: float = Field(43_200.0, gt=0, description="how long a browser's /login lasts, in seconds")
    tls: TLSConfig | None = Field(None, description="certificates of the TCP door; null: plain HTTP")
    body_bytes: int = Field(1 << 20, ge=0, description="longest body of a request; beyond it: 413")
    header_bytes: int = Field(16_384, ge=512, description="longest request line with headers; beyond it: 431")
    connections: int = Field(256, ge=1, le=100_000, description="most connections at a time; one more gets 503")
    writes: int = Field(
        64, ge=1, description="most requests under way that are neither GET nor HEAD; one more gets 429"
    )
    request_deadline_s: float = Field(
        10.0,
        gt=0,
        description="longest time for a request to arrive, and again for its answer to be sent, in seconds; an answer "
        "that is not begun by then is 503",
    )
    keep_alive_s: float = Field(15.0, gt=0, description="how long a connection may wait for its next request")
    requests_per_s: float = Field(
        100.0,
        gt=0,
        le=1e6,
        description="most requests answered per second, on average: a burst of 3 seconds' worth passes at once, "
        "further ones wait for their turn, so that a flood of requests leaves the interpreter to the handlers",
    )
    event_streams: int = Field(32, ge=0, description="most clients with a stream of events; one more gets 429")
