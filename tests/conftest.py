"""Fixtures that tests of several packages share."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def connect_url() -> str:
    """Where the test run's Spark serves Spark Connect."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"sc://127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture(scope="session")
def spark(connect_url: str) -> Iterator[SparkSession]:
    """One small Spark for the whole test run: it takes seconds to start. It serves Spark Connect, too."""
    pytest.importorskip("pyspark")
    from pipeline.spark import SparkUnavailableError, spark_session

    connect_settings = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": connect_url.rpartition(":")[2],
    }
    try:
        session = spark_session("local[2]", "tests", connect_settings)
    except SparkUnavailableError as unavailable:
        pytest.skip(str(unavailable))
    with session:
        yield session
