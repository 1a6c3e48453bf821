"""Checkpoints: their format, and a folder of them. Each has a file of its own, complete or absent; the last few stay.

A file has a header line with length and checksum, then JSON. The values of elements and the positions of inputs go
through a serializer. The default one writes JSON and rejects what JSON would alter, so reading a checkpoint runs no
foreign code. PickleSerializer accepts nearly everything and trusts the folder.

A file is written under another name, synced to the disk and renamed. So a process killed at any moment, or a machine
that loses power, leaves at worst an incomplete file that is never read and that the next store removes.

A restore takes the newest whole checkpoint. A file that is cut off, changed, not the checkpoint of its name, not a file
or not readable is logged and skipped. A whole checkpoint of another task, serializer or version is refused instead.

Threads: one at a time. A task reads on its own thread before it starts, and writes on one thread after that.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from dispatcher.util.files import FileLock, Permissions, PermissionsName, make_folder, read_file, replace_file
from dispatcher.util.functions import path_of
from pipeline.streaming.elements import StreamElement, StreamRecord, Watermark
from pipeline.streaming.errors import CheckpointError, DamagedCheckpointError
from pipeline.streaming.number_checks import require_number
from pipeline.streaming.task.serializers import JsonSerializer, Serializer

log: logging.Logger = logging.getLogger(__name__)

FORMAT: Final = "stream-task-checkpoint"
VERSION: Final = 1
_NAME: Final = re.compile(r"(checkpoint|savepoint)-([0-9]{1,18})(\.part)?")
_KEYS: Final = frozenset(
    ("id", "task", "taken_at_ms", "serializer", "input", "operators", "outputs", "output", "savepoint", "finished")
)
_LISTED: Final = 5
"""Damaged checkpoints that an error names."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a task between two of its mails."""

    checkpoint_id: int
    task: str
    """The task's name. Another task doesn't restore it."""
    taken_at_ms: int
    """When it was taken, by the task's processing-time service."""
    input_state: Any
    operator_states: list[list[StreamElement[Any]]] = field(default_factory=list)
    """For each operator, the head first, the elements taken in and not finished."""
    outputs: int = 0
    """Number of records emitted to the output, in this run and in those it continues."""
    output_state: Any = None
    is_savepoint: bool = False
    is_finished: bool = False
    """Whether the input had ended and everything was processed."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The work that a restored task repeats. Nothing else is lost or repeated."""

    checkpoint_id: int
    redone: tuple[StreamElement[Any], ...]
    """Unfinished elements of operators, which are processed again before new input."""
    outputs_before: int
    """Number of records the task had emitted by the checkpoint, counted from its first run. These aren't repeated.

    Later ones, which the ended run could have emitted, can be repeated. For every record exactly once, truncate the
    output to this number, or to its `output_state`, at each recovery.
    """
    output_state: Any = None
    """The result of the output's `snapshot_state` for the checkpoint."""
    is_finished: bool = False
    """Whether all input was processed and nothing is left to do."""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Recovery:
        """Return the recovery of this checkpoint."""
        return cls(
            checkpoint_id=checkpoint.checkpoint_id,
            redone=tuple(element for state in checkpoint.operator_states for element in state),
            outputs_before=checkpoint.outputs,
            output_state=checkpoint.output_state,
            is_finished=checkpoint.is_finished,
        )

    def __str__(self) -> str:
        if self.is_finished:
            return f"checkpoint {self.checkpoint_id} is of a finished task: nothing is done again"
        return (
            f"restored from checkpoint {self.checkpoint_id}: {len(self.redone)} elements are processed again, "
            f"outputs after number {self.outputs_before} may repeat"
        )


