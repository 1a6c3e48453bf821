"""Logged transitions against the tables of the machines."""

from __future__ import annotations

import pytest

from pipeline.yarnlog import is_declared, mismatch
from statemachines.registry import FACTORIES


@pytest.mark.parametrize(
    ("machine", "transition", "contradiction"),
    [
        ("RMApp", "ACCEPTED ATTEMPT_REGISTERED RUNNING", None),
        ("RMApp", "NEW START RUNNING", "RMApp: START does not lead from NEW to RUNNING, only to NEW_SAVING"),
        ("RMAppAttempt", "LAUNCHED REGISTERED RUNNING", None),
        (
            "RMAppAttempt",
            "NEW REGISTERED RUNNING",
            "RMAppAttempt: REGISTERED does not lead from NEW to RUNNING, only to FINAL_SAVING",
        ),
        ("RMContainer", "ACQUIRED - RUNNING", None),
        (
            "RMContainer",
            "COMPLETED - RUNNING",
            "RMContainer: no event leads from COMPLETED to RUNNING, only to COMPLETED",
        ),
        ("RMNode", "RUNNING - LOST", None),
        ("RMNode", "LOST - RUNNING", "RMNode: no event leads from LOST to RUNNING, only to LOST"),
        ("MRJob", "SETUP - RUNNING", None),
        ("MRJob", "ERROR - RUNNING", "MRJob: no event leads from ERROR to RUNNING, only to ERROR"),
        ("MRTask", "SCHEDULED - RUNNING", None),
        ("MRTask", "FAILED - RUNNING", "MRTask: no event leads from FAILED to RUNNING, only to FAILED"),
        ("MRTaskAttempt", "ASSIGNED - RUNNING", None),
        ("MRTaskAttempt", "KILLED - RUNNING", "MRTaskAttempt: no event leads from KILLED to RUNNING, only to KILLED"),
        ("RMApp", "NEW START NEWER", "RMApp has no state NEWER"),
        ("NMApplication", "INITING - RUNNING", None),
        ("NMApplication", "FINISHED - NEW", "NMApplication: no event leads from FINISHED to NEW, only to FINISHED"),
        ("NMContainer", "NEW - WHEREVER", "NMContainer has no state WHEREVER"),
        ("LocalizedResource", "INIT - DOWNLOADING", None),
        (
            "LocalizedResource",
            "FAILED - INIT",
            "LocalizedResource: no event leads from FAILED to INIT, only to none",
        ),
        ("Task", "NEW - WHEREVER", None),
    ],
)
def test_a_transition_is_held_against_the_table_of_its_machine(
    machine: str, transition: str, contradiction: str | None
) -> None:
    from_state, event, to_state = transition.split()

    assert mismatch(machine, from_state, event.strip("-"), to_state, True) == contradiction


@pytest.mark.parametrize(
    ("machine", "state", "event", "contradiction"),
    [
        ("RMApp", "FINISHED", "START", None),
        ("RMApp", "NEW", "START", "RMApp: NEW takes START, which was refused"),
        ("RMNode", "GONE", "STARTED", "RMNode has no state GONE"),
        ("NMContainer", "DONE", "RESOURCE_FAILED", "NMContainer: DONE takes RESOURCE_FAILED, which was refused"),
        ("NMContainer", "DONE", "CONTAINER_LAUNCHED", None),
        ("Task", "DONE", "RESOURCE_FAILED", None),
    ],
)
def test_what_a_machine_refused_its_table_has_to_refuse(
    machine: str, state: str, event: str, contradiction: str | None
) -> None:
    assert mismatch(machine, state, event, state, False) == contradiction


def test_machines_of_the_registry_are_declared_and_others_are_not() -> None:
    assert [machine for machine in [*FACTORIES, "Task", "Container"] if is_declared(machine)] == list(FACTORIES)
