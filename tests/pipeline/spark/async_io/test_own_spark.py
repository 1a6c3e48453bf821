"""Attempts that fail, a Ctrl-C and a kill, in a Spark of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from ....kit.commands import ROOT
from . import enriching_query
from .counting_service import CountingService
from .enriching_query import FILES, HANGS_AT, ROWS_PER_FILE, finish, with_source

pytestmark = pytest.mark.slow

SHIPPED = (enriching_query,)
TIMEOUT_S = 180.0
CONCURRENCY = 100
"""The default."""


class Interrupted(NamedTuple):
    calls: int
    cut_off: int
    ends_before_the_script: bool


class Played(NamedTuple):
    """What has become of the jobs."""

    folder: Path
    interrupted: Interrupted

    def logged(self, log: str) -> list[int]:
        return [int(line) for line in (self.folder / log).read_text().splitlines()]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("own")
    with_source(folder / "stream")
    said = folder / "said"
    with CountingService(None) as service, said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("own_spark.py"), str(folder), str(service.port)],
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,  # so that its JVM is killed with it
        )

        def await_alive(condition: Callable[[], bool]) -> None:
            deadline_s = time.monotonic() + TIMEOUT_S
            while not condition():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.02)
                assert process.returncode is None, said.read_text()[-3000:]
                assert time.monotonic() < deadline_s, said.read_text()[-3000:]

        try:
            await_alive(lambda: service.calls >= CONCURRENCY)
            process.send_signal(signal.SIGINT)
            service.wait_until_quiet(within_s=TIMEOUT_S / 2)
            interrupted = Interrupted(service.calls, service.cut_off, process.poll() is None)
            log = folder / "stream" / "log"
            await_alive(lambda: str(HANGS_AT) in log.read_text().splitlines())
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Played(folder, interrupted)


def test_attempts_that_spark_threw_away_are_told_as_missing(played: Played) -> None:
    """Their calls are in no count: without a word, 80 calls of the service were reported as 40."""
    counts = json.loads((played.folder / "counts.json").read_text())

    assert counts == {"calls": 40, "completed": 40, "lost_attempts": 2}
    assert len(played.logged("log")) > 40


def test_ctrl_c_in_a_script_cancels_its_job_and_the_calls_and_the_script_works_on(played: Played) -> None:
    """PySpark's own handler sent its command over the connection that the main thread was waiting on, which failed."""
    assert played.interrupted == Interrupted(CONCURRENCY, CONCURRENCY, ends_before_the_script=True)
    assert (played.folder / "rows after the interrupt").read_text() == "3"


def test_a_query_that_is_killed_in_a_batch_is_complete_after_its_restart(spark: SparkSession, played: Played) -> None:
    stream = played.folder / "stream"
    before = played.logged("stream/log")
    (stream / "log").write_text("")

    finish(enriching_query.start_query(spark, stream))

    found = spark.read.parquet(str(stream / "out")).orderBy("id").collect()
    assert [tuple(row) for row in found] == [(i, f"fact {i}") for i in range(FILES * ROWS_PER_FILE)]
    assert set(before) >= set(range(2 * ROWS_PER_FILE))
    # The interrupted batch, and the last one.
    assert played.logged("stream/log") == list(range(2 * ROWS_PER_FILE, FILES * ROWS_PER_FILE))
