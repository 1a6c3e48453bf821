"""Two trees of the core do the same with the same random scripts: an earlier revision, and the present one.

`play.py` plays a script and prints what comes out of it; it runs in a process of its own for each tree. Before a change
that is to keep all behavior, set DIFFERENTIAL_AGAINST to the revision before it:

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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from .script import make_script

ROOT = Path(__file__).parents[3]
PLAY = Path(__file__).with_name("play.py")
AGAINST = os.environ.get("DIFFERENTIAL_AGAINST")
FEW = range(150)
MANY = [range(first, first + 250) for first in range(1_000, 3_000, 250)]
LONGEST = 6_000
"""Characters that a failure shows of one script or of one step."""


class Tree:
    """A tree of the dispatcher that `play.py` can play on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def play(self, seeds: Sequence[int]) -> dict[int, list[Any]]:
        """What came out, by seed. The test fails if a script did not come to its end."""
        done = subprocess.run(
            [sys.executable, str(PLAY), *map(str, seeds)],
            env={**os.environ, "PYTHONPATH": str(self.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        said = list(map(json.loads, done.stdout.splitlines()))
        played = {each["seed"]: each["out"] for each in said[1:]}
        missing = [seed for seed in seeds if seed not in played]
        if done.returncode or missing:
            pytest.fail(f"{self.path}: {_script(missing[0])}\nhas no end:\n{done.stderr[-LONGEST:]}")
        assert Path(said[0]).is_relative_to(self.path), f"{said[0]} was imported, not that of {self.path}"
        for seed, out in played.items():
            if "not at rest" in out[-1]:
                pytest.fail(f"{self.path}: {_script(seed)}\n{len(out)} steps, then {_cut(out[-1])}")
        return played


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    if AGAINST is None:
        pytest.skip("set DIFFERENTIAL_AGAINST to the revision to compare with")
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", AGAINST, "dispatcher"], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"this clone has no revision {AGAINST} to compare with: {archive.stderr.decode().strip()}")
    path = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(path, filter="data")
    return Tree(path)


@pytest.fixture(scope="module")
def present() -> Tree:
    return Tree(ROOT)


def _script(seed: int) -> str:
    script = make_script(seed)
    events = {number: [plan.type, plan.key, *plan.actions] for number, plan in script.events.items()}
    steps = "\n".join(f"  {number:3} {json.dumps(step)}" for number, step in enumerate(script.steps))
    return f"seed {seed}: {asdict(script.config)}\nevents: {_cut(events)}\nsteps:\n{steps}"


def _cut(what: Any) -> str:
    text = json.dumps(what)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def difference(before: Sequence[Any], now: Sequence[Any]) -> str:
    """The first step of which something else came out; empty if there is none."""
    for number, (one, other) in enumerate(zip(before, now, strict=False)):
        if one != other:
            parts = [key for key in one | other if one.get(key) != other.get(key)]
            shown = [f"  {key}\n    before {_cut(one.get(key))}\n    now    {_cut(other.get(key))}" for key in parts]
            return "\n".join([f"step {number} {json.dumps(one.get('step'))}:", *shown])
    return "" if len(before) == len(now) else f"{len(before)} steps before, {len(now)} now"


def assert_alike(before: Tree, now: Tree, seeds: Sequence[int]) -> None:
    played, played_now = before.play(seeds), now.play(seeds)

    found = {seed: text for seed in seeds if (text := difference(played[seed], played_now[seed]))}

    if found:
        seed, text = next(iter(found.items()))
        pytest.fail(f"{len(found)} of {len(seeds)} scripts differ: {list(found)[:20]}\n{_script(seed)}\n{text}")


@pytest.mark.long
def test_the_present_tree_does_what_an_earlier_one_did(earlier: Tree, present: Tree) -> None:
    assert_alike(earlier, present, FEW)


@pytest.mark.minutes
@pytest.mark.parametrize("seeds", MANY, ids=str)
def test_the_present_tree_does_what_an_earlier_one_did_with_many_scripts(
    earlier: Tree, present: Tree, seeds: range
) -> None:
    assert_alike(earlier, present, seeds)


@pytest.mark.minutes
@pytest.mark.parametrize("seeds", MANY, ids=str)
def test_what_comes_out_of_a_script_does_not_depend_on_timing(present: Tree, seeds: range) -> None:
    assert_alike(present, present, seeds)


def test_a_script_follows_from_its_seed() -> None:
    assert make_script(7) == make_script(7)
    assert make_script(7) != make_script(8)


def test_the_first_difference_is_shown() -> None:
    same = {"step": ["open"], "result": None}

    assert difference([same], [same]) == ""
    assert "step 1" in difference([same, {"step": ["post", 1], "result": True}], [same, {"step": ["post", 1]}])
    assert difference([same], [same, same]) == "1 steps before, 2 now"
