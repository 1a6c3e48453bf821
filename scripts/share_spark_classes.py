"""Makes an archive of the classes that Spark loads, with which a JVM of the tests starts in half the processor time.

    python scripts/share_spark_classes.py ARCHIVE

See "class-data sharing" in Java's documentation. Only the Java and the PySpark that made the archive read it. A JVM
crashes on one that is cut short, so it gets its name when it is whole.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark import SparkContext
from pyspark.sql import functions as f

from pipeline.spark import spark_session

LONGEST_S = 300


def main(archive: Path) -> None:
    signal.alarm(LONGEST_S)  # the tests wait for this process, and do without the archive if it ends without one
    draft = archive.with_name(f"{archive.name}.{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={draft} -Xlog:cds=off -Xlog:cds+dynamic=off"
    settings = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }
    with spark_session("local[2]", "classes", settings) as session, TemporaryDirectory() as folder:
        rows = session.range(100, numPartitions=2).select("id", (f.col("id") % 3).cast("string").alias("kind"))
        rows.mapInArrow(lambda batches: batches, rows.schema).write.parquet(f"{folder}/rows")
        stored = session.read.parquet(f"{folder}/rows")
        counts = stored.groupBy("kind").agg(f.count("*").alias("count"), f.max("id"))
        stored.join(counts, "kind").orderBy("id").collect()
        jvm = SparkContext._gateway.proc
    jvm.stdin.close()
    jvm.wait()
    draft.rename(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
