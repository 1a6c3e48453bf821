"""The programs in examples/ run, and the documents' examples for Spark, on the one Spark of the test run."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from statemachines.resourcemanager import Replay
from statemachines.simulation.workload import read_workload

from .documents import module_for, name_of, pages_with, run_examples
from .kit.databases import sqlite_file
from .kit.segment_files import EventRow, Manifest, SegmentFile, encode_rows, read_summary, segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
JOBS = """
{"job.start.ms": 0, "job.queue.name": "q", "job.tasks":
  [{"container.host": "/r/node1", "container.start.ms": 0, "container.end.ms": 20},
   {"container.host": "/r/node1", "container.start.ms": 1, "container.end.ms": 20}]}
"""
TIMEOUT_S = 60
NO_AIOHTTP = "aiohttp is not installed: scripts/test does"
ALLOCATED = 3  # containers: those of the job's tasks, and its master's


@contextmanager
def example(name: str) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with imported(module):
        spec.loader.exec_module(module)
        yield module


@contextmanager
def imported(module: ModuleType) -> Iterator[None]:
    """Like a module that was imported, but of no package, so that workers get its functions and classes by value."""
    from pyspark import cloudpickle

    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[module.__name__]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Of a replay of one job."""
    (tmp_path / "jobs.json").write_text(JOBS)
    path = tmp_path / "journal"
    Replay(read_workload(tmp_path / "jobs.json"), journal_path=path).run()
    return path


def close_segment(journal: Path, number: int, node: str) -> None:
    """Add a segment in which one more container is allocated."""
    last = read_summary(segments(journal)[-1])
    assert last is not None
    payload = json.dumps({"node": node, "memory_mb": 1024})
    row = EventRow(kind=0, entity=f"container of segment {number}", payload=payload)
    kinds = [("rm", "RMContainerEventType", "START", "handled")]
    segment = SegmentFile(journal, number, last)
    segment.append_rows(encode_rows([row], [], last.next_seq, kinds, []))
    segment.close(sync=False, recover_from=number + 1)
    Manifest(1, number, closed=True).write(journal, sync=False)


