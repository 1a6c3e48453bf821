"""Storage of a streaming query's digests: one Parquet folder per micro-batch, exactly once even after a kill.

    ROOT/batch=17     the digest of batch 17
    ROOT/chunk=0      the merged digests of batches 0 to 31

Spark repeats an interrupted batch with the same rows and number, which replaces its folder. A folder is valid once
Spark has committed its batch, so readers never see half a batch, and nothing has to be undone. A chunk is written with
the last of its batches and becomes valid with it; without chunks, a long run would leave too many small files to read
in an acceptable time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

CHUNK = 32
"""Batches in a chunk; fixed for the life of a checkpoint."""

Step = Callable[[DataFrame], DataFrame]


class BatchStore:
    """Writes digests of micro-batches, and reads the committed ones. Picklable: with Spark Connect, the server writes.

    root: folder of the batches, on a file system that this process and Spark see under the same path.
    checkpoint: checkpoint folder of the writing query.
    schema: of a micro-batch.
    digest: computes the digest of a micro-batch's rows.
    merge: merges several digests into one; associative.
    """

    def __init__(self, root: Path, checkpoint: Path, schema: StructType, digest: Step, merge: Step) -> None:
        self.checkpoint = checkpoint
        self._root = root
        self._schema = schema
        self._digest = digest
        self._merge = merge

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write the digest of a batch; for `foreachBatch`."""
        # A digest reads its rows more than once, and they come from a stateful operator.
        rows.persist()
        try:
            self._write(self._digest(rows), f"batch={batch}")
        finally:
            rows.unpersist()
        if (batch + 1) % CHUNK == 0:
            self._write_chunk(rows.sparkSession, batch // CHUNK)

    def read(self, spark: SparkSession) -> DataFrame:
        """The merged digest of all committed batches."""
        last = self.last_batch()
        chunks = (last + 1) // CHUNK
        folders = [f"chunk={chunk}" for chunk in range(chunks)]
        return self._read(spark, [*folders, *(f"batch={batch}" for batch in range(chunks * CHUNK, last + 1))])

    def last_batch(self) -> int:
        """Number of the last committed batch, -1 before the first."""
        commits = self.checkpoint / "commits"
        numbers = [int(file.name) for file in commits.iterdir() if file.name.isdigit()] if commits.is_dir() else []
        return max(numbers, default=-1)

    def _write_chunk(self, spark: SparkSession, chunk: int) -> None:
        batches = range(chunk * CHUNK, (chunk + 1) * CHUNK)
        self._write(self._read(spark, [f"batch={batch}" for batch in batches]), f"chunk={chunk}")
        # Only the previous chunk's batches: a reader from before this chunk's commit still reads this chunk's batches.
        for batch in range(batches.start - CHUNK, batches.start):
            shutil.rmtree(self._root / f"batch={batch}", ignore_errors=True)

    def _write(self, rows: DataFrame, folder: str) -> None:
        rows.coalesce(1).write.mode("overwrite").parquet(str(self._root / folder))

    def _read(self, spark: SparkSession, folders: Sequence[str]) -> DataFrame:
        # With an explicit schema, Spark starts no job to infer it from the files.
        schema = self._digest(spark.createDataFrame([], self._schema)).schema
        if not folders:
            return self._merge(spark.createDataFrame([], schema))
        return self._merge(spark.read.schema(schema).parquet(*(str(self._root / folder) for folder in folders)))
