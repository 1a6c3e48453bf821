"""Random scripts on one dispatcher: each comes to its end, and an earlier revision of the core did the same.

`play.py` plays scripts, in a process of its own for each tree. At the end of each, every accepted event is in one place
and every future is done, as of any scenario of that stage. Before a change that is to keep all behavior, set
DIFFERENTIAL_AGAINST to the revision before it:

    DIFFERENTIAL_AGAINST=HEAD~1 pytest tests/dispatcher/differential
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ...kit import tries
from .script import make_script

ROOT = Path(__file__).parents[3]
PLAY = Path(__file__).with_name("play.py")
AGAINST = os.environ.get("DIFFERENTIAL_AGAINST")
MANY = [range(first, first + 250) for first in range(1_000, 3_000, 250)]


def played(tree: Path, seeds: Sequence[int]) -> dict[int, list[Any]]:
    """What is seen after each step, by seed. The test fails if a script does not come to its end."""
    done = subprocess.run(
        [sys.executable, str(PLAY), *map(str, seeds)],
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    where, *seen = map(json.loads, done.stdout.splitlines() or ['""'])
    if done.returncode or len(seen) < len(seeds):
        cause = f"seed {seeds[len(seen)]}: {make_script(seeds[len(seen)])}" if len(seen) < len(seeds) else "its end"
        pytest.fail(f"{tree}: {cause}\n{done.stderr[-6000:]}")
    assert Path(where).is_relative_to(tree), f"imported {where}, which is not in {tree}"
    return dict(zip(seeds, seen, strict=True))


def difference(before: Sequence[Any], now: Sequence[Any]) -> str:
    """The first step after which the two runs differ, with both values; empty if they never do."""
    for number, (one, other) in enumerate(zip(before, now, strict=True)):
        if changed := [f"  {what}\n    {one[what]}\n    {other[what]}" for what in one if one[what] != other[what]]:
            return "\n".join([f"step {number}: {one['step']}", *changed])
    return ""


def assert_alike(before: Path, now: Path, seeds: Sequence[int]) -> None:
    one, other = played(before, seeds), played(now, seeds)

    found = {seed: text for seed in seeds if (text := difference(one[seed], other[seed]))}

    assert not found, f"{list(found)} differ; {make_script(next(iter(found)))}\n{next(iter(found.values()))}"


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if AGAINST is None:
        pytest.skip("set DIFFERENTIAL_AGAINST to the revision to compare with")
    command = ["git", "-C", str(ROOT), "archive", AGAINST, "dispatcher", "tests"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"this clone has no revision {AGAINST} to compare with: {archive.stderr.decode().strip()}")
    path = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(path, filter="data")
    return path


@pytest.mark.long
@pytest.mark.parametrize("seeds", [(0, 4, 5, 8, 9), pytest.param(range(tries(250)), marks=pytest.mark.minutes)])
def test_each_script_comes_to_its_end_with_each_event_in_one_place(seeds: Sequence[int]) -> None:
    """The few are quick ones."""
    played(ROOT, seeds)


@pytest.mark.long
@pytest.mark.parametrize("seeds", [range(150), *(pytest.param(seeds, marks=pytest.mark.minutes) for seeds in MANY)])
def test_the_present_tree_does_what_an_earlier_one_did(earlier: Path, seeds: range) -> None:
    assert_alike(earlier, ROOT, seeds)


@pytest.mark.minutes
@pytest.mark.parametrize("seeds", MANY)
def test_what_comes_out_of_a_script_does_not_depend_on_timing(seeds: range) -> None:
    assert_alike(ROOT, ROOT, seeds)


def test_the_first_difference_is_shown() -> None:
    same = {"step": "post 1", "posted": ["True"]}

    assert difference([same, same], [same, same]) == ""
    assert "step 1: post 1\n  posted" in difference([same, same], [same, {**same, "posted": ["False"]}])
