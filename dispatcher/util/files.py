"""Files that are complete or absent after a crash, and locks between processes."""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # not POSIX: no lock between processes there
    fcntl = None  # type: ignore[assignment]


def sync_folder(folder: Path) -> None:
    """Write the folder's entries to the disk; without this, a power failure may undo a rename."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, *, draft: Path, sync: bool = True) -> None:
    """Write `data` to `draft`, in the same folder, then rename it. With `sync`, the file is on the disk on return.

    Raises:
        OSError: the file cannot be written. An existing file stays unchanged.
    """
    with draft.open("wb") as file:
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    draft.replace(path)
    if sync:
        sync_folder(path.parent)


class FileLock:
    """An exclusive lock on a file, which it creates. The system releases the lock however the process ends.

    Raises:
        BlockingIOError: another process, or another lock of this one, holds it. OSError: the file cannot be created.
    """

    def __init__(self, path: Path) -> None:
        # The descriptor, which child processes do not inherit; -1: released. One thread at a time.
        self._file = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock. Repeating it does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
