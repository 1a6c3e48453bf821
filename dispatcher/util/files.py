"""Files that are whole or not there after a crash, and locks between processes."""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # not POSIX: nothing keeps two processes apart there
    fcntl = None  # type: ignore[assignment]


def sync_folder(folder: Path) -> None:
    """Bring the folder's names to the disk; without this, a power failure may undo a rename."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, *, draft: Path, sync: bool = True) -> None:
    """Write the file under the name `draft`, in the same folder, then rename it. `sync`: once this returns, it is on
    the disk.

    Raises:
        OSError: it cannot be written. A file that was there stays as it was.
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
    """An exclusive lock on a file, which is made for it. The system releases it when the process ends, however it does.

    Raises:
        BlockingIOError: another process, or another lock of this one, holds it. OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        # The descriptor, which no child process inherits; -1: released. For one thread at a time.
        self._file = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.release()
            raise

    @property
    def is_released(self) -> bool:
        return self._file < 0

    def release(self) -> None:
        """Let others take it. Repeating it does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
