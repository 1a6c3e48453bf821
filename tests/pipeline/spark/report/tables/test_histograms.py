"""Log-linear histograms: equal buckets in Spark and in arrays, and percentiles computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.spark.report.digests.buckets import Groups, grouped, log_bucket, log_buckets, summed_up

VALUES = [-5, 0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 66, 67, 1000, 1 << 40, (1 << 40) - 1, (1 << 53) + 1, (1 << 63) - 1]
SUMMED_SCHEMA = "name string, count long, total long, greatest long, half double, most double"


def of(spark: SparkSession, name: str, values: list[int | None]) -> DataFrame:
    return spark.createDataFrame([(name, value) for value in values], "name string, value long")


def summed(groups: DataFrame) -> DataFrame:
    return summed_up(groups, ["name"], {"half": 0.5, "most": 0.99})


def test_spark_and_arrays_have_the_same_buckets(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(value,) for value in VALUES], "value long")

    in_spark = [row["bucket"] for row in rows.select(log_bucket(F.col("value")).alias("bucket")).collect()]

    assert in_spark == log_buckets(np.array(VALUES)).tolist()
    # 64 and 65 share one of the 32 parts that 64 to 127 have, and 66 is in the next.
    assert in_spark[:3] == [-1, -1, 0]
    assert in_spark[9:13] == [192, 192, 193, 193]


def test_a_bucket_is_never_wider_than_a_32nd_of_its_values() -> None:
    values = np.arange(1, 100_000)
    buckets = log_buckets(values)
    first = np.flatnonzero(np.diff(buckets, prepend=-2))
    last = np.append(first[1:], len(values)) - 1

    assert np.all(values[last] - values[first] <= values[first] / 32)


def test_percentiles_are_those_of_the_nearest_rank(spark: SparkSession, assert_table: Any) -> None:
    groups = grouped(of(spark, "a", [*range(1, 31), None]), ["name"], "value")

    # Below 64 every value has a bucket of its own: the 15th of 30, and the 30th.
    assert_table(summed(groups), SUMMED_SCHEMA, [("a", 30, 465, 30, 15.0, 30.0)])


def test_a_percentile_is_the_midpoint_of_its_buckets_values(spark: SparkSession, assert_table: Any) -> None:
    groups = grouped(of(spark, "a", [1024, 1050, 1 << 30]), ["name"], "value")

    assert_table(summed(groups), SUMMED_SCHEMA, [("a", 3, 1073743898, 1 << 30, 1037.0, float(1 << 30))])


def test_parts_add_up_to_the_whole(spark: SparkSession, assert_table: Any) -> None:
    parts = [grouped(of(spark, "a", values), ["name"], "value") for values in ([5, 1000], [1001, 3], [0])]

    groups = parts[0].unionAll(parts[1]).unionAll(parts[2])

    assert_table(summed(groups), SUMMED_SCHEMA, [("a", 5, 2009, 1001, 5.0, 1000.5)])


def test_no_values_give_no_percentiles(spark: SparkSession, assert_table: Any) -> None:
    assert_table(summed(grouped(of(spark, "a", [None]), ["name"], "value")), SUMMED_SCHEMA, [])


def test_groups_of_arrays_add_up() -> None:
    groups = Groups()
    groups.add(np.array([7, 3, 7]), np.array([10, 1, 30]))
    groups.add(np.array([], np.int64), np.array([], np.int64))
    groups.add(np.array([7]), np.array([20]))

    distinct = groups.merge()
    keys, figures = groups.take()

    assert distinct == 2
    assert keys.tolist() == [3, 7]
    assert {name: column.tolist() for name, column in figures.items()} == {
        "count": [1, 3],
        "total": [1, 60],
        "least": [1, 10],
        "greatest": [1, 30],
    }
    assert groups.take()[0].tolist() == []


@pytest.mark.parametrize("value", [1, 77, 10**6, 123_456_789_012])
def test_a_bucket_with_one_value_gives_it_exactly(spark: SparkSession, value: int) -> None:
    [row] = summed(grouped(of(spark, "a", [value]), ["name"], "value")).collect()

    assert (row["half"], row["most"]) == (float(value), float(value))
