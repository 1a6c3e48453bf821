"""Files that are complete or absent after a crash, who may read them, and locks between processes.

What a folder holds under a file's name may be anything: a FIFO would block whoever opens it, a device may act on it.
`open_file` opens regular files only, and never waits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from enum import Enum
from pathlib import Path
from typing import Final, Literal

from dispatcher.util.forks import let_go_in_children, no_fork

try:
    import fcntl
except ImportError:  # not POSIX: no lock between processes there
    fcntl = None  # type: ignore[assignment]

PRIVATE_FILE: Final = 0o600
ASIDE: Final = ".aside"
"""What is added to the name of a file that was set aside."""
_NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_KINDS: Final = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

PermissionsName = Literal["private", "group", "everyone"]
"""The names of `Permissions`, for configuration."""


class Permissions(Enum):
    """Who may read the files that a program makes. Only their owner may ever write them."""

    private = (0o600, 0o700)
    group = (0o640, 0o750)
    everyone = (0o644, 0o755)

    def __init__(self, file_mode: int, folder_mode: int) -> None:
        self.file_mode = file_mode
        self.folder_mode = folder_mode

    @classmethod
    def of_file(cls, path: Path) -> Permissions:
        """The permissions with which the file may have been made; private if it does not exist."""
        try:
            mode = path.stat().st_mode
        except OSError:
            return cls.private
        return cls.everyone if mode & 0o004 else cls.group if mode & 0o040 else cls.private


def make_folder(path: Path, permissions: Permissions = Permissions.private) -> None:
    """Make the folder and its missing parents, each with these permissions. One that exists stays as it is.

    Raises:
        OSError: it cannot be made, or is a file.
    """
    if not path.parent.exists():
        make_folder(path.parent, permissions)
    try:
        path.mkdir(permissions.folder_mode)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        if permissions is not Permissions.private:  # a strict umask must not undo what was asked for
            path.chmod(permissions.folder_mode | path.stat().st_mode & stat.S_ISGID)


def open_file(path: Path, flags: int = os.O_RDONLY, mode: int = PRIVATE_FILE) -> int:
    """A descriptor of a regular file; child processes do not inherit it. Never waits for another process.

    With O_CREAT, a file that did not exist gets `mode`; beyond PRIVATE_FILE also against the umask.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    is_new = bool(flags & os.O_CREAT) and not path.exists()
    try:
        descriptor = os.open(path, flags | _NO_WAIT, mode)
    except OSError as error:
        _refuse_other_kinds(path, error)
        raise
    try:
        found = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(found):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found):
            raise _not_a_file(path, found)
        if is_new and mode & ~PRIVATE_FILE & ~found:
            os.fchmod(descriptor, mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_file(path: Path) -> None:
    """Raises OSError as `open_file`, without opening the file, if there is something else under its name."""
    with contextlib.suppress(FileNotFoundError):
        found = path.stat().st_mode
        if not (stat.S_ISREG(found) or stat.S_ISDIR(found)):
            raise _not_a_file(path, found)


def read_file(path: Path, limit: int = -1) -> bytes:
    """The content of a regular file, or its first `limit` bytes. Raises OSError as `open_file`."""
    with open(open_file(path), "rb") as file:
        return file.read(limit)


def sync_folder(folder: Path) -> None:
    """Write the folder's entries to the disk; without this, a power failure may undo a rename."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, *, draft: Path, sync: bool = True, mode: int = PRIVATE_FILE) -> None:
    """Write `data` to `draft`, in the same folder, then rename it. With `sync`, the file is on the disk on return.

    A file that root replaces keeps its owner.

    A signal handler may fork meanwhile, and return in the child as well: the file is the parent's to write.

    Raises:
        OSError: the file cannot be written. An existing file stays unchanged.
    """
    process = os.getpid()
    draft.unlink(missing_ok=True)  # left by a crash, perhaps with other permissions
    os.close(open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    with draft.open("wb", buffering=0) as file:  # a child has no buffer of it to flush
        _keep_owner(path, file.fileno())
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]
        if sync:
            os.fsync(file.fileno())
    if os.getpid() != process:
        raise InterruptedError(errno.EINTR, "this process was forked during the write", str(path))
    draft.replace(path)
    if sync:
        sync_folder(path.parent)


def set_aside(path: Path) -> Path:
    """Rename a file so that nothing reads it any longer: `NAME.aside`, `NAME.aside-2` and so on. Returns the new path.

    A dot at the beginning of its name goes, so that listings show it. Called by one process at a time.

    Raises:
        OSError: it cannot be renamed.
    """
    name = f"{path.name.removeprefix('.')}{ASIDE}"
    aside, number = path.with_name(name), 1
    while aside.exists() or aside.is_symlink():
        number += 1
        aside = path.with_name(f"{name}-{number}")
    path.rename(aside)
    return aside


def explain(error: OSError, folder: Path) -> str:
    """What is wrong, and with which file if it is one of the folder."""
    name = Path(error.filename).name if isinstance(error.filename, str) and error.filename else ""
    is_inside = bool(name) and Path(error.filename).parent == folder
    return f"{error.strerror or error}{f' ({name})' if is_inside else ''}"


class FileLock:
    """An exclusive lock on a file, which it creates. The system releases the lock however the process ends.

    A forked child does not hold it: it closes its copy of the descriptor.

    Raises:
        BlockingIOError: another process, or another lock of this one, holds it. OSError: the file cannot be created.
    """

    def __init__(self, path: Path, mode: int = PRIVATE_FILE) -> None:
        with no_fork():
            # The descriptor, which programs that are executed do not inherit; -1: released. One thread at a time.
            self._file = open_file(path, os.O_CREAT | os.O_RDWR, mode)
            let_go_in_children(self)
        try:
            if fcntl is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock. Repeating it does nothing."""
        if self._file >= 0:
            if fcntl is not None:
                with contextlib.suppress(OSError):  # closing unlocks it as well, unless a new child has a copy yet
                    fcntl.flock(self._file, fcntl.LOCK_UN)
            self._close()

    def after_fork(self) -> None:
        """In a forked child. Closing, unlike unlocking, leaves the parent its lock."""
        if self._file >= 0:
            self._close()

    def _close(self) -> None:
        os.close(self._file)
        self._file = -1


def _keep_owner(path: Path, descriptor: int) -> None:
    """Give a file to the owner of the one that it replaces, if root writes it: a repair must not lock the owner out."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        with contextlib.suppress(OSError):
            owned = path.stat()
            os.fchown(descriptor, owned.st_uid, owned.st_gid)


def _refuse_other_kinds(path: Path, error: OSError) -> None:
    """Of an `open` that failed: raise a clearer error if it failed because the path is no file."""
    if error.errno not in (errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP):
        return
    with contextlib.suppress(FileNotFoundError):
        found = path.stat().st_mode
        if not stat.S_ISREG(found):
            raise _not_a_file(path, found) from error


def _not_a_file(path: Path, mode: int) -> OSError:
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
    return OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
