"""The log of a real MapReduce application master."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from ...kit.commands import run_here

LOG = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "loghub" / "Hadoop_2k.log"
COUNTS = """
in 1 file 2,000 / parsed 92 92 / transition 67 67 / handling 16 16 / registration 9 9 / unparsed 1,908
MRTask 22 0 / MRJob 3 0
"""
"""As many as there are lines with Transitioned, with Processing the event, and with Registering class."""
OLDER = "MRTaskAttempt 42 0 / MRTaskAttempt: 1 of Hadoop before 2.3, 2.4, 2.7"


@pytest.mark.skipif(not LOG.is_file(), reason="no Hadoop log of loghub beside this checkout")
@pytest.mark.parametrize(
    ("release", "said"),
    [("", OLDER), ("2.4", "MRTaskAttempt 42 0"), ("2.7", "MRTaskAttempt 42 0"), ("3", "MRTaskAttempt 42 1")],
)
def test_its_transitions_are_those_of_a_hadoop_2(release: str, said: str) -> None:
    done = run_here("yarn-log", LOG, "--strict", *(("--release", release) if release else ()))

    lines = {" ".join(line.split()) for line in done.out.splitlines()}
    expected = [each.strip() for part in f"{COUNTS.strip()}\n{said}".splitlines() for each in part.split("/")]
    assert [each for each in expected if each not in lines] == []
    assert (done.code or 0) == (release == "3")
    assert (f"{LOG}:799: " in done.out) == (release == "3")
