"""A task whose process is killed at any moment, and started again, loses no input; what repeats, it has said."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ....kit import tries
from ....kit.killed import forking
from . import kill_worker

INPUTS = 150
KILLS = tries(12)  # of each of the 4 tasks
LONGEST_RUN_S = 0.08

Run = Callable[..., bool]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Run a task in a process of its own: `run(**request)` says whether it was killed."""
    with forking(kill_worker) as server:

        def ask(**request: Any) -> bool:
            server.start(json.dumps(request))
            ended = server.said()
            assert ended in ("ended 0", f"ended {-signal.SIGALRM}"), "the output of the test says why"
            return ended != "ended 0"

        yield ask


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "source", "cuts"),
    [("ordered", False, False), ("unordered", False, False), ("unordered", True, False), ("ordered", True, True)],
    ids=["ordered", "unordered", "of a source", "with an output that is cut back"],
)
def test_a_task_killed_at_random_moments_loses_nothing(
    run: Run, tmp_path: Path, mode: str, source: bool, cuts: bool
) -> None:
    moments = random.Random(f"{mode} {source} {cuts}")
    kills = task = 0
    while kills < KILLS:
        folder = tmp_path / str(task)
        folder.mkdir()
        task += 1
        request = {"folder": str(folder), "mode": mode, "source": source, "cuts": cuts, "inputs": INPUTS}
        while run(**request, kill_after_s=moments.uniform(0, LONGEST_RUN_S) if kills < KILLS else None):
            kills += 1
        outputs = [int(line) for line in (folder / "output").read_text().splitlines()]
        assert sorted(set(outputs)) == list(range(INPUTS))
        if cuts:
            assert outputs == list(range(INPUTS)), "an output that is cut back has each record once"
        else:
            _check_repeats([json.loads(line) for line in (folder / "starts").read_text().splitlines()], outputs)


def _check_repeats(starts: list[dict[str, int]], outputs: list[int]) -> None:
    """Each run repeats only outputs after the number that its recovery has named.

    Numbers count along the runs that were restored from each other: what a run has emitted, behind what the run before
    it had emitted until the checkpoint that was restored.
    """
    bounds = [*(start["lines"] for start in starts), len(outputs)]
    numbered: list[list[int]] = []  # for each run, all outputs up to its end by their number
    for index, start in enumerate(starts):
        taken_by = max((i for i in range(index) if starts[i]["next_id"] <= start["restored"]), default=None)
        before = numbered[taken_by][: start["outputs_before"]] if taken_by is not None else []
        assert len(before) == start["outputs_before"]
        numbered.append(before + outputs[bounds[index] : bounds[index + 1]])
        assert len(set(numbered[-1])) == len(numbered[-1]), "repeated what the recovery had ruled out"

    assert sorted(numbered[-1]) == list(range(INPUTS))
