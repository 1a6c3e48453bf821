"""Following a journal over Spark Connect, served by the test run's own Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.spark.report.follow.follow import FollowProgress, follow_journal

from ...conftest import JournalBuilder
from .followed_journal import FOR_FEW_ROWS

TIMEOUT_S = 240.0


@pytest.fixture
def connect(spark: SparkSession, connect_url: str) -> Iterator[Any]:
    for package in ("grpc", "grpc_status", "google.rpc", "zstandard"):
        pytest.importorskip(package, reason="Spark Connect needs pyspark[connect]")
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    with pytest.MonkeyPatch.context() as patch:
        # Makes pyspark.sql.functions dispatch to Spark Connect.
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        session = ConnectSession.builder.remote(connect_url).create()
        for name, value in FOR_FEW_ROWS.items():
            session.conf.set(name, value)
        yield session
        session.stop()


@pytest.mark.slow
def test_journal_is_followed_over_connect(connect: Any, journal: JournalBuilder, tmp_path: Path) -> None:
    journal.submit(1, "application_1", at=5)
    path = journal.path

    with follow_journal(connect, path, tmp_path / "report", until_idle=True) as follower:
        assert follower.wait(TIMEOUT_S)
        assert follower.progress() == FollowProgress(1, 1, 1, 1, 0)
