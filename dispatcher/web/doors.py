"""The doors of a user's daemons on this host: Unix sockets named `NAME-PID.sock`. Needs no extra.

A socket appears by a rename, once it listens. One that refuses connections was therefore left behind by a killed
process, and `remove_stale` may remove it at any time.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dispatcher.errors import ConfigError
from dispatcher.util.registry import Numbers
from dispatcher.util.terminal import one_line

_SOCKET: Final = re.compile(r"(?P<name>.+)-(?P<pid>[0-9]{1,19})\.sock")
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME: Final = 40
_DRAFT: Final = ".draft"
_LONGEST_PATH: Final = 107
"""Longest path of a Unix socket that the system accepts, in bytes."""
_ANSWER_S: Final = 1.0

_numbers: Final = Numbers()


@dataclass(frozen=True, order=True)
class Door:
    """A daemon's socket, and what its file name says. The daemon may have ended since."""

    name: str
    pid: int
    path: Path


def door_folder() -> Path:
    """The folder of the doors of this process's user: the first of `_folders` whose parent belongs to the user."""
    *by_login, fallback = _folders()
    return next((folder for folder in by_login if _is_own_folder(folder.parent)), fallback)


def socket_path(name: str) -> Path:
    """The path of the door of this process's service `name`."""
    plain = _FOREIGN.sub("_", name)[:_LONGEST_NAME] or "daemon"
    return door_folder() / f"{plain}-{os.getpid()}.sock"


def find_doors() -> list[Door]:
    """Find this user's servers on this host, by name and process, in every folder a daemon can have chosen.

    `is_answering` is True if a daemon still listens on the socket.
    """
    return sorted({door for folder in _folders() for door in _doors_in(folder)})


def is_answering(path: Path) -> bool:
    """Whether a process listens on the socket. It connects to find out, and waits for at most a second."""
    return _connection_error(path) is None


def make_door_folder(folder: Path) -> None:
    """Make a door's folder, with mode 0700, unless it exists.

    Raises:
        ConfigError: it cannot be created, belongs to another user, or other users have access to it.
    """
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o700, parents=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(
            f"{one_line(str(folder))}: cannot create the door's folder: {error.strerror or error}; set web.socket_path"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ConfigError(
            f"{one_line(str(folder))}: not a folder of the daemon's own user; remove it, or set web.socket_path"
        )
    if found.st_mode & 0o077:
        raise ConfigError(
            f"{one_line(str(folder))}: the door's folder has mode {found.st_mode & 0o777:04o}, so other users could "
            f"reach in; run chmod 0700 on it, or set web.socket_path"
        )


def remove_stale(folder: Path) -> list[Path]:
    """Remove the folder's sockets on which no process listens, and the drafts of processes that have ended."""
    removed = []
    for door in _doors_in(folder):
        if isinstance(_connection_error(door.path), ConnectionRefusedError) and _unlink(door.path):
            removed.append(door.path)
    for draft in folder.glob(f"{_DRAFT}*-*.sock"):
        found = _SOCKET.fullmatch(draft.name)
        if found is not None and not _is_process(int(found["pid"])) and _unlink(draft):
            removed.append(draft)
    return removed


def listen_at(path: Path, backlog: int) -> socket.socket:
    """A listening socket of mode 0600 at `path`, in a folder of mode 0700 that is created if it does not exist.

    It replaces a socket on which no process listens. In a folder of doors, other stale sockets are removed as well.

    Raises:
        ConfigError: the folder or the path cannot be used, or another process listens on the path.
    """
    shown = one_line(str(path))
    draft = path.with_name(f"{_DRAFT}{_numbers.next()}-{os.getpid()}.sock")
    if max(len(os.fsencode(path)), len(os.fsencode(draft))) > _LONGEST_PATH:
        raise ConfigError(f"web.socket_path {shown}: too long; choose a path of at most 80 bytes")
    make_door_folder(path.parent)
    if path.parent in _folders():  # in another folder, sockets with such names may be other programs'
        remove_stale(path.parent)
    if path.is_socket() and not isinstance(_connection_error(path), ConnectionRefusedError):
        raise ConfigError(f"web.socket_path {shown}: another process listens there; choose another path")
    if (path.exists() or path.is_symlink()) and not path.is_socket():
        raise ConfigError(
            f"web.socket_path {shown}: a file that is not a socket is in the way; choose another path, or remove it"
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # Linux gives the file the mode of the socket
        listener.bind(str(draft))
        draft.chmod(0o600)
        listener.listen(backlog)
        draft.rename(path)
    except OSError as error:
        listener.close()
        _unlink(draft)
        reason = error.strerror or error
        raise ConfigError(f"web.socket_path {shown}: cannot listen there: {reason}; choose another path") from error
    return listener


def _folders() -> list[Path]:
    """Every folder in which a daemon of this user may have its door; its environment may have differed from ours.

    A runtime folder other than the login's is a choice: daemons and commands that share it see no others.
    """
    user = os.geteuid()
    at_login, chosen = Path(f"/run/user/{user}"), Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    if chosen.is_absolute() and chosen != at_login:
        folder = chosen / "dispatcher"
        if _is_own_folder(chosen) or _is_own_folder(folder):  # systemd makes the folder in its own /run
            return [folder]
    return [at_login / "dispatcher", Path(tempfile.gettempdir()) / f"dispatcher-{user}"]


def _is_own_folder(folder: Path) -> bool:
    try:
        found = folder.stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and os.access(folder, os.W_OK | os.X_OK)


def _doors_in(folder: Path) -> Iterator[Door]:
    with contextlib.suppress(OSError):
        if folder.stat().st_uid != os.geteuid():
            return
        for path in folder.iterdir():
            found = _SOCKET.fullmatch(path.name)
            if found is not None and not path.name.startswith(".") and path.is_socket():
                yield Door(found["name"], int(found["pid"]), path)


def _connection_error(path: Path) -> OSError | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_ANSWER_S)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return None  # its queue of connections is full: it listens
        except OSError as error:
            return error
    return None


def _is_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _unlink(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
