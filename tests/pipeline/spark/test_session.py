"""Finding a Java that Spark can use, and the sessions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.spark import SparkUnavailableError
from pipeline.spark.java import require_java


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the only Java, `bin/java` below JAVA_HOME; not installed yet."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin" / "java"


def install(java: Path, script: str) -> None:
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Dversion=1\nopenjdk version "25-ea" 2025-09-16', 25),
    ],
)
def test_a_new_enough_java_is_found(java: Path, answer: str, version: int) -> None:
    install(java, f"echo '{answer}' >&2")

    assert require_java() == version


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'java version \"1.8.0_401\"' >&2", r"is Java 8, Spark 4 needs 17\. Install Java 17"),
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", r"is Java 11, Spark 4 needs 17\. Install Java 17"),
        ("exit 3", "exit status 3"),
        ("echo hello", "printed no version"),
    ],
)
def test_another_java_is_refused(java: Path, script: str, problem: str) -> None:
    install(java, script)

    with pytest.raises(SparkUnavailableError, match=problem):
        require_java()


def test_a_java_home_without_java_is_named(java: Path) -> None:
    with pytest.raises(SparkUnavailableError, match=f"JAVA_HOME is {java.parents[1]}, but {java} is not an executable"):
        require_java()


def test_a_missing_java_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SparkUnavailableError, match="no Java in JAVA_HOME or on the PATH") as raised:
        require_java()

    assert "\n" not in str(raised.value)


def test_java_on_the_path_is_used_without_java_home(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(java, "echo 'openjdk version \"17\"' >&2")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(java.parent))

    assert require_java() == 17


def test_a_local_session_is_in_utc_and_reachable_from_this_machine_only(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"


def test_without_pyspark_the_import_names_the_package_to_install() -> None:
    code = "import sys; sys.modules['pyspark'] = None; from pipeline.spark import read_journal"

    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert "SparkUnavailableError: Spark cannot run: the package pyspark" in answer.stderr.splitlines()[-1]
    assert "pip install 'central-dispatcher[spark]'" in answer.stderr
