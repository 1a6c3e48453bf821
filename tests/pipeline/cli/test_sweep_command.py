from __future__ import annotations

import csv
import re
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ...kit.commands import run_here
from ..sweep.small import JOBS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BAD_JOB = '{"job.start.ms": -1, "job.queue.name": "q", "job.tasks": []}'


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.json"
    path.write_text(JOBS)
    return path


@pytest.mark.slow
def test_a_sweep_prints_and_writes_its_comparison(
    jobs: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The command would stop it. The tutorial what-if runs the command as a program, over Spark Connect.
    monkeypatch.setattr("pipeline.spark.spark_session", lambda *_, **__: nullcontext(spark))
    jobs.write_text(JOBS + BAD_JOB)
    args = ["--set", "scheduler=fifo,capacity", "--set", "nodes=1.0,2.0", "--output", str(tmp_path / "out")]

    done = run_here("sweep", jobs, *args, "--skip-bad-rows")

    assert done.code in (0, None), done.err
    lines = [line.split() for line in done.out.splitlines()]
    assert ["1", "bad", "rows", "skipped"] in lines
    shown = [" ".join(line[:3]) for line in lines if line[:1] in (["fifo"], ["capacity"])]
    assert shown == ["fifo 1.0 1", "fifo 2.0 2", "capacity 1.0 1", "capacity 2.0 2"]
    with (tmp_path / "out" / "sweep.csv").open() as text:
        rows = list(csv.DictReader(text))
    names = "number", "set scheduler", "set nodes", "nodes"
    found = [" ".join(row[name] for name in names) for row in rows]
    assert found == ["1 fifo 1.0 1", "2 fifo 2.0 2", "3 capacity 1.0 1", "4 capacity 2.0 2"]
    assert {(row["finished"], row["failed"], row["error"]) for row in rows} == {("1", "1", "")}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["sweep.csv", "sweep.html", "sweep.parquet"]


@pytest.mark.parametrize(
    ("workload", "settings", "output", "problem"),
    [
        (JOBS, [], "out", "nothing to compare"),
        (
            JOBS,
            ["scheduler=fifo,lifo"],
            "out",
            r"^dispatcher: --set scheduler=lifo: scheduler\.kind: 'lifo' is not allowed",
        ),
        (JOBS, ["nodes=0"], "out", "found 0, expected factors"),
        (JOBS, ["color=red"], "out", "unknown key color"),
        (JOBS + BAD_JOB, ["nodes=1.0"], "out", r"jobs\.json, row 6"),
        (JOBS, ["nodes=1.0"], "jobs.json", r"jobs\.json: the sweep cannot be written here \(.*Name another folder"),
    ],
)
def test_a_mistake_is_reported_in_one_line_before_anything_is_written(
    jobs: Path, workload: str, settings: list[str], output: str, problem: str
) -> None:
    jobs.write_text(workload)

    done = run_here("sweep", jobs, *(f"--set={each}" for each in settings), "--output", jobs.parent / output)

    assert (done.code, done.out) == (2, "")
    assert re.search(problem, done.err)
    assert done.err.count("\n") == 1
    assert [each.name for each in jobs.parent.iterdir()] == ["jobs.json"]
