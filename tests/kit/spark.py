"""What tests on Spark share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def setting(spark: SparkSession, key: str, value: str | int) -> Iterator[None]:
    """With a setting of the session, which then has its own value again."""
    before = spark.conf.get(key, None)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, before)


@contextmanager
def all_settings(spark: SparkSession, values: Mapping[str, str | int]) -> Iterator[None]:
    with ExitStack() as stack:
        for key, value in values.items():
            stack.enter_context(setting(spark, key, value))
        yield


def json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write a file of JSON Lines, as streams of files read it, into a folder that may have to be made."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
