"""Fixtures that tests of several packages share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One small Spark for the whole test run: it takes seconds to start."""
    pytest.importorskip("pyspark")
    from pipeline.spark import SparkUnavailableError, spark_session

    try:
        session = spark_session("local[2]", "tests")
    except SparkUnavailableError as unavailable:
        pytest.skip(str(unavailable))
    with session:
        yield session
