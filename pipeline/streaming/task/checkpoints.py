"""Checkpoints in a folder: each in a file of its own, complete or absent; the last few are kept.

A file is written under another name, synced to the disk and renamed. So a process killed at any moment, or a machine
that loses power, leaves at worst an incomplete file that is never read and that the next store removes.

Threads: one at a time. A task reads on its own thread before it starts, and writes on one thread after that.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dispatcher.util.files import FileLock, replace_file
from pipeline.streaming.elements import StreamElement
from pipeline.streaming.errors import CheckpointError, DamagedCheckpointError
from pipeline.streaming.task.checkpoint_format import Checkpoint, JsonSerializer, Serializer, decode, encode

log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"(checkpoint|savepoint)-(\d+)(\.part)?")


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a restored task repeats. It neither loses nor repeats anything else."""

    checkpoint_id: int
    redone: tuple[StreamElement[Any], ...]
    """The elements that operators had not finished; they are processed again before new input."""
    outputs_before: int
    """Records the task had emitted by the checkpoint, counted from its first run: these are not repeated.

    Later ones, which only the ended run may have emitted, may be repeated. An output that each recovery truncates to
    this number, or to its own `output_state`, has every record exactly once.
    """
    output_state: Any = None
    """What the output's `snapshot_state` returned for the checkpoint."""
    is_finished: bool = False
    """All input had been processed: nothing is left to do."""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Recovery:
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
    """The checkpoints of one task, in a folder of its own, which is created when needed.

    The last `keep` checkpoints and all savepoints are kept. Files with other names are ignored.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 3, *, serializer: Serializer | None = None) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least 1 checkpoint must stay to restore from")
        self.folder = Path(folder)
        self._keep = keep
        self._serializer = serializer or JsonSerializer()
        self._lock: FileLock | None = None  # held while a task runs; that task's mailbox thread only

    def acquire(self) -> None:
        """Lock the folder for a task that starts. The system releases the lock when the process ends, however it ends.

        Raises:
            CheckpointError: another task, of this or another process, holds the folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = FileLock(self.folder / "lock")
        except BlockingIOError as error:
            raise CheckpointError(
                f"another running task has its checkpoints in {self.folder}. "
                "Wait until it has ended, or give each task a folder of its own."
            ) from error

    def release(self) -> None:
        """Unlock the folder. Idempotent."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def next_id(self) -> int:
        """An id above all ids in the folder, including incomplete files."""
        return max((checkpoint_id for checkpoint_id, _ in self._files()), default=0) + 1

    def paths(self) -> list[Path]:
        """The files of checkpoints and savepoints, oldest first."""
        return [path for _, path in sorted(self._files()) if path.suffix != ".part"]

    def encode(self, checkpoint: Checkpoint) -> bytes:
        """The bytes for `write`, which share nothing with the checkpoint.

        Raises:
            CheckpointError: the serializer rejects a value; the message says which and what to do.
        """
        return encode(checkpoint, self._serializer)

    def write(self, checkpoint_id: int, data: bytes, *, is_savepoint: bool = False) -> Path:
        """Store an encoded checkpoint and remove those that are too old. Once this returns, it is on the disk.

        Raises:
            OSError: it could not be written. The earlier checkpoints are intact.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{'savepoint' if is_savepoint else 'checkpoint'}-{checkpoint_id:08d}"
        replace_file(path, data, draft=path.with_suffix(".part"))
        self._remove_old()
        return path

    def store(self, checkpoint: Checkpoint) -> Path:
        """`encode` and `write`."""
        return self.write(checkpoint.checkpoint_id, self.encode(checkpoint), is_savepoint=checkpoint.is_savepoint)

    def load(self, path: Path) -> Checkpoint:
        """Read one file; errors as `decode`."""
        return decode(path.read_bytes(), self._serializer, str(path))

    def latest(self, task: str | None = None) -> Checkpoint | None:
        """The newest intact checkpoint; None if there never was one. Damaged ones are skipped with a warning.

        Raises:
            CheckpointError: all are damaged, or the newest intact one has another format, version, serializer or task.
        """
        damaged: list[str] = []
        for path in reversed(self.paths()):
            try:
                checkpoint = self.load(path)
            except DamagedCheckpointError as error:
                log.warning("%s. Trying the one before: more outputs may repeat", error)
                damaged.append(path.name)
                continue
            if task is not None and checkpoint.task != task:
                raise CheckpointError(
                    f"{path} is of task {checkpoint.task!r}, not of {task!r}. Give each task a folder of its own."
                )
            return checkpoint
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self.folder} can be read: {', '.join(damaged)}. "
                "Restore the folder from a backup, or empty it to start from the beginning of the input."
            )
        return None

    def _files(self) -> Iterator[tuple[int, Path]]:
        if not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is not None:
                yield int(match[2]), path

    def _remove_old(self) -> None:
        files = sorted(self._files())
        whole = [path for _, path in files if path.suffix != ".part" and path.name.startswith("checkpoint")]
        parts = [path for _, path in files if path.suffix == ".part"]
        for path in (*whole[: -self._keep], *parts):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("%s is no longer needed and cannot be removed: %s", path, error)