class CheckpointStorage:
    """The checkpoints of one task, in a dedicated folder, which is created when needed.

    The last `keep` checkpoints and all savepoints are kept. Files with other names are ignored.

    `permissions`: the users who can read the checkpoints: only their owner (private: 0600, new folders 0700), also the
        group, or everyone.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: int = 3,
        *,
        serializer: Serializer | None = None,
        permissions: PermissionsName = "private",
    ) -> None:
        require_number("keep", keep, least=1, whole=True)
        self.folder: Path = path_of(folder, "folder")
        self._keep = keep
        self._serializer = serializer or JsonSerializer()
        self._permissions = Permissions[permissions]
        self._lock: FileLock | None = None  # held while a task runs; that task's mailbox thread only
        self._damaged: set[Path] = set()  # skipped by `latest`: none of those that are kept; one thread at a time

    def acquire(self) -> None:
        """Lock the folder for a starting task. The system releases the lock when the process ends, however it ends.

        Raises:
            CheckpointError: another task, of this or another process, holds the folder, or it can't be created or
                locked.
        """
        try:
            make_folder(self.folder, self._permissions)
            self._lock = FileLock(self.folder / "lock", self._permissions.file_mode)
        except BlockingIOError as error:
            raise CheckpointError(
                f"another running task has its checkpoints in {self.folder}. "
                "Wait until it has ended, or give each task a folder of its own."
            ) from error
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot hold checkpoints: {error}. Give the task a folder.") from error

    def release(self) -> None:
        """Unlock the folder. Idempotent."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def next_id(self) -> int:
        """Return an id above all ids in the folder, including incomplete files."""
        return max((checkpoint_id for checkpoint_id, _ in self._files()), default=0) + 1

    def paths(self) -> list[Path]:
        """Return the files of checkpoints and savepoints, oldest first."""
        return [path for _, path in sorted(self._files()) if path.suffix != ".part"]

    def encode(self, checkpoint: Checkpoint) -> bytes:
        """Return the bytes for `write`, which share nothing with the checkpoint.

        Raises:
            CheckpointError: the serializer rejects a value. The message names the value and what to do.
        """
        dump = partial(_dump, self._serializer)
        body = {
            "version": VERSION,  # again: the checksum does not cover the header line
            "id": checkpoint.checkpoint_id,
            "task": checkpoint.task,
            "taken_at_ms": checkpoint.taken_at_ms,
            "serializer": self._serializer.name,
            "input": dump(checkpoint.input_state, "the input's state"),
            "operators": [
                [
                    [dump(entry[0], f"operator {index}"), entry[1]] if len(entry) == 2 else entry
                    for entry in elements_to_lists(elements)
                ]
                for index, elements in enumerate(checkpoint.operator_states)
            ],
            "outputs": checkpoint.outputs,
            "output": dump(checkpoint.output_state, "the output's state"),
            "savepoint": checkpoint.is_savepoint,
            "finished": checkpoint.is_finished,
        }
        try:
            data = json.dumps(body, separators=(",", ":")).encode("ascii")
        except (TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"checkpoint {checkpoint.checkpoint_id} cannot be written as JSON: {error}"
            ) from error
        return f"{FORMAT} {VERSION} {len(data)} {hashlib.sha256(data).hexdigest()}\n".encode("ascii") + data

    def write(self, checkpoint_id: int, data: bytes, *, is_savepoint: bool = False) -> Path:
        """Store an encoded checkpoint and remove old ones. Once this returns, it's on the disk.

        Raises:
            OSError: it couldn't be written. The earlier checkpoints are intact.
        """
        make_folder(self.folder, self._permissions)
        path = self.folder / f"{'savepoint' if is_savepoint else 'checkpoint'}-{checkpoint_id:08d}"
        replace_file(path, data, draft=path.with_suffix(".part"), mode=self._permissions.file_mode)
        self._remove_old()
        return path

    def load(self, path: Path) -> Checkpoint:
        """Read one file. Raises errors as `decode`.

        Raises:
            DamagedCheckpointError: also if it isn't a file, can't be read, or has another checkpoint than its name.
        """
        checkpoint = decode(_read(path), self._serializer, str(path))
        name = _NAME.fullmatch(path.name)
        if name is not None and int(name[2]) != checkpoint.checkpoint_id:
            raise DamagedCheckpointError(f"{path} holds checkpoint {checkpoint.checkpoint_id}: it is a stale copy")
        return checkpoint

    def latest(self, task: str | None = None) -> Checkpoint | None:
        """Return the newest whole checkpoint, or None if there never was one. Damaged ones are skipped with a warning.

        Raises:
            CheckpointError: all are damaged, or the newest whole one has another version, serializer or task.
        """
        damaged: list[str] = []
        for path in reversed(self.paths()):
            try:
                checkpoint = self.load(path)
            except DamagedCheckpointError as error:
                log.warning("%s. Trying the one before: more outputs may repeat", error)
                self._damaged.add(path)
                damaged.append(f"{path.name} ({str(error).removeprefix(f'{path} ')})")
                continue
            if task is not None and checkpoint.task != task:
                raise CheckpointError(
                    f"{path} is of task {checkpoint.task!r}, not of {task!r}. Give each task a folder of its own."
                )
            return checkpoint
        if damaged:
            more = f" and {len(damaged) - _LISTED} more" if len(damaged) > _LISTED else ""
            raise CheckpointError(
                f"no checkpoint in {self.folder} can be read: {', '.join(damaged[:_LISTED])}{more}. "
                "Restore the folder from a backup, or empty it to start from the beginning of the input."
            )
        return None

    def _files(self) -> Iterator[tuple[int, Path]]:
        if not self.folder.is_dir():
            return
        try:
            paths = list(self.folder.iterdir())
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be read: {error}") from error
        for path in paths:
            match = _NAME.fullmatch(path.name)
            if match is not None:
                yield int(match[2]), path

    def _remove_old(self) -> None:
        files = sorted(self._files())
        taken = [path for _, path in files if path.suffix != ".part" and path.name.startswith("checkpoint")]
        whole = [path for path in taken if path not in self._damaged]
        oldest = whole[-self._keep :][0] if whole else None  # of those that are kept
        parts = [path for _, path in files if path.suffix == ".part"]
        for path in (*(taken[: taken.index(oldest)] if oldest is not None else ()), *parts):
            if path.is_dir():
                continue  # not ours
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("%s is no longer needed and cannot be removed: %s", path, error)


