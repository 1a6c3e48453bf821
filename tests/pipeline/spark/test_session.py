"""Finding a Java that Spark can use, and the sessions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ...kit.commands import run_here


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the only Java, `bin/java` below JAVA_HOME; not installed yet."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin" / "java"


def install(java: Path, script: str) -> None:
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)


def found() -> str:
    """What the doctor says of Java."""
    lines = [line.split(None, 2) for line in run_here("doctor", "report").out.splitlines()]
    [(state, text)] = [(state, text) for state, subject, text in lines if subject == "java"]
    return f"{state} {text}"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'openjdk version \"17.0.15\" 2025-04-15' >&2", "ok Java 17"),
        ("echo 'openjdk version \"21\" 2023-09-19' >&2", "ok Java 21"),
        ("echo 'Picked up JAVA_TOOL_OPTIONS: -Dversion=1\nopenjdk version \"25-ea\" 2025-09-16' >&2", "ok Java 25"),
        ("echo 'java version \"1.8.0_401\"' >&2", r"lacks .*is Java 8, Spark 4 needs 17\. Install Java 17"),
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", r"lacks .*is Java 11, Spark 4 needs 17\. Install Java 17"),
        ("exit 3", "lacks .*exit status 3"),
        ("echo hello", "lacks .*printed no version"),
    ],
)
def test_java_is_asked_for_its_version(java: Path, script: str, said: str) -> None:
    install(java, script)

    assert re.match(said, found())


def test_a_java_home_without_java_is_named(java: Path) -> None:
    assert found().startswith(f"lacks JAVA_HOME is {java.parents[1]}, but {java} is not an executable")


def test_java_on_the_path_is_used_without_java_home(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(java.parent))

    assert found().startswith("lacks no Java in JAVA_HOME or on the PATH")
    install(java, "echo 'openjdk version \"17\"' >&2")
    assert found() == "ok Java 17"


def test_a_local_session_is_in_utc_and_reachable_from_this_machine_only(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"


def test_without_pyspark_the_import_names_the_package_to_install() -> None:
    code = "import sys; sys.modules['pyspark'] = None; from pipeline.spark import read_journal"

    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert "SparkUnavailableError: Spark cannot run: the package pyspark" in answer.stderr.splitlines()[-1]
    assert "pip install 'central-dispatcher[spark]'" in answer.stderr
