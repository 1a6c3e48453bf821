"""Hadoop's cookie `hadoop.auth`: a user's name and its signature, after hadoop-auth's AuthToken and Signer.

    u=alice&p=alice&t=simple&e=1700000000000&s=<HMAC-SHA256 of what is before `&s=`, in base64>

Anyone may read it; only the holder of the secret can make it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
from enum import Enum
from pathlib import Path
from typing import Final

from dispatcher.errors import ConfigError
from dispatcher.util.files import open_file
from dispatcher.util.terminal import one_line

NAME: Final = "hadoop.auth"
LONGEST_USER: Final = 255
_SIGNATURE: Final = "&s="
_LEAST_BYTES: Final = 16
_MOST_BYTES: Final = 4096
_USER: Final = re.compile(r"""[^\x00-\x20\x7f-\U0010ffff&;,="\\%]+""")
"""A name that stands in a cookie as it is: Hadoop's own token cannot contain `&` either."""
_TOKEN: Final = re.compile(r"u=([^&]+)&p=([^&]+)&t=simple(?:&i=\d{1,19})?&e=(\d{1,19})", re.ASCII)


class Flaw(Enum):
    """Why a cookie is refused."""

    FORGED = "its signature is wrong"
    EXPIRED = "it has expired"


def is_user_name(name: str) -> bool:
    """Whether a user may have this name: printable ASCII without blanks and `& ; , = " \\ %`."""
    return len(name) <= LONGEST_USER and _USER.fullmatch(name) is not None


class Signer:
    """Makes and reads cookies. Immutable: any thread."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret  # never changes

    def sign(self, user: str, expires_ms: int) -> str:
        """The cookie's value. `user` is a name by `is_user_name`; `expires_ms`: Unix ms."""
        token = f"u={user}&p={user}&t=simple&e={expires_ms}"
        return f"{token}{_SIGNATURE}{self._signature(token)}"

    def read(self, value: str, now_ms: int) -> str | Flaw:
        """The user's name, or why the cookie is refused."""
        token, mark, signature = value.strip().strip('"').rpartition(_SIGNATURE)
        if not mark or not hmac.compare_digest(self._signature(token).encode(), signature.encode("utf-8", "replace")):
            return Flaw.FORGED
        match = _TOKEN.fullmatch(token)
        if match is None or not is_user_name(match.group(1)):  # signed with this secret for something else
            return Flaw.FORGED
        return match.group(1) if now_ms < int(match.group(3)) else Flaw.EXPIRED

    def _signature(self, token: str) -> str:
        digest = hmac.new(self._secret, token.encode("utf-8", "replace"), hashlib.sha256).digest()
        return base64.b64encode(digest).decode("ascii")


def secret_of(path: Path | None) -> bytes:
    """The secret in a file, which is made with a random one if it does not exist; None: a random secret.

    Raises:
        ConfigError: the file cannot be read or made, others may read it, or the secret is shorter than 16 bytes.
    """
    if path is None:
        return secrets.token_bytes(32)
    shown = f"web.cookie_secret_file {one_line(str(path))}"
    try:
        if not path.exists():
            _write_new(path, base64.b64encode(secrets.token_bytes(32)) + b"\n")
        with os.fdopen(open_file(path), "rb") as file:
            found = os.fstat(file.fileno())
            content = file.read(_MOST_BYTES + 1).strip()
    except OSError as error:
        raise ConfigError(f"{shown}: cannot be read: {error.strerror or error}") from error
    if found.st_mode & 0o077:
        raise ConfigError(f"{shown}: mode {found.st_mode & 0o777:04o} gives other users access; run chmod 0600 on it")
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{shown}: belongs to another user; the owner must be the daemon's user or root")
    if not _LEAST_BYTES <= len(content) <= _MOST_BYTES:
        raise ConfigError(f"{shown}: has {len(content):,} bytes; expected {_LEAST_BYTES} to {_MOST_BYTES:,}")
    return content


def _write_new(path: Path, content: bytes) -> None:
    """Make the file complete or not at all: another daemon may make it at the same time, and the first one wins."""
    made = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(made, path)
        except FileExistsError:
            return
    finally:
        made.unlink()
