from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pipeline.spark.report.follow import follow_store
from pipeline.spark.report.follow.follow_store import BatchStore


def counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy("word").agg(F.count("*").alias("count"))


def summed(counts: DataFrame) -> DataFrame:
    return counts.groupBy("word").agg(F.sum("count").alias("count"))


class Words:
    """A store that counts words, and what Spark does around it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._schema = StructType.fromDDL("word string")
        self.store = BatchStore(folder / "kept", folder / "checkpoint", self._schema, counted, summed)

    def write(self, batch: int, words: str) -> None:
        self.store(self._spark.createDataFrame([(word,) for word in words.split()], self._schema), batch)

    def commit(self, batch: int) -> None:
        commits = self._folder / "checkpoint" / "commits"
        commits.mkdir(parents=True, exist_ok=True)
        (commits / str(batch)).touch()
        (commits / f".{batch}.crc").touch()

    def counts(self) -> dict[str, int]:
        return {row["word"]: row["count"] for row in self.store.read(self._spark).collect()}


@pytest.fixture
def words(spark: SparkSession, tmp_path: Path) -> Words:
    return Words(spark, tmp_path)


def test_nothing_is_kept_before_the_first_batch(words: Words) -> None:
    assert words.counts() == {}


def test_batch_counts_once_it_is_committed_and_once_only(words: Words) -> None:
    words.write(0, "a b a")
    words.commit(0)
    words.write(1, "a c")  # killed before the commit

    assert words.counts() == {"a": 2, "b": 1}

    words.write(1, "a c")  # run again
    words.commit(1)

    assert words.counts() == {"a": 3, "b": 1, "c": 1}


def test_batches_are_merged_in_chunks(words: Words, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_store, "CHUNK", 2)
    for batch in range(5):
        words.write(batch, "a b")
        words.commit(batch)

    assert words.counts() == {"a": 5, "b": 5}
    # The second chunk's batches stay for whoever began to read before it was committed.
    assert sorted(folder.name for folder in (tmp_path / "kept").iterdir()) == [
        "batch=2",
        "batch=3",
        "batch=4",
        "chunk=0",
        "chunk=1",
    ]
