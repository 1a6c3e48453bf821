"""A query that a test runs as a program: each of two tasks fails in its first attempt, and Spark makes another one.

It prints what the driver knows of the calls. The calls log their rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from pyspark.sql import Observation, Row

from pipeline.spark import call_metrics, ordered_wait, spark_session


def logged(folder: Path) -> Callable[[Row], Awaitable[tuple[int]]]:
    async def call(row: Row) -> tuple[int]:
        with (folder / "log").open("a") as lines:
            lines.write(f"{row.id}\n")
        if row.id % 20 == 15:
            try:
                (folder / f"mark {row.id}").touch(exist_ok=False)
            except FileExistsError:
                return (row.id,)
            raise ValueError("in the first attempt")
        return (row.id,)

    return call


if __name__ == "__main__":
    with spark_session("local[2, 3]", "failing once", {"spark.driver.memory": "512m"}) as session:
        observation = Observation()
        rows = session.range(0, 40, 1, 2)
        ordered_wait(rows, logged(Path(sys.argv[1])), "id long", timeout=60, metrics=observation).collect()
        found = call_metrics(observation)
        print(json.dumps({name: getattr(found, name) for name in ("calls", "completed", "lost_attempts")}))
