"""The sample workload under config/ and the script that makes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from statemachines.simulation.workload import Outcome, read_workload

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[4]
SAMPLE = ROOT / "config" / "workloads" / "sample"
FILES = ("sls-jobs.json", "sls-nodes.json")


def make(output: Path, *options: str) -> str:
    """Run the script and return what it printed."""
    command = [sys.executable, "scripts/make_sample_workload.py", "--output", str(output), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout


def test_script_makes_the_sample_byte_for_byte(tmp_path: Path) -> None:
    printed = make(tmp_path)

    for name in FILES:
        assert (tmp_path / name).read_bytes() == (SAMPLE / name).read_bytes()
    assert len(printed.splitlines()) == 1


def test_another_seed_makes_another_sample(tmp_path: Path) -> None:
    make(tmp_path, "--seed", "1")

    assert (tmp_path / "sls-jobs.json").read_bytes() != (SAMPLE / "sls-jobs.json").read_bytes()
    assert len(read_workload(tmp_path).applications) == 520


def test_sample_has_the_size_it_promises() -> None:
    workload = read_workload(SAMPLE)

    applications = workload.applications
    assert len(applications) >= 500
    assert sum(len(application.containers) for application in applications) >= 10_000
    assert len(workload.nodes) == 200
    assert len({node.rack for node in workload.nodes}) == 10
    assert {application.queue for application in applications} == {"default", "etl", "adhoc", "ml"}
    assert sum((SAMPLE / name).stat().st_size for name in FILES) < 3_000_000
    failed = sum(application.outcome is Outcome.FAILED for application in applications)
    killed = sum(application.kill_ms is not None for application in applications)
    assert failed / len(applications) == pytest.approx(0.04, abs=0.01)
    assert killed / len(applications) == pytest.approx(0.03, abs=0.01)


def test_every_container_of_the_sample_fits_a_node_and_prefers_one_that_exists() -> None:
    workload = read_workload(SAMPLE)
    (capacity,) = {node.capacity for node in workload.nodes}
    hosts = {node.host for node in workload.nodes}

    for application in workload.applications:
        for container in application.containers:
            assert container.resource.memory_mb <= capacity.memory_mb
            assert container.resource.vcores_milli <= capacity.vcores_milli
            assert container.host is None or container.host in hosts
