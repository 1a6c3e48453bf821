"""The transitions that a real MapReduce application master logged, against the tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from statemachines.conformance import violation
from statemachines.registry import FACTORIES, HADOOP_CLASSES
from statemachines.releases.differences import ANY

LOG = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "loghub" / "Hadoop_2k.log"
# `job_1_0001Job Transitioned from NEW to INITED`: Hadoop has no space there.
LINE = re.compile(
    r"\.(\w+): ((?:job|task|attempt)_[\d_mr]*\d) ?(?:Job|Task|TaskAttempt) Transitioned from (\w+) to (\w+)"
)


class Logged(NamedTuple):
    machine: str
    entity: str
    from_state: str
    to_state: str


@pytest.fixture(scope="module")
def transitions() -> list[Logged]:
    if not LOG.is_file():
        pytest.skip("no Hadoop log of loghub beside this checkout")
    found = LINE.findall(LOG.read_text(encoding="utf-8"))
    return [Logged(HADOOP_CLASSES[class_], *rest) for class_, *rest in found]


def test_all_67_transitions_of_the_log_are_read(transitions: list[Logged]) -> None:
    machines = [logged.machine for logged in transitions]

    assert {machine: machines.count(machine) for machine in set(machines)} == {
        "MRJob": 3,
        "MRTask": 22,
        "MRTaskAttempt": 42,
    }


def test_each_transition_of_the_log_is_one_of_the_tables_but_for_that_of_an_older_hadoop(
    transitions: list[Logged],
) -> None:
    found = [(logged, violation(logged.machine, logged.from_state, logged.to_state)) for logged in transitions]

    # This master killed the container of an attempt that is done. Newer ones let it end by itself: they have
    # SUCCESS_FINISHING_CONTAINER between the two states.
    refused = [(logged[1:], why) for logged, why in found if why is not None]
    assert [what for what, _ in refused] == [
        ("attempt_1445144423722_0020_m_000003_0", "RUNNING", "SUCCESS_CONTAINER_CLEANUP")
    ]
    assert refused[0][1] is not None
    assert refused[0][1].startswith(
        "MRTaskAttempt: no event leads from RUNNING to SUCCESS_CONTAINER_CLEANUP, only to COMMIT_PENDING, "
    )


@pytest.mark.parametrize("release", ["2.4", "2.7", ANY])
def test_each_transition_of_the_log_is_one_of_an_older_release(release: str, transitions: list[Logged]) -> None:
    found = [violation(one.machine, one.from_state, one.to_state, release=release) for one in transitions]

    assert found == [None] * 67


def test_each_entity_of_the_log_goes_from_new_on_without_a_gap(transitions: list[Logged]) -> None:
    states: dict[str, str] = {}

    gaps = []
    for machine, entity, from_state, to_state in transitions:
        if states.get(entity, FACTORIES[machine].initial_state.name) != from_state:
            gaps.append((entity, states.get(entity), from_state))
        states[entity] = to_state

    assert gaps == []
