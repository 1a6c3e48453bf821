"""A stream whose rows are looked up, each file of ten a micro-batch. It may hang in the middle of the third."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

from pipeline.spark import ordered_wait

TIMEOUT_S = 120.0
FILES = 4
ROWS_PER_FILE = 10
HANGS_AT = 25


def with_source(folder: Path, files: int = FILES) -> Path:
    """Put a source of `files` micro-batches and an empty log into the folder; returns the folder."""
    (folder / "in").mkdir(parents=True)
    for number in range(files):
        file = folder / "in" / f"{number}.json"
        first = number * ROWS_PER_FILE
        file.write_text("".join(json.dumps({"id": i}) + "\n" for i in range(first, first + ROWS_PER_FILE)))
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads them in this order
    (folder / "log").touch()
    return folder


def look_up(log: Path, hangs_at: int | None) -> Callable[[Row], Awaitable[tuple[int, str]]]:
    """Logs each row."""

    async def call(row: Row) -> tuple[int, str]:
        with log.open("a") as lines:
            lines.write(f"{row.id}\n")
        if row.id == hangs_at:
            await asyncio.Event().wait()
        return row.id, f"fact {row.id}"

    return call


def read(spark: SparkSession, folder: Path) -> Any:
    return spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(folder / "in"))


def written(rows: Any, folder: Path) -> StreamingQuery:
    """Start to write `out` and the checkpoint; ends once all of `in` is read."""
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query: StreamingQuery = writer.option("path", str(folder / "out")).trigger(availableNow=True).start()
    return query


def start_query(spark: SparkSession, folder: Path, hangs_at: int | None = None, **options: Any) -> StreamingQuery:
    function = look_up(folder / "log", hangs_at)
    return written(ordered_wait(read(spark, folder), function, "id long, fact string", timeout=3600, **options), folder)


def finish(query: StreamingQuery) -> list[StreamingQueryProgress]:
    """Await the end of the query; returns its micro-batches and idle times."""
    try:
        assert query.awaitTermination(int(TIMEOUT_S))
        return query.recentProgress
    finally:
        query.stop()
