"""Every arc of RMContainer: where it leads, and what it posts."""

from __future__ import annotations

import pytest

from .builders import NODE, TASK, Case, Workshop, case_id, declared, event_for, targets

ENDED = ("RMAppAttempt CONTAINER_FINISHED",)
STOP = ("RMNode CLEANUP_CONTAINER", "RMAppAttempt CONTAINER_FINISHED")
CASES = [
    Case("NEW", "START", "ALLOCATED", ("RMAppAttempt CONTAINER_ALLOCATED",)),
    Case("NEW", "KILL", "KILLED"),
    Case("ALLOCATED", "ACQUIRED", "ACQUIRED", ("RMApp APP_RUNNING_ON_NODE",)),
    Case("ALLOCATED", "KILL", "KILLED", ENDED),
    Case("ACQUIRED", "LAUNCHED", "RUNNING"),
    Case("ACQUIRED", "ACQUIRED", "ACQUIRED"),
    Case("ACQUIRED", "FINISHED", "COMPLETED", ENDED),
    Case("ACQUIRED", "RELEASED", "RELEASED", STOP),
    Case("ACQUIRED", "KILL", "KILLED", STOP),
    Case("RUNNING", "FINISHED", "COMPLETED", ENDED),
    Case("RUNNING", "KILL", "KILLED", STOP),
    Case("RUNNING", "RELEASED", "RELEASED", STOP),
    Case("RUNNING", "ACQUIRED", "RUNNING"),
]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_arc_leads_to_its_state_and_posts_its_events(workshop: Workshop, case: Case) -> None:
    container = workshop.container(case.state)

    container.handle(event_for(container, case.event))

    assert (container.state.name, workshop.recorder.machines["RMContainer"].invalid) == (case.to, 0)
    assert workshop.posted.told() == list(case.posts)


def test_all_arcs_of_the_table_have_a_case() -> None:
    assert targets(CASES) == declared("RMContainer")


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_container_is_forgotten_when_and_only_when_it_has_ended(workshop: Workshop, case: Case) -> None:
    container = workshop.container(case.state)

    container.handle(event_for(container, case.event))

    has_ended = case.to in ("COMPLETED", "RELEASED", "KILLED")
    assert workshop.context.containers == ({} if has_ended else {TASK: container})


def test_attempt_hears_of_the_end_with_status_and_node(workshop: Workshop) -> None:
    container = workshop.container("RUNNING")
    event = event_for(container, "FINISHED")

    container.handle(event)

    (finished,) = workshop.posted.events
    assert (finished.entity, finished.status, finished.node) == (container.attempt, event.status, NODE)


def test_node_hears_which_container_to_stop(workshop: Workshop) -> None:
    container = workshop.container("RUNNING")

    container.handle(event_for(container, "KILL"))

    clean_up = workshop.posted.events[0]
    assert (clean_up.entity, clean_up.about) == (NODE, TASK)


def test_application_hears_on_which_node_it_runs(workshop: Workshop) -> None:
    container = workshop.container("ALLOCATED")

    container.handle(event_for(container, "ACQUIRED"))

    (running,) = workshop.posted.events
    assert (running.entity, running.node) == (container.application, NODE)


def test_payload_tells_the_journal_what_the_container_has(workshop: Workshop) -> None:
    assert workshop.container().payload() == {
        "application": "application_0_0001",
        "attempt": "appattempt_0_0001_000001",
        "node": NODE,
        "memory_mb": 1024,
        "vcores_milli": 1000,
        "gpus": 0,
        "gpu_milli": 1000,
        "gpu_devices": (),
        "kind": "map",
    }
