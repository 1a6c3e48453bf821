"""Tokens of users: a file with a line `name role sha256-of-token` for each, which only its owner may read."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dispatcher.errors import ConfigError
from dispatcher.util.files import open_file
from dispatcher.util.foreign import tell
from dispatcher.util.terminal import one_line
from dispatcher.web.config import ROLES, RoleName
from dispatcher.web.security import Principal

log: logging.Logger = logging.getLogger(__name__)

MOST_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9._@+-]{1,100}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SETTLED_NS: Final = 2_000_000_000
"""A file that was changed less than this before it was read may change again without a new time stamp."""


@dataclass(frozen=True, slots=True)
class TokenLine:
    """One line of a tokens file. `digest`: the SHA-256 of the token, in hex."""

    name: str
    role: RoleName
    digest: str

    def __str__(self) -> str:
        return f"{self.name} {self.role} {self.digest}"


def new_token(name: str, role: RoleName) -> tuple[str, TokenLine]:
    """A new token of 256 random bits, and its line.

    Raises:
        ConfigError: the name has other characters than letters, digits and `._@+-`, or more than 100.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"token name {one_line(name, 200)!r}: use up to 100 letters, digits and . _ @ + -")
    token = secrets.token_urlsafe(32)
    return token, TokenLine(name, role, digest_of(token))


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def add_line(path: Path, line: TokenLine) -> None:
    """Append a line to a tokens file, which is made with mode 0600 if it does not exist.

    Raises:
        ConfigError: the file is not a sound tokens file, or others may read it. OSError: it cannot be written.
    """
    if path.exists() or path.is_symlink():
        read_lines(path)
    descriptor = open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        is_whole = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
        file.write(f"{'' if is_whole else os.linesep}{line}\n".encode())


def read_lines(path: Path) -> list[TokenLine]:
    """The lines of a tokens file. Empty lines, and lines that begin with #, are skipped.

    Raises:
        ConfigError: it cannot be read, others may read it, or a line is malformed. No content is in the message.
    """
    shown = f"web.tokens_file {one_line(str(path))}"
    try:
        with os.fdopen(open_file(path), "rb") as file:
            found = os.fstat(file.fileno())
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{shown}: cannot be read: {error.strerror or error}") from error
    if found.st_mode & 0o077:
        raise ConfigError(f"{shown}: mode {found.st_mode & 0o777:04o} gives other users access; run chmod 0600 on it")
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{shown}: belongs to another user; the owner must be the daemon's user or root")
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{shown}: is larger than {MOST_BYTES:,} bytes")
    lines = []
    for number, raw in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if raw.strip() and not raw.lstrip().startswith("#"):
            lines.append(_parsed(raw.split(), f"{shown}, line {number}"))
    return lines


def _parsed(parts: list[str], where: str) -> TokenLine:
    if len(parts) != 3 or not _NAME.fullmatch(parts[0]) or not _DIGEST.fullmatch(parts[2].lower()):
        raise ConfigError(f"{where}: expected `name role sha256-of-token`, as `dispatcher token new` prints it")
    role = next((each for each in ROLES if each == parts[1]), None)
    if role is None:
        raise ConfigError(f"{where}: {one_line(parts[1], 100)} is not a role; expected one of {', '.join(ROLES)}")
    return TokenLine(parts[0], role, parts[2].lower())


class Tokens:
    """The tokens of a file, read again when it changes. One thread at a time.

    While the file is unsound, no token is valid; the reason is logged once.

    Raises:
        ConfigError: the file is unsound when this is made.
    """

    def __init__(self, path: Path, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = path
        self._now_ns = now_ns
        self._complaint = ""  # the last that was logged
        self._version: tuple[int, ...] | None = None  # of the file, as it was read; None: read it again
        self._lines: list[TokenLine] = []
        self._read()

    def find(self, token: str) -> Principal | None:
        """The user of a token."""
        digest = digest_of(token)
        self._refresh()
        found = None
        for line in self._lines:  # all of them: the time taken must not tell which line it was
            if hmac.compare_digest(line.digest, digest):
                found = found or Principal(line.name, line.role)
        return found

    def role_of(self, name: str) -> RoleName | None:
        """The role in the first line of a name."""
        self._refresh()
        return next((line.role for line in self._lines if line.name == name), None)

    def _refresh(self) -> None:
        if self._version is not None and self._version == self._current_version():
            return
        try:
            self._read()
            self._complaint = ""
        except ConfigError as error:
            self._lines, self._version = [], None
            if str(error) != self._complaint:
                self._complaint = str(error)
                tell(log, logging.ERROR, "%s. No token is valid until the file is sound again.", error)

    def _read(self) -> None:
        version, read_at_ns = self._current_version(), self._now_ns()
        self._lines = read_lines(self._path)
        is_settled = version is not None and read_at_ns - version[0] > _SETTLED_NS
        self._version = version if is_settled else None

    def _current_version(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size, found.st_mode, found.st_uid
