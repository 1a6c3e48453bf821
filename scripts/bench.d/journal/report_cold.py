"""`dispatcher report` of the sample from the shell to the exit, beside a script that starts Spark for an empty job."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from measure import Figures, Spread, print_table

_EMPTY = """
from pyspark.sql import SparkSession

with SparkSession.builder.master("local[{cores}]").config("spark.ui.enabled", "false").getOrCreate() as spark:
    spark.range(0, {cores}, 1, {cores}).mapInArrow(lambda batches: batches, "id long").collect()
"""


def cold(journal: Path, folder: Path, repeats: int, cores: int) -> Figures:
    """`report.cold` and `report.cold-empty`, in seconds; runs alternate."""
    folder.mkdir()
    command = str(Path(sys.executable).with_name("dispatcher"))
    runs = {
        "dispatcher report of the sample": [
            *(command, "report", str(journal), "--output", str(folder / "report"), "--master", f"local[{cores}]")
        ],
        "Spark's start and an empty mapInArrow job": [sys.executable, "-c", _EMPTY.format(cores=cores)],
    }
    took_s: dict[str, list[float]] = {name: [] for name in runs}
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    for _ in range(repeats):
        for name, run in runs.items():
            started = time.perf_counter()
            subprocess.run(run, env=environment, capture_output=True, check=True)
            took_s[name].append(time.perf_counter() - started)
    spreads = {name: Spread.of(values) for name, values in took_s.items()}
    print_table("Cold, from the shell to the exit: seconds", spreads, digits=2)
    ours, empty = (spread.median for spread in spreads.values())
    return {"report.cold": ours, "report.cold-empty": empty}
