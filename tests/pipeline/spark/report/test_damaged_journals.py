"""What each reader in Spark says about a damaged journal: the report, its page and command, the source, the stream."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dispatcher import JournalError
from pipeline.journal import Problem
from pipeline.spark import write_report

from ....kit.commands import run_here
from ....kit.segment_files import segment_path
from ... import damaged_journals
from ...damaged_journals import KINDS, Kind, write_sound_journal
from ...journal.reading import problems
from ..data_source import source
from .followed_journal import follow

PAIRS = [pytest.param(*KINDS[:2]), *(pytest.param(*KINDS[at : at + 2], marks=pytest.mark.slow) for at in (2, 4, 6, 8))]
PAIRS += [pytest.param(KINDS[10], KINDS[0], marks=pytest.mark.slow)]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return write_sound_journal(tmp_path / "journal")


def problems_in(journal: Path) -> list[Problem]:
    return problems(journal, as_reported=True)


@pytest.mark.parametrize(("kind", "before"), PAIRS, ids=lambda kind: kind.name)
def test_the_report_its_page_and_the_one_compared_with_list_all_damage(
    journal: Path, kind: Kind, before: Kind, spark: SparkSession, tmp_path: Path
) -> None:
    """One flipped byte: the page said "no damage", and showed 195,904 of 200,000 events as all."""
    other = write_sound_journal(tmp_path / "other")
    kind.damage(journal)
    before.damage(other)

    report = write_report(spark, journal, tmp_path / "report", compare=other)

    assert report.damage == tuple(problems_in(journal))
    assert report.damage_before == tuple(problems_in(other))
    assert (report.events, report.transitions) == (
        damaged_journals.EVENTS - kind.events,
        damaged_journals.TRANSITIONS - kind.transitions,
    )
    page = html.unescape(report.page.read_text(encoding="utf-8"))
    expected = Counter([*report.damage, *report.damage_before])
    assert {problem: page.count(f"<li>{problem}</li>") for problem in expected} == expected


Read = Callable[..., int]


def batch(journal: Path, **options: str) -> int:
    """How many events the data source reads, called as Spark calls it."""
    asked = source(journal, **options)
    reader = asked.reader(asked.schema())
    return sum(rows.num_rows for partition in reader.partitions() for rows in reader.read(partition))


def stream(journal: Path, **options: str) -> int:
    """How many events a stream reads."""
    asked = source(journal, **options)
    reader = asked.streamReader(asked.schema())
    partitions = reader.partitions(reader.initialOffset(), reader.latestOffset())
    return sum(rows.num_rows for partition in partitions for rows in reader.read(partition))


IN_SEGMENTS = [kind for kind in KINDS if any(lost.has_place for lost in kind.lost) or kind.name == "cut between frames"]


@pytest.mark.parametrize(
    ("read", "kind"),
    [*((batch, kind) for kind in KINDS), *((stream, kind) for kind in IN_SEGMENTS)],
    ids=lambda each: getattr(each, "name", None) or each.__name__,
)
def test_the_source_and_a_stream_skip_the_same_damage_and_log_it_or_fail_on_it(
    journal: Path, read: Read, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    kind.damage(journal)
    expected = [each for each in problems_in(journal) if read is batch or "manifest" not in each.problem]

    assert read(journal) == damaged_journals.EVENTS - kind.events
    assert sorted(caplog.messages) == sorted(f"{journal}: {problem}" for problem in expected)
    with pytest.raises(JournalError) as failed:
        read(journal, mode="FAILFAST")
    assert any(f"damaged journal: {problem}. See" in str(failed.value) for problem in expected)


def test_a_stream_fails_on_a_missing_segment_and_says_what_is_lost(journal: Path) -> None:
    segment_path(journal, 2).unlink()

    with pytest.raises(JournalError, match=r"segment-00000002\.journal: is missing, and the stream has not read it"):
        stream(journal)


def test_a_followed_report_remembers_the_damage_of_earlier_segments(
    journal: Path, spark: SparkSession, tmp_path: Path
) -> None:
    KINDS[0].damage(journal)

    for _ in range(2):  # a restart reads the digests that are there
        with follow(spark, journal, tmp_path / "report", until_idle=True) as follower:
            assert follower.wait(120)
            report = follower.write("journal")

        assert report.damage == tuple(problems_in(journal))
        assert follower.progress().problems == 1


def test_the_command_prints_the_damage_and_exits_with_1(
    journal: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    KINDS[0].damage(journal)
    monkeypatch.setattr("pipeline.spark.spark_session", lambda master, **_: nullcontext(spark))

    done = run_here("report", journal, "--output", tmp_path / "report")

    assert done.code == 1
    said = " ".join(done.out.split())
    assert "Missing from its figures: 4 events and 2 transitions." in said
    assert all(str(problem) in said for problem in problems_in(journal))
