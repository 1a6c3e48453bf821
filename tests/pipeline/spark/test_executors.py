"""What a command checks before its jobs, on a local Spark that stands for a cluster; see also `cluster/`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.spark import ExecutorError, executors, prepare_executors


@pytest.fixture
def cluster(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The session as if its tasks ran on other machines."""
    monkeypatch.setattr(executors, "runs_on_executors", lambda _: True)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    return spark


def test_paths_that_executors_see_are_fine_and_nothing_is_left_behind(cluster: SparkSession, tmp_path: Path) -> None:
    prepare_executors(cluster, reads=[tmp_path], writes=tmp_path / "new", reads_journal=True)

    assert list((tmp_path / "new").iterdir()) == []


def test_a_path_that_executors_do_not_see_is_named(cluster: SparkSession, tmp_path: Path) -> None:
    missing = tmp_path / "only on the driver"

    with pytest.raises(ExecutorError, match="cannot read this path") as info:
        prepare_executors(cluster, reads=[tmp_path, missing])

    assert str(info.value).startswith(f"{missing}: an executor on ")
    assert "\n" not in str(info.value)


def test_a_folder_of_the_same_name_on_another_machine_is_told_apart(
    cluster: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mark is missing there."""
    touch = Path.touch
    monkeypatch.setattr(Path, "touch", lambda self, *args: touch(self.with_name("elsewhere"), *args))

    with pytest.raises(ExecutorError, match=rf"^{tmp_path}/\.seen-by-executors-\w+: an executor on .* cannot read"):
        prepare_executors(cluster, writes=tmp_path)


def test_a_missing_package_is_named(cluster: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "EXECUTOR_PACKAGES", ("pyarrow", "no_such_one", "nor_this"))

    with pytest.raises(ExecutorError, match=r"which lacks the packages no_such_one, nor_this\. Run there: pip install"):
        prepare_executors(cluster)


def test_the_drivers_own_machine_needs_the_python_too(
    cluster: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python"))

    with pytest.raises(ExecutorError, match=f"this machine has no Python at {tmp_path}/python"):
        prepare_executors(cluster, reads_journal=True)


def test_shuffle_partitions_follow_the_cores_unless_they_are_configured(
    cluster: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The test run's Spark has two cores, and configures the real setting for all of its sessions.
    setting = "spark.sql.dispatcher.partitionsOfTest"
    monkeypatch.setattr(executors, "_PARTITIONS", setting)
    plain, configured = cluster.newSession(), cluster.newSession()
    configured.conf.set(setting, "7")

    for session in (plain, configured):
        prepare_executors(session)

    assert [session.conf.get(setting) for session in (plain, configured)] == ["2", "7"]


def test_a_local_session_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    prepare_executors(spark, reads=[tmp_path / "missing"])
