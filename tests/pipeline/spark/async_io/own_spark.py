"""Jobs that a test runs on a Spark of their own, because they fail its tasks, interrupt it and kill it.

own_spark.py FOLDER PORT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import counting_service
import enriching_query
from pyspark import cloudpickle
from pyspark.sql import Observation, Row, SparkSession

from pipeline.spark import call_metrics, ordered_wait, spark_session, unordered_wait


def failing_once(folder: Path) -> Callable[[Row], Awaitable[tuple[int]]]:
    """Logs its calls. Each of two tasks fails in its first attempt."""

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


def main(session: SparkSession, folder: Path, port: int) -> None:
    calls = Observation()
    ordered_wait(session.range(0, 40, 1, 2), failing_once(folder), "id long", timeout=60, metrics=calls).collect()
    found = call_metrics(calls)
    counts = {name: getattr(found, name) for name in ("calls", "completed", "lost_attempts")}
    (folder / "counts.json").write_text(json.dumps(counts))
    try:
        asking = counting_service.AskService(port)
        unordered_wait(session.range(0, 50_000, 1, 1), asking, "id long", timeout=180).collect()
    except KeyboardInterrupt:
        (folder / "rows after the interrupt").write_text(str(session.range(3).count()))
    enriching_query.start_query(session, folder / "stream", enriching_query.HANGS_AT).awaitTermination()


if __name__ == "__main__":
    for module in (counting_service, enriching_query):
        cloudpickle.register_pickle_by_value(module)
    with spark_session("local[2, 3]", "own", {"spark.driver.memory": "512m"}) as session:
        main(session, Path(sys.argv[1]), int(sys.argv[2]))
