"""The datagrams of systemd's notify protocol (sd_notify(3)), without a library.

Without NOTIFY_SOCKET nothing is sent. A failure to send is no error: a daemon also works without a service manager.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from typing import Final

from dispatcher.util.terminal import printable

_LONGEST_SEND_S: Final = 1.0
_LONGEST_VALUE: Final = 1000
"""Characters of a value that are sent. systemd refuses datagrams of more than 4,096 bytes."""


class NotifySocket:
    """Sends datagrams to the socket at `address`: a path, or an abstract name with a leading @. Any thread."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._lock = threading.Lock()  # held while a datagram is sent: a second at most
        self._socket: socket.socket | None = None  # guarded by _lock; made with the first datagram

    def send(self, **values: object) -> bool:
        """Send a datagram with a line KEY=VALUE for each value; returns whether the system accepted it.

        If the service manager does not read, this waits for at most a second.
        """
        lines = (f"{key}={printable(str(value)[:_LONGEST_VALUE])}" for key, value in values.items())
        name = os.fsencode(self.address)
        with self._lock:
            try:
                if self._socket is None:
                    self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                    self._socket.settimeout(_LONGEST_SEND_S)
                self._socket.sendto("\n".join(lines).encode(), b"\0" + name[1:] if name[:1] == b"@" else name)
            except OSError:  # also TimeoutError: the service manager is gone, unreachable or not reading
                return False
        return True

    def close(self) -> None:
        """Close the socket. A later `send` opens a new one."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None


def notify_socket(environ: Mapping[str, str] = os.environ) -> NotifySocket | None:
    """The socket that NOTIFY_SOCKET names; None: the variable is unset, or does not name a Unix socket."""
    address = environ.get("NOTIFY_SOCKET", "")
    return NotifySocket(address) if address[:1] in ("/", "@") and len(address) > 1 else None


def watchdog_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """The watchdog's timeout in seconds (WATCHDOG_USEC): systemd expects a sign of life within it.

    None: the watchdog is off, or WATCHDOG_PID names another process.
    """
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not (usec.isascii() and usec.isdigit() and len(usec) < 20 and int(usec)) or pid not in ("", str(os.getpid())):
        return None
    return int(usec) / 1e6
