from __future__ import annotations

import csv
from pathlib import Path

import pytest

from dispatcher import DispatcherError
from pipeline.cli import sweep

from ...kit.commands import run_command, run_here

JOBS = """
{"job.start.ms": 0, "job.queue.name": "q", "job.tasks":
  [{"container.host": "/r/node1", "container.start.ms": 0, "container.end.ms": 20}]}
{"job.start.ms": 5, "job.queue.name": "q", "job.final.state": "FAILED", "job.tasks":
  [{"container.host": "/r/node1", "container.start.ms": 6, "container.end.ms": 20}]}
"""
BAD_JOB = '{"job.start.ms": -1, "job.queue.name": "q", "job.tasks": []}'


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.json"
    path.write_text(JOBS)
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_sweep_prints_and_writes_its_comparison(jobs: Path, tmp_path: Path, connect_url: str) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    jobs.write_text(JOBS + BAD_JOB)
    args = ["--set", "scheduler=fifo,capacity", "--set", "nodes=1.0,2.0", "--output", str(tmp_path / "out")]

    done = run_command("sweep", jobs, *args, "--skip-bad-rows", "--master", connect_url)

    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["1", "bad", "rows", "skipped"] in lines
    assert [line[:3] for line in lines if line[:1] in (["fifo"], ["capacity"])] == [
        ["fifo", "1.0", "1"],
        ["fifo", "2.0", "2"],
        ["capacity", "1.0", "1"],
        ["capacity", "2.0", "2"],
    ]
    with (tmp_path / "out" / "sweep.csv").open() as text:
        rows = list(csv.DictReader(text))
    assert [(row["number"], row["set scheduler"], row["set nodes"], row["nodes"]) for row in rows] == [
        ("1", "fifo", "1.0", "1"),
        ("2", "fifo", "2.0", "2"),
        ("3", "capacity", "1.0", "1"),
        ("4", "capacity", "2.0", "2"),
    ]
    assert {(row["finished"], row["failed"], row["error"]) for row in rows} == {("1", "1", "")}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["sweep.csv", "sweep.html", "sweep.parquet"]


def test_a_mistake_is_one_line_and_exit_code_2(jobs: Path) -> None:
    done = run_here("sweep", jobs, "--set", "scheduler=fifo,lifo")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("dispatcher: --set scheduler=lifo: scheduler.kind: 'lifo' is not allowed")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ([], "nothing to compare"),
        (["scheduler=lifo"], "'lifo' is not allowed"),
        (["nodes=0"], "found 0, expected factors"),
        (["color=red"], "unknown key color"),
    ],
)
def test_a_mistake_in_the_settings_is_reported_before_anything_is_written(
    jobs: Path, tmp_path: Path, settings: list[str], problem: str
) -> None:
    with pytest.raises(DispatcherError, match=problem):
        sweep(jobs, settings, tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_a_bad_workload_is_reported_before_anything_is_written(jobs: Path, tmp_path: Path) -> None:
    jobs.write_text(JOBS + BAD_JOB)

    with pytest.raises(DispatcherError, match=r"jobs\.json, row 6"):
        sweep(jobs, ["nodes=1.0"], tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_an_unwritable_output_is_reported_before_anything_runs(jobs: Path, tmp_path: Path) -> None:
    with pytest.raises(DispatcherError, match=r"jobs\.json: the sweep cannot be written here \(.*Name another folder"):
        sweep(jobs, ["nodes=1.0"], jobs)
