"""A stream that a test runs as a program and kills in the middle of a micro-batch.

Each file of the source is a micro-batch of ten rows. The query looks up every row and logs it. As a program it hangs at
row 25, in the middle of the third micro-batch.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

from pipeline.spark import ordered_wait, spark_session

HANGS_AT = 25


def look_up(log: Path, hangs_at: int | None) -> Callable[[Row], Awaitable[tuple[int, str]]]:
    async def call(row: Row) -> tuple[int, str]:
        with log.open("a") as lines:
            lines.write(f"{row.id}\n")
        if row.id == hangs_at:
            await asyncio.Event().wait()
        return row.id, f"fact {row.id}"

    return call


def start_query(spark: SparkSession, folder: Path, hangs_at: int | None = None, **options: Any) -> StreamingQuery:
    """Reads `in`, writes `out` and the checkpoint, all in `folder`; ends once it has read all of `in`."""
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    facts = ordered_wait(stream, look_up(folder / "log", hangs_at), "id long, fact string", timeout=3600, **options)
    writer = facts.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.option("path", str(folder / "out")).trigger(availableNow=True).start()


if __name__ == "__main__":
    with spark_session("local[1]", "killed", {"spark.driver.memory": "512m"}) as session:
        start_query(session, Path(sys.argv[1]), HANGS_AT).awaitTermination()
