from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from dispatcher import ConfigError, DispatcherError
from dispatcher.journal import EVENTS, TRANSITIONS
from pipeline.journal import read_batches
from pipeline.spark import Report, journal_failure, write_report
from pipeline.spark.report.digesting import digest_segments
from pipeline.spark.report.report import declared_by_resource_manager

from ....kit.segment_files import Manifest, segment_path, summarize
from ....kit.spark import all_settings
from ...journal_builder import JournalBuilder
from ...report.tables.at_hand import NAMES, Ends, of_parts
from . import followed_journal
from .followed_journal import FollowError, FollowProgress, JournalFollower, _claim

TIMEOUT_S = 240.0
ENDS = Ends(frozenset(), frozenset())
HOUR = 3600
SEGMENTS = 4
EVENT_COUNT, TRANSITION_COUNT = 22, 14
FIRST_SEQ, LAST_SEQ = 11, 35

APP, ATTEMPT = "application_1_0001", "appattempt_1_0001_000001"


class Growing:
    """A journal that gets the segments of another one by one."""

    def __init__(self, source: Path, path: Path) -> None:
        self._source = source
        self.path = path
        self._number = 0
        path.mkdir()

    def grow(self, segments: int = 1) -> None:
        for _ in range(segments):
            self._number += 1
            self._put(segment_path(self._source, self._number), self._number)

    def _put(self, segment: Path, number: int) -> None:
        draft = self.path / f".draft-{number}"
        shutil.copy(segment, draft)
        Manifest(1, number).write(self.path, sync=False)
        draft.replace(segment_path(self.path, number))


