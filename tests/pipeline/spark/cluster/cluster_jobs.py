"""Runs every job of the library on the Spark of a master, in a process of its own, and prints what came back as JSON.

Arguments: the master, a journal, a log of YARN, an SQLite file with the table `item(id, name)`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from pipeline.lookup import SqliteTable
from pipeline.spark import (
    lookup_join,
    ordered_wait,
    read_journal,
    read_yarn_log,
    spark_session,
    task_failure,
    unordered_wait,
)

TIMEOUT_S = 120.0


def run(spark: SparkSession, journal: str, log: str, database: str) -> dict[str, Any]:
    numbers = spark.range(0, 8, 1, 2)

    async def half(row: Any) -> dict[str, float]:
        return {"half": row.id / 2}

    def refuse(row: Any) -> dict[str, float]:
        raise ValueError("refused")

    failure = "no row has failed"
    try:
        ordered_wait(numbers, refuse, "half double", timeout=TIMEOUT_S).collect()
    except Exception as error:
        failure = task_failure(error) or f"not found in: {error}"
    tables = read_journal(spark, journal)
    ordered = ordered_wait(numbers, half, "half double", timeout=TIMEOUT_S)
    unordered = unordered_wait(numbers, half, "half double", timeout=TIMEOUT_S)
    joined = lookup_join(numbers, SqliteTable(database, "item"), "id", "inner")
    return {
        "ordered": [row.half for row in ordered.collect()],
        "unordered": sorted(row.half for row in unordered.collect()),
        "joined": sorted([row.id, row.name] for row in joined.collect()),
        "events": tables.events.count(),
        "states": sorted({row.to_state for row in tables.transitions.where("machine = 'RMApp'").collect()}),
        "logged": [row.to_state for row in read_yarn_log(spark, log).transitions.orderBy("seq").collect()],
        "failure": failure,
        "zips": [entry for entry in sys.path if "central_dispatcher" in entry],
    }


if __name__ == "__main__":
    # A failed task need not be tried again; a server of Spark Connect brings its own settings.
    with spark_session(sys.argv[1], config={"spark.task.maxFailures": "1"}) as session:
        print(json.dumps(run(session, *sys.argv[2:])))
