"""What it costs to look at a few rows of many, by the service's own count, and how soon a row reaches its reader."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from pipeline.spark import ordered_wait, unordered_wait
from pipeline.spark.async_io.results import OutputColumns
from pipeline.spark.async_io.rows import read_rows
from pipeline.spark.async_io.task import AsyncTask
from pipeline.spark.worker.hosts import WorkerHosts
from pipeline.spark.worker.output import worker_output
from pipeline.streaming import AsyncOptions
from pipeline.streaming.pace import ReaderGoneError

from . import counting_service
from .counting_service import AskService, CountingService

TIMEOUT_S = 60.0
SHIPPED = (counting_service,)
CONCURRENCY = 100
"""The default."""

Wait = Callable[..., DataFrame]


def asked(spark: SparkSession, service: CountingService, wait: Wait = unordered_wait) -> DataFrame:
    return wait(spark.range(0, 50_000, 1, 2), AskService(service.port), "id long", timeout=TIMEOUT_S)


LOOKS: dict[str, tuple[int, Callable[[DataFrame], list[Any]]]] = {
    "take": (5, lambda table: table.take(5)),
    "limit": (10, lambda table: table.limit(10).collect()),
}


@pytest.mark.parametrize(
    ("wait", "look", "delay_s"),
    [
        (unordered_wait, "take", 0.01),
        (unordered_wait, "limit", 2.0),
        (ordered_wait, "limit", 0.01),
        (ordered_wait, "take", 2.0),
    ],
)
def test_a_look_at_a_few_rows_costs_the_calls_of_a_task_beyond_them(
    spark: SparkSession, wait: Wait, look: str, delay_s: float
) -> None:
    rows, action = LOOKS[look]
    with CountingService(delay_s) as service:
        found = action(asked(spark, service, wait))

        assert len({row.id for row in found}) == rows
        service.wait_until_quiet()
        assert service.calls <= rows + CONCURRENCY


def test_a_limit_in_front_of_an_aggregate_costs_the_calls_of_each_task(spark: SparkSession) -> None:
    with CountingService(0.01) as service:
        assert asked(spark, service).limit(10).count() == 10

        service.wait_until_quiet()
        assert service.calls <= 2 * (10 + CONCURRENCY)


def test_calls_of_a_cancelled_job_are_cut_off_while_none_of_them_ends(spark: SparkSession) -> None:
    failures = []

    def collect() -> None:
        try:
            asked(spark, service).collect()
        except Exception as error:
            failures.append(error)

    with CountingService(None) as service:
        job = threading.Thread(target=collect)
        job.start()
        service.wait_for_calls(2 * CONCURRENCY)

        spark.sparkContext.cancelAllJobs()

        service.wait_until_quiet(within_s=TIMEOUT_S / 2)  # before the calls are late
        job.join(TIMEOUT_S)
        assert service.cut_off == service.calls == 2 * CONCURRENCY
        assert "cancelled" in str(failures[0])


# ---------------------------------------------------------------------------------------- the other end of the socket


class InTurn:
    """Calls that end in turn, each once the reader has the row of the one before."""

    def __init__(self, rows: int) -> None:
        self.has_come = [threading.Event() for _ in range(rows)]

    async def __call__(self, row: Any) -> tuple[int]:
        if row.id:
            assert await asyncio.to_thread(self.has_come[row.id - 1].wait, TIMEOUT_S / 2)
        return (row.id,)


def write_output(function: Any, rows: int, sender: socket.socket) -> None:
    """A task's output, written as PySpark's worker writes it."""
    schema = T.StructType().add("id", "long")
    task = AsyncTask(
        operator="test",
        function=function,
        options=AsyncOptions(timeout_ms=60_000, capacity=20, output_mode="unordered"),
        result_schema=schema,
        columns=OutputColumns(schema, schema),
        time_zone="UTC",
        idle_s=0,
    )

    def batches() -> Iterator[pa.RecordBatch]:
        with worker_output() as output:
            read = read_rows(schema, [pa.RecordBatch.from_pydict({"id": range(rows)})])
            yield from task.run(read, WorkerHosts(reuses_workers=False), output)

    def main(outfile: BinaryIO) -> None:
        ArrowStreamSerializer(write_start_stream=True).dump_stream(batches(), outfile)
        outfile.flush()

    with sender, sender.makefile("wb", 65536) as outfile, contextlib.suppress(ReaderGoneError):
        main(outfile)


def test_a_narrow_row_reaches_the_reader_before_the_next_call_ends() -> None:
    """It waited for 64 KiB of other rows."""
    function = InTurn(20)
    sender, reader = socket.socketpair()
    reader.settimeout(TIMEOUT_S)
    writing = threading.Thread(target=write_output, args=(function, 20, sender))
    writing.start()

    with reader, reader.makefile("rb", 65536) as infile:
        assert struct.unpack("!i", infile.read(4)) == (-6,)  # START_ARROW_STREAM
        for batch in pa.ipc.open_stream(infile):
            for row in batch.column(0).to_pylist():
                function.has_come[row].set()

    writing.join(TIMEOUT_S)
    assert all(come.is_set() for come in function.has_come)