def test_the_journal_is_enriched_and_another_run_goes_on(
    spark: SparkSession, journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with example("enrich_journal") as enrich_journal:
        assert enrich_journal.main([str(journal)], spark) == 0
        first = capsys.readouterr().out
        close_segment(journal, 2, "node of nobody")
        assert enrich_journal.main([str(journal)], spark) == 0
        second = capsys.readouterr().out
        assert enrich_journal.main([str(journal)], spark) == 0
        third = capsys.readouterr().out

    written = spark.read.parquet(str(tmp_path / "enriched" / "containers"))
    rows = written.select("node", "memory_mb", "rack", "memory_mb_of_node").collect()
    assert len(rows) == ALLOCATED + 1
    assert {(row.rack, row.memory_mb_of_node is None) for row in rows} == {("/r", False), (None, True)}
    assert calls_in(first, "node facts") == ALLOCATED
    assert "0 of them on nodes that the table does not know" in first
    assert calls_in(second, "node facts") == 1
    assert "1 of them on nodes that the table does not know" in second
    assert "Nothing new" in third


def test_the_facts_may_be_in_a_table_of_the_users(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    close_segment(journal, 2, "b")
    script = "CREATE TABLE owners (host TEXT PRIMARY KEY, owner TEXT); INSERT INTO owners VALUES ('b', 'ann')"
    named = {"database": sqlite_file(tmp_path / "facts.db", script), "table": "owners", "key": "host"}

    with example("enrich_journal") as enrich_journal:
        assert enrich_journal.main([str(journal), *flags(named | {"output": tmp_path / "out"})], spark) == 0

    owners = spark.read.parquet(str(tmp_path / "out" / "containers")).select("owner").collect()
    assert sorted((row.owner for row in owners), key=str) == [None] * ALLOCATED + ["ann"]


def test_mistakes_are_told_in_one_line(
    spark: SparkSession, journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_database = ["--database", str(tmp_path / "facts.db")]
    with example("enrich_journal") as enrich_journal:
        for arguments, said in (
            ([str(tmp_path)], "not a journal"),
            ([str(journal), *no_database], "the file does not exist"),
            ([str(journal), "--table", "racks"], "does not exist; the file has nodes"),
            ([str(journal), "--key", "host"], "has no column 'host'; it has node, rack"),
        ):
            assert enrich_journal.main(arguments, spark) == 2
            err = capsys.readouterr().err
            assert said in err
            assert err.count("\n") == 1


def test_a_damaged_journal_fails_the_query_in_one_line(
    spark: SparkSession, journal: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sqlite_file(tmp_path / "facts.db", "CREATE TABLE nodes (node TEXT PRIMARY KEY, rack TEXT)")
    (journal / "segment-00000002.journal").write_text("damaged")

    with example("enrich_journal") as enrich_journal:
        assert enrich_journal.main([str(journal), "--database", str(tmp_path / "facts.db")], spark) == 1

    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("enrich_journal: ")]
    assert len(lines) == 1
    assert "segment-00000002.journal" in lines[0]
    assert "dispatcher journal verify" in lines[0]


def test_http_calls_are_slowed_down_retried_and_captured(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp", reason=NO_AIOHTTP)
    too_fast = {3, 40}  # of the calls
    arguments = {"rows": 80, "rate": 400, "latency-ms": 1, "fails-every": 7, "output": tmp_path / "out"}
    seen = itertools.count(1)

    def allows_call(service: Any) -> bool:
        is_allowed = next(seen) not in too_fast
        service.refused += not is_allowed
        return is_allowed

    with example("http_enrichment") as http_enrichment:
        monkeypatch.setattr(http_enrichment.UserService, "allows_call", allows_call)
        assert http_enrichment.main(flags(arguments), spark) == 0

    out = capsys.readouterr().out
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    unknown = [number for number in range(80) if number * 37 % 103 >= 100]
    assert sorted(row.order_id for row in rows if row.error is None) == sorted({*range(80)} - {*unknown})
    assert {row.name for row in rows if row.order_id == 1} == {"user 37"}
    dead_letters = {row.error.input.order_id: row.error for row in rows if row.error is not None}
    assert sorted(dead_letters) == unknown
    assert all("404" in error.message for error in dead_letters.values())
    assert f"{len(unknown)} dead letters" in out
    assert calls_in(out, "find user") > 80 + len(too_fast)
    assert f"as too fast: {len(too_fast)}\n" in out
    assert not any(thread.name == "user service" for thread in threading.enumerate())


def test_the_http_service_refuses_calls_that_come_too_fast_and_says_when_to_come_again() -> None:
    pytest.importorskip("aiohttp", reason=NO_AIOHTTP)
    with example("http_enrichment") as http_enrichment:
        service = http_enrichment.UserService(calls_per_s=0.001, latency_s=0, fails_every=1000)
        with service.serving():
            user, refused = (httpx.get(f"{service.url}/users/7", timeout=TIMEOUT_S) for _ in range(2))

    assert user.json() == {"name": "user 7", "country": "DE"}
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")


@pytest.mark.parametrize("page", pages_with("python spark"), ids=name_of)
def test_the_examples_of_a_page_run_on_spark(page: Path, spark: SparkSession) -> None:
    module = module_for(page)
    module.__dict__["spark"] = spark

    with imported(module):
        run_examples(page, "python spark", module)


def flags(named: dict[str, Any]) -> list[str]:
    return [text for name, value in named.items() for text in (f"--{name}", str(value))]


def calls_in(out: str, operator: str) -> int:
    """The calls that a printed table of metrics says."""
    found = re.search(rf"^{operator} +(\d+) ", out, re.MULTILINE)
    assert found is not None, out
    return int(found[1])
