"""Writes a report on a cluster, twice, and prints the seconds of the second: MASTER JOURNAL FOLDER WORKERS."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pipeline.spark import prepare_executors, spark_session, write_report
from pipeline.spark.executors import registered_cores


def main(master: str, journal: Path, folder: Path, workers: int) -> None:
    settings = {"spark.executor.memory": "512m", "spark.scheduler.minRegisteredResourcesRatio": "1.0"}
    with spark_session(master, "bench", settings) as spark:
        prepare_executors(spark, reads=[journal], writes=folder)
        assert registered_cores(spark) == max(2, workers), "Spark counts at least two"
        for _ in range(2):
            started = time.perf_counter()
            write_report(spark, journal, folder)
            took_s = time.perf_counter() - started
    print(took_s)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
