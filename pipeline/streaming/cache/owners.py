"""Which owners of a file live: each holds a lock on a file of its own, which the system releases when a process ends.

The locks are `flock`'s: they hold among all processes of one machine, in containers too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from dispatcher.util.registry import Registry

_MARK: Final = "-owner-"


class OwnerLock:
    """Holds the lock of `owner`, and looks whether other owners hold theirs. One thread at a time.

    The locks are files next to `path`. The name of an owner is unique.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self._path = path
        self._owner = owner
        self._file = self._file_of(owner)
        self._descriptor = _locked(self._file)
        self._pid = os.getpid()
        _locks.add(self)
        self._remove_dead()

    def alive(self, owners: Collection[str]) -> set[str]:
        return {owner for owner in owners if owner == self._owner or not _is_dead(self._file_of(owner))}

    def close(self) -> None:
        if self._descriptor >= 0:
            if os.getpid() == self._pid:
                _remove(self._file)
            self.forsake()

    def forsake(self) -> None:
        """In a forked child: the lock is the parent's alone."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _file_of(self, owner: str) -> Path:
        return self._path.with_name(f"{self._path.name}{_MARK}{owner}")

    def _remove_dead(self) -> None:
        for file in self._path.parent.iterdir():
            if file.name.startswith(f"{self._path.name}{_MARK}"):
                _is_dead(file)


def _locked(file: Path) -> int:
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Another process may have found the file before it was locked, and removed it.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(file.stat(), os.fstat(descriptor)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_dead(file: Path) -> bool:
    """Whether no process has the lock; then its file is removed, if this user may."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # another user's, which this one cannot read
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        _remove(file)
        return True
    finally:
        os.close(descriptor)


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):  # a file without a lock says no more than none
        file.unlink(missing_ok=True)


_locks: Registry[OwnerLock] = Registry()  # of this process


def _after_fork() -> None:
    for lock in _locks.all():
        lock.forsake()


os.register_at_fork(after_in_child=_after_fork)
