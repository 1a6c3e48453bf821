"""What a streaming query keeps: for each micro-batch a folder of Parquet, exactly once whatever is killed.

    ROOT/batch=17     what batch 17 gave
    ROOT/chunk=0      what batches 0 to 31 gave, merged

Spark runs a batch that was cut off again, with the same rows and under the same number, and its folder is then
replaced. A folder counts once Spark has committed its batch, so nobody sees half a batch, and nothing has to be undone.
A chunk is written with the last of its batches and counts with it; without chunks, a long run would leave more small
files than can be read in an acceptable time.
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
    """Writes a query's micro-batches, and reads back what is committed. Pickles: with Spark Connect, the server writes.

    root: folder of the batches, on a file system that this process and Spark see under the same path.
    checkpoint: that of the query that writes.
    schema: of a micro-batch.
    digest: from the rows of one micro-batch what is kept of it.
    merge: what is kept of several batches from all that is kept of each; merging parts first changes nothing.
    """

    def __init__(self, root: Path, checkpoint: Path, schema: StructType, digest: Step, merge: Step) -> None:
        self.checkpoint = checkpoint
        self._root = root
        self._schema = schema
        self._digest = digest
        self._merge = merge

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """For `foreachBatch`: keep this batch."""
        # A digest looks at its rows more than once, and they come out of a stateful step.
        rows.persist()
        try:
            self._write(self._digest(rows), f"batch={batch}")
        finally:
            rows.unpersist()
        if (batch + 1) % CHUNK == 0:
            self._write_chunk(rows.sparkSession, batch // CHUNK)

    def read(self, spark: SparkSession) -> DataFrame:
        """What is kept of all batches that are committed by now."""
        last = self.last_batch()
        chunks = (last + 1) // CHUNK
        folders = [f"chunk={chunk}" for chunk in range(chunks)]
        return self._read(spark, [*folders, *(f"batch={batch}" for batch in range(chunks * CHUNK, last + 1))])

    def last_batch(self) -> int:
        """Number of the last batch that Spark has committed, -1 before the first."""
        commits = self.checkpoint / "commits"
        numbers = [int(file.name) for file in commits.iterdir() if file.name.isdigit()] if commits.is_dir() else []
        return max(numbers, default=-1)

    def _write_chunk(self, spark: SparkSession, chunk: int) -> None:
        batches = range(chunk * CHUNK, (chunk + 1) * CHUNK)
        self._write(self._read(spark, [f"batch={batch}" for batch in batches]), f"chunk={chunk}")
        # Of the chunk before: whoever began to read before this one was committed still reads its batches.
        for batch in range(batches.start - CHUNK, batches.start):
            shutil.rmtree(self._root / f"batch={batch}", ignore_errors=True)

    def _write(self, rows: DataFrame, folder: str) -> None:
        rows.coalesce(1).write.mode("overwrite").parquet(str(self._root / folder))

    def _read(self, spark: SparkSession, folders: Sequence[str]) -> DataFrame:
        # With the schema at hand, Spark starts no job to look for one in the files.
        schema = self._digest(spark.createDataFrame([], self._schema)).schema
        if not folders:
            return self._merge(spark.createDataFrame([], schema))
        return self._merge(spark.read.schema(schema).parquet(*(str(self._root / folder) for folder in folders)))