def decode(data: bytes, serializer: Serializer, where: str) -> Checkpoint:
    """The checkpoint in a file's content; `where` names the file in errors.

    Raises:
        DamagedCheckpointError: the content was cut off or changed, or never was a checkpoint.
        CheckpointError: the content is whole, but of another version or serializer.
    """
    head, _, body = data.partition(b"\n")
    words = head.split(b" ")
    if words[0] != FORMAT.encode("ascii"):
        if FORMAT.encode("ascii").startswith(data[: len(FORMAT)]) or not data.strip(b"\0"):
            raise DamagedCheckpointError(f"{where} is cut off: {len(data)} bytes")
        raise DamagedCheckpointError(f"{where} is not a checkpoint: it begins with {data[:32]!r}, not with {FORMAT!r}")
    if words[2:] != [b"%d" % len(body), hashlib.sha256(body).hexdigest().encode("ascii")]:
        raise DamagedCheckpointError(f"{where} is damaged: {len(body)} bytes that do not match {head[:120]!r}")
    try:
        content = json.loads(body)
        # Every version has its number in the header and in the body; version 1 had none in the body at first.
        version = content.get("version", 1)
    except (ValueError, AttributeError, RecursionError) as error:
        raise DamagedCheckpointError(f"{where} is not a checkpoint: {error}") from error
    if words[1] != str(version).encode("ascii", "replace"):
        raise DamagedCheckpointError(f"{where} is damaged: its header {head[:120]!r} is of version {version}")
    if version != VERSION:
        raise CheckpointError(
            f"{where} has version {version} of the format; this release reads version {VERSION}. "
            "Run the release that wrote it, or give the task an empty folder."
        )
    return _checkpoint_of(content, serializer, where)


def _read(path: Path) -> bytes:
    """The content of a file. Never waits: what is not a file (a folder, a FIFO) is refused."""
    try:
        return read_file(path)
    except OSError as error:
        raise DamagedCheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


def elements_to_lists(elements: Iterable[StreamElement[Any]]) -> list[list[Any]]:
    """Elements as lists: [value, timestamp_ms] for a record, [timestamp_ms] for a watermark."""
    return [
        [element.timestamp_ms] if isinstance(element, Watermark) else [element.value, element.timestamp_ms]
        for element in elements
    ]


def elements_from_lists(lists: Iterable[list[Any]]) -> list[StreamElement[Any]]:
    return [Watermark(*entry) if len(entry) == 1 else StreamRecord(*entry) for entry in lists]


def _checkpoint_of(body: dict[str, Any], serializer: Serializer, where: str) -> Checkpoint:
    missing = _KEYS - body.keys()
    if missing:
        raise DamagedCheckpointError(f"{where} is not a checkpoint: it has no {', '.join(sorted(missing))}")
    if body["serializer"] != serializer.name:
        raise CheckpointError(
            f"{where} was written by serializer {body['serializer']!r}, and the storage has {serializer.name!r}. "
            f"Make the storage with the serializer that wrote it."
        )
    load = serializer.load
    try:
        return Checkpoint(
            checkpoint_id=body["id"],
            task=body["task"],
            taken_at_ms=body["taken_at_ms"],
            input_state=load(body["input"]),
            operator_states=[
                elements_from_lists([[load(entry[0]), entry[1]] if len(entry) == 2 else entry for entry in state])
                for state in body["operators"]
            ],
            outputs=body["outputs"],
            output_state=load(body["output"]),
            is_savepoint=body["savepoint"],
            is_finished=body["finished"],
        )
    except Exception as error:  # the checksum matched, so the serializer failed: a class was removed, for example
        raise CheckpointError(f"{where}: serializer {serializer.name!r} cannot read a value: {error!r}") from error


def _dump(serializer: Serializer, value: Any, where: str) -> Any:
    try:
        return serializer.dump(value)
    except Exception as error:
        raise CheckpointError(f"{where} cannot be stored by serializer {serializer.name!r}: {error}") from error