class Victim:
    """A follower in a process of its own, with its JVM in its group."""

    def __init__(self, journal: Path, output: Path) -> None:
        self._log = output.with_suffix(".log")
        with self._log.open("ab") as log:
            command = [sys.executable, followed_journal.__file__, str(journal), str(output)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill_when(self, is_so: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        try:
            while not is_so():
                assert self._process.poll() is None, f"it has ended before {what}: {self._log.read_text()[-3000:]}"
                assert time.monotonic() < deadline_s, f"not within {TIMEOUT_S} s: {what}"
                threading.Event().wait(0.005)
        finally:
            self.kill()

    def kill(self) -> None:
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(TIMEOUT_S)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal as it is in the end: its clock jumps forth by hours and back, and segments cut lives."""
    journal = JournalBuilder(tmp_path_factory.mktemp("whole") / "journal")
    journal.node(11, "n1:1")
    journal.node(12, "n2:1")
    journal.submit(13, APP, 10, queue="a")

    journal.event(15, "RMAppEventType", "APP_NEW_SAVED", APP, 11)
    journal.move(15, "RMApp", APP, "NEW_SAVING APP_NEW_SAVED SUBMITTED", 11)
    journal.move(15, "RMAppAttempt", ATTEMPT, "NEW START SUBMITTED", 11)
    journal.allocate(16, "container_1", "n1:1", 12, application=APP)
    journal.allocate(17, "container_2", "n2:1", 12, application=APP)
    journal.event(18, "RMAppEventType", "APP_ACCEPTED", APP, 10 * HOUR, queue_ns=70_000, handling_ns=9_000)
    journal.move(18, "RMApp", APP, "SUBMITTED APP_ACCEPTED ACCEPTED", 10 * HOUR)
    journal.event(19, "RMNodeEventType", "STATUS_UPDATE", "n1:1", 10 * HOUR + 1, handling_ns=250_000)
    journal.move(19, "RMNode", "n1:1", "RUNNING STATUS_UPDATE RUNNING", 10 * HOUR + 1)

    journal.event(21, "RMContainerEventType", "LAUNCHED", "container_1", 9 * HOUR)
    journal.move(21, "RMContainer", "container_1", "ALLOCATED LAUNCHED RUNNING", 9 * HOUR)
    journal.complete(22, "container_1", 9 * HOUR + 5)
    journal.event(23, "RMAppEventType", "KILL", "nobody", 9 * HOUR + 6, outcome="failed", error="KeyError: 'x'")
    journal.move(23, "RMApp", APP, "ACCEPTED APP_NEW_SAVED ACCEPTED", 9 * HOUR + 6, valid=False)
    journal.submit(24, "application_1_0002", 9 * HOUR + 7, name="second", queue="b")

    journal.event(26, "RMAppEventType", "ATTEMPT_REGISTERED", APP, 11 * HOUR)
    journal.move(26, "RMApp", APP, "ACCEPTED ATTEMPT_REGISTERED RUNNING", 11 * HOUR)
    for seq in range(27, LAST_SEQ + 1):
        journal.event(seq, "RMNodeEventType", "STATUS_UPDATE", "n2:1", 11 * HOUR + seq, handling_ns=seq * 1000)
    return journal.path


@pytest.fixture(scope="module", autouse=True)
def _settings_for_few_rows(spark: SparkSession) -> Iterator[None]:
    """Compiling a query takes longer than running it on a handful of rows."""
    with all_settings(spark, followed_journal.FOR_FEW_ROWS):
        yield


@pytest.fixture
def doomed(tmp_path_factory: pytest.TempPathFactory, whole: Path) -> Iterator[tuple[Growing, Path, Victim]]:
    """A follower in a process of its own, which starts."""
    folder = tmp_path_factory.mktemp("doomed")
    journal = Growing(whole, folder / "journal")
    journal.grow(2)
    victim = Victim(journal.path, folder / "report")
    yield journal, folder / "report", victim
    victim.kill()


def follow_to_the_end(spark: SparkSession, journal: Path, output: Path) -> tuple[Report, FollowProgress]:
    with followed_journal.follow(spark, journal, output, until_idle=True) as follower:
        assert follower.wait(TIMEOUT_S)
        return follower.write("journal"), follower.progress()


Rows = dict[str, list[str]]


def rows_of(tables: Path) -> Rows:
    """By table. What is damaged is in no table at hand."""
    found = {name: pq.read_table(tables / name) for name in NAMES if name != "damage"}
    return {name: _as_text(rows.to_pylist()) for name, rows in found.items()}


def rows_at_hand(journal: Path) -> Rows:
    """The report's tables of a whole journal, without Spark."""
    parts = [tuple(pa.Table.from_batches(read_batches(journal, table)) for table in (EVENTS, TRANSITIONS))]
    found = of_parts(parts, declared_by_resource_manager())  # type: ignore[arg-type]
    return {name: _as_text(found.dicts(name)) for name in NAMES if name != "damage"}


def _as_text(rows: list[dict[str, Any]]) -> list[str]:
    """Sums of doubles differ in their last digits with the order of the rows."""
    return sorted(repr(_rounded(row)) for row in rows)


def _rounded(row: dict[str, Any]) -> list[Any]:
    return [round(value, 9) if isinstance(value, float) else value for value in row.values()]


@pytest.mark.slow
@pytest.mark.minutes
def test_tables_equal_the_batch_reports_however_the_journal_grows(
    spark: SparkSession, whole: Path, tmp_path: Path
) -> None:
    """The clock of this journal jumps both ways, and lives are cut by segments."""
    journal = Growing(whole, tmp_path / "journal")
    for grown in (1, SEGMENTS - 2, 1):
        journal.grow(grown)

        followed, progress = follow_to_the_end(spark, journal.path, tmp_path / "followed")

        assert rows_of(followed.tables) == rows_at_hand(journal.path), f"{grown} segments more"
    batch = write_report(spark, journal.path, tmp_path / "batch")
    assert rows_of(followed.tables) == rows_of(batch.tables)
    assert (progress.events, progress.transitions) == (batch.events, batch.transitions)


@pytest.mark.slow
@pytest.mark.minutes
def test_a_journal_is_followed_over_connect(connect_mode: Any, journal: JournalBuilder, tmp_path: Path) -> None:
    journal.submit(1, "application_1", at=5)

    with all_settings(connect_mode, followed_journal.FOR_FEW_ROWS):
        _, found = follow_to_the_end(connect_mode, journal.path, tmp_path / "report")

    assert found == FollowProgress(1, 1, 1, 1, 0)


@pytest.mark.slow
def test_a_follower_that_is_killed_continues_where_it_stopped(
    spark: SparkSession, doomed: tuple[Growing, Path, Victim], whole: Path
) -> None:
    journal, output, victim = doomed
    checkpoint, digests = output / "follow" / "checkpoint", output / "follow" / "digests"
    moments = {
        "a batch is planned": checkpoint / "offsets" / "1",
        "a batch is being written": digests / "batch=1",
        "a batch is written": digests / "batch=1" / "move",
        "a batch is committed": checkpoint / "commits" / "1",
    }
    what, sign = random.choice(list(moments.items()))
    victim.kill_when(sign.exists, what)

    journal.grow(2)
    followed, progress = follow_to_the_end(spark, journal.path, output)

    assert progress == FollowProgress(EVENT_COUNT, TRANSITION_COUNT, FIRST_SEQ, LAST_SEQ, SEGMENTS - 1), (
        f"killed when {what}"
    )
    assert rows_of(followed.tables) == rows_at_hand(whole), f"killed when {what}"
    ended = pq.read_table(followed.tables / "containers").column("end_state").to_pylist()
    assert sorted(map(str, ended)) == ["COMPLETED", "None"]


def test_a_segment_that_is_gone_before_it_was_counted_is_an_error(
    spark: SparkSession, whole: Path, tmp_path: Path
) -> None:
    gone = segment_path(tmp_path, 2)
    shutil.copy(segment_path(whole, 1), tmp_path)

    with pytest.raises(Exception, match="is missing, and the report has not counted it") as failed:
        digest_segments(
            spark, tmp_path, summarize([segment_path(tmp_path, 1), gone]), tmp_path / "digest", ENDS, fails_on_loss=True
        )

    assert gone.name in str(journal_failure(failed.value))


def test_a_folder_follows_one_journal_and_has_to_be_writable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    _claim(tmp_path / "follow", "/some/journal")
    _claim(tmp_path / "follow", "/some/journal")

    with pytest.raises(ConfigError, match="follows the journal /some/journal, not /other/journal"):
        _claim(tmp_path / "follow", "/other/journal")
    with pytest.raises(DispatcherError, match="cannot be written or read"):
        _claim(tmp_path / "file" / "follow", "/some/journal")


def test_a_failing_query_is_reported_in_one_line(tmp_path: Path) -> None:
    class Query:
        def awaitTermination(self, timeout: float) -> bool:
            raise StreamingQueryException("it broke\n\tat some.Class")

    follower = JournalFollower(cast(SparkSession, SimpleNamespace()), tmp_path, tmp_path, [])
    follower.query = cast(Any, Query())

    with pytest.raises(FollowError, match=r"^the journal cannot be followed: it broke$"):
        follower.wait(0.0)
