"""The log of a real MapReduce application master."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.yarnlog.files import read_log
from pipeline.yarnlog.summary import summarize

from .written import records

LOG = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "loghub" / "Hadoop_2k.log"


@pytest.fixture(scope="module")
def found() -> list[Any]:
    if not LOG.is_file():
        pytest.skip("no Hadoop log of loghub beside this checkout")
    return list(read_log(LOG))


def test_every_line_is_in_exactly_one_of_parsed_and_unparsed(found: list[Any]) -> None:
    lines = LOG.read_bytes().decode().split("\r\n")

    # No record of this log has a second line.
    assert [(one.line, one.text) for one in found] == list(enumerate(lines, 1))


def test_what_is_parsed_are_the_lines_of_the_known_kinds(found: list[Any]) -> None:
    parsed = records(found)

    assert Counter(record.message.kind for record in parsed) == {"transition": 67, "handling": 16, "registration": 9}
    assert {record.text for record in parsed} == {
        one.text
        for one in found
        for word in ("Transitioned", "Processing the", "Registering class")
        if word in one.text
    }


def test_all_67_transitions_are_of_the_right_machine_and_one_is_of_an_older_table(
    found: list[Any],
) -> None:
    transitions = [one for one in records(found) if one.message.kind == "transition"]

    machines = {"job": "MRJob", "task": "MRTask", "attempt": "MRTaskAttempt"}
    for record in transitions:
        assert record.message.machine == machines[record.message.entity.partition("_")[0]]
    summary = summarize([LOG])
    assert summary.transitions_by_machine == {"MRTaskAttempt": 42, "MRTask": 22, "MRJob": 3}
    assert (summary.lines, summary.parsed_lines, summary.unparsed_lines) == (2000, 92, 1908)
    assert summary.mismatches == []
    assert summary.older_by_releases == {("MRTaskAttempt", ("2.0", "2.4", "2.7")): 1}


@pytest.mark.parametrize(("release", "lines"), [("2.4", []), ("2.7", []), ("3", [799])])
def test_it_is_the_log_of_a_hadoop_2(release: str, lines: list[int], found: list[Any]) -> None:
    summary = summarize([LOG], release=release)

    assert [one.line for one in summary.mismatches] == lines
    assert summary.mismatches_by_machine.total() == len(lines)
