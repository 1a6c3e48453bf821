"""Follows a journal; run as a program, it is started to be killed.

followed_journal.py JOURNAL OUTPUT
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from pipeline.spark import spark_session
from pipeline.spark.report.follow import (  # noqa: F401
    FollowError,
    FollowProgress,
    JournalFollower,
    _claim,
    follow_journal,
)

FOR_FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


def follow(spark: SparkSession, journal: Path, output: Path, *, until_idle: bool) -> JournalFollower:
    """With a segment in each micro-batch, or, to come to the end of it, with all that there are."""
    segments = 16 if until_idle else 1
    return follow_journal(spark, journal, output, until_idle=until_idle, trigger_s=0, segments_per_batch=segments)


if __name__ == "__main__":
    with spark_session("local[1]", "killed", {"spark.driver.memory": "1g"} | FOR_FEW_ROWS) as session:
        follow(session, Path(sys.argv[1]), Path(sys.argv[2]), until_idle=False).wait(3600)
