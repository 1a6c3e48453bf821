"""Storage of a followed journal's digests: a folder for each micro-batch, exactly once even after a kill.

    ROOT/batch=17           the digest of batch 17
    ROOT/batches=0-31       the merged digests of batches 0 to 31
    ROOT/batches=0-1023     32 of those, merged

Spark repeats an interrupted batch with the same segments and number, which replaces its folder. A folder is valid once
Spark has committed its batch, so readers never see half a batch, and nothing has to be undone. Merged digests are
written with the last of their batches and become valid with it; without them, a long run would leave too many small
files to read in an acceptable time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame

CHUNK: Final = 32
"""Digests that are merged into one; fixed for the life of a checkpoint."""


class DigestStore:
    """Writes digests of micro-batches, and lists the committed ones. Picklable: with Spark Connect, the server writes.

    root: folder of the digests, on a file system that this process and Spark see under the same path.
    checkpoint: checkpoint folder of the writing query.
    digest: writes the digest of a micro-batch's rows to a new folder.
    merge: merges digests, in their order, into one in a new folder.
    """

    def __init__(
        self,
        root: Path,
        checkpoint: Path,
        digest: Callable[[DataFrame, Path], None],
        merge: Callable[[Sequence[Path], Path], None],
    ) -> None:
        self.checkpoint = checkpoint
        self._root = root
        self._digest = digest
        self._merge = merge

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write the digest of a batch; for `foreachBatch`."""
        self._digest(rows, self._new(batch, 1))
        size, end = CHUNK, batch + 1
        while end % size == 0:
            merged = self._new(end - size, size)
            part = size // CHUNK
            self._merge([self._folder(first, part) for first in range(end - size, end, part)], merged)
            # Only what was merged before: a reader from before this batch's commit still reads the parts.
            for first in range(end - 2 * size, end - size, part):
                shutil.rmtree(self._folder(first, part), ignore_errors=True)
            size *= CHUNK

    def committed(self) -> list[Path]:
        """The folders that hold the digests of all committed batches, in order."""
        end, first = self.last_batch() + 1, 0
        folders = []
        while first < end:
            size = 1
            while first % (size * CHUNK) == 0 and first + size * CHUNK <= end:
                size *= CHUNK
            folders.append(self._folder(first, size))
            first += size
        return folders

    def last_batch(self) -> int:
        """Number of the last committed batch, -1 before the first."""
        commits = self.checkpoint / "commits"
        numbers = [int(file.name) for file in commits.iterdir() if file.name.isdigit()] if commits.is_dir() else []
        return max(numbers, default=-1)

    def _new(self, first: int, number: int) -> Path:
        folder = self._folder(first, number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def _folder(self, first: int, number: int) -> Path:
        return self._root / (f"batch={first}" if number == 1 else f"batches={first}-{first + number - 1}")
