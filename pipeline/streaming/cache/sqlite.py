"""Results in an SQLite file, shared by the processes of one machine.

The file is in WAL mode: readers do not wait, writers take turns, and a process that is killed leaves the file whole. A
commit survives the end of the process, but the latest may be lost if the machine crashes; their calls are then made
again. Beside the file are its `-wal` and `-shm`, and an empty file for each process that has it open.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dispatcher.errors import InvalidTypeError
from dispatcher.util.sqlite import Fault, connect, read_pragma, transaction, use_wal
from pipeline.sql import SQLITE
from pipeline.streaming.cache.owners import OwnerLock
from pipeline.streaming.cache.results import ResultCache
from pipeline.streaming.cache.store import CREATE, FORMAT, ResultStore
from pipeline.streaming.errors import ResultCacheAwayError, ResultCacheError
from pipeline.streaming.number_checks import require_number

log: logging.Logger = logging.getLogger(__name__)

_APPLICATION_ID: Final = 0x43445243
"""Marks the file as one of these caches."""
_RETRY_S: Final = 0.05
_OTHER_MACHINES: Final = frozenset(
    ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs", "lustre"]
)


@dataclass(frozen=True)
class SqliteResults(ResultCache):
    """Keeps results in an SQLite file, for the processes of one machine. Creates the file if necessary.

    `path`: relative to the driver's working directory. The folder must exist, on a local disk: SQLite's locks don't
        work on network file systems.
    `busy_timeout_s`: how long to wait for a turn to write.

    The other options are those of every cache: see ResultCache.
    """

    path: str | Path
    busy_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.path, str | os.PathLike) or not str(self.path):
            raise InvalidTypeError(f"path is {self.path!r}; give the path of a file.")
        require_number("busy_timeout_s", self.busy_timeout_s, least=0)
        object.__setattr__(self, "path", Path(self.path).absolute())

    @property
    def where(self) -> str:
        return f"the cache {self.path}"

    def connect(self, function: str) -> ResultStore:
        return SqliteStore(Path(self.path), self.where, function, self.busy_timeout_s)


class SqliteStore(ResultStore):
    def __init__(self, path: Path, where: str, function: str, busy_timeout_s: float) -> None:
        super().__init__(SQLITE, ("results",), function, where, uuid.uuid4().hex)
        self._busy_timeout_s = busy_timeout_s
        if not path.parent.is_dir():
            raise ResultCacheError(f"{where}: the folder {path.parent} does not exist. Make it, or give another path.")
        if (kind := file_system_of(path.parent)) in _OTHER_MACHINES:
            log.warning(
                "%s is on a network file system (%s), where SQLite's locks may not hold and the file may be damaged. "
                "Use a local disk, or PostgresResults.",
                where,
                kind,
            )
        with self._translated_errors():
            self._connection = connect(path, busy_timeout_s=busy_timeout_s)
        try:
            with self._translated_errors():
                self._prepare()
            self._lock = OwnerLock(path, self.owner)
        except OSError as error:
            self._connection.close()
            raise ResultCacheError(f"{where}: its folder cannot be written: {error}") from error
        except BaseException:
            self._connection.close()
            raise

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        with self._translated_errors(), transaction(self._connection):
            yield

    def alive(self, owners: Collection[str]) -> set[str]:
        return self._lock.alive(owners)

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        self._lock.close()

    def _execute(self, text: str, parameters: Sequence[Any]) -> tuple[list[tuple[Any, ...]], int]:
        with self._translated_errors():
            before = self._connection.total_changes  # a cursor's rowcount is -1 after WITH
            rows = self._connection.execute(text, parameters).fetchall()
            return rows, self._connection.total_changes - before

    def _prepare(self) -> None:
        """Check the file, or make the table in a new one."""
        if not self._is_new():
            self._check()
        mode = self._when_free(lambda: use_wal(self._connection, "NORMAL"))
        if mode != "wal":
            raise ResultCacheError(
                f"{self._where}: SQLite cannot use its WAL mode on this file system (it is in the mode {mode}). Use a "
                "local disk, or PostgresResults."
            )
        with self.step():
            if self._is_new():
                self._connection.execute(CREATE.format_map(self._words))
                self._connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                self._connection.execute(f"PRAGMA user_version = {FORMAT}")
        self._check()

    def _is_new(self) -> bool:
        count = self._when_free(lambda: self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone())
        return bool(count[0] == 0 and self._application_id() == 0)

    def _check(self) -> None:
        if self._application_id() != _APPLICATION_ID:
            raise ResultCacheError(
                f"{self._where}: the file is an SQLite database of another program. Give a path of its own."
            )
        found = read_pragma(self._connection, "user_version")
        self._check_format("file", found, "Give another path, or delete the file")

    def _application_id(self) -> int:
        return int(read_pragma(self._connection, "application_id"))

    def _when_free(self, work: Callable[[], Any]) -> Any:
        """Do what SQLite refuses at once, without its own wait, while another process opens the file."""
        deadline_s = time.monotonic() + self._busy_timeout_s
        pause = threading.Event()
        while True:
            try:
                with self._translated_errors():
                    return work()
            except ResultCacheAwayError:
                if time.monotonic() >= deadline_s:
                    raise
            pause.wait(_RETRY_S)

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise SQLite's errors as this package's, which name the file and say what to do."""
        try:
            yield
        except sqlite3.Error as error:
            if SQLITE.is_passing(error):
                raise ResultCacheAwayError(
                    f"{self._where}: another process has locked it for {self._busy_timeout_s:g} s ({error})"
                ) from error
            raise ResultCacheError(f"{self._where}: {_advice(error)}") from error


def _advice(error: sqlite3.Error) -> str:
    match Fault.of(error):
        case Fault.DAMAGED | Fault.NO_DATABASE:
            return (
                f"the file is damaged, or not an SQLite database ({error}). Give another path; or delete the file with "
                "its -wal and -shm, and the calls are made again."
            )
        case Fault.NOT_OPENED | Fault.NOT_ALLOWED:
            return f"this user cannot open and write the file ({error})."
        case Fault.DISK_FULL:
            return f"the disk is full ({error})."
    return str(error)


def file_system_of(folder: Path, mounts: str = "/proc/self/mounts") -> str:
    """The type of the file system that holds `folder`, such as "ext4"; "" where the system does not tell."""
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    real = str(folder.resolve())
    best, kind = "", ""
    for line in lines:
        _, point, name, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        is_above = real == point or real.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best):  # of two mounts on one point, the later hides the other
            best, kind = point, name
    return kind
