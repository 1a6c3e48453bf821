"""Several promises in one job of Spark: each job takes a third of a second."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

EVERY_TYPE = """
    SELECT true AS flag, tinyint(-128) AS tiny, smallint(7) AS small, int(2147483647) AS medium,
      bigint(9007199254740993 + id) AS big,
      float(0.5) AS single, double(0.1) AS twice, decimal(12.50) AS money, CAST('1.50' AS decimal(38,18)) AS exact,
      string(id) AS text, CAST('abc' AS binary) AS bytes, DATE'0001-01-01' AS day,
      TIMESTAMP'2026-07-01 12:00:00.000001' AS at,
      TIMESTAMP_NTZ'2026-07-01 12:00:00' AS wall, INTERVAL '1 02:03:04.5' DAY TO SECOND AS span,
      array(1, null, int(id)) AS list, map('a', bigint(id), 'b', null) AS counts,
      named_struct('x', id, 'inner', named_struct('names', array('a', null))) AS nested,
      array(map(1, named_struct('at', DATE'2026-01-01'))) AS deep, if(id = 1, null, named_struct('x', id)) AS maybe,
      null AS nothing, if(id = 1, null, parse_json('{"a": [1, 2]}')) AS variant
    FROM range(3)
"""


async def same(value: Any) -> Any:
    return value


def collected(tables: Mapping[str, DataFrame]) -> dict[str, list[Row]]:
    """The rows of each table, in order; the tables have equal columns, and no more than a worker can hold."""
    parts = [table.withColumn("table", F.lit(name)) for name, table in tables.items()]
    rows = reduce(DataFrame.unionAll, parts).collect()
    return {name: [row for row in rows if row.table == name] for name in tables}
