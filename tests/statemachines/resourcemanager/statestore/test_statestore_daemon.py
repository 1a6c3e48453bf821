"""A daemon whose store cannot be used, or fails: it says so, to its user or to its clients, and loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher import ServiceState
from statemachines.resourcemanager import ApplicationSubmission, Resource, ResourceManager
from statemachines.resourcemanager.records.errors import ApplicationRejectedError
from statemachines.resourcemanager.statestore.store import StateStoreError
from statemachines.simulation.workload import NodeSpec, Workload

from ....dispatcher.waiting import no_thread_is_left
from ...simulation.replays import config
from ..stores import TIMEOUT_S, app_id, applications_in, attempt_id, change, refuse


def daemon(path: Path) -> ResourceManager:
    """A resource manager in real time, with a store of its own."""
    return ResourceManager(config(state_store={"kind": "sqlite", "path": path}))


def submission(app_id: str) -> ApplicationSubmission:
    return ApplicationSubmission("job", Resource(1, 1), application_id=app_id)


def test_client_hears_that_its_application_cannot_be_stored_and_others_can(tmp_path: Path) -> None:
    refuse(tmp_path / "state.db", app_id(1))
    with daemon(tmp_path / "state.db") as manager:
        with pytest.raises(ApplicationRejectedError, match="database or disk is full"):
            manager.clients.submit_application(submission(app_id(1)), TIMEOUT_S)
        accepted = manager.clients.submit_application(submission(app_id(2)), TIMEOUT_S)
        states = {report.application_id: report.state for report in manager.clients.get_applications()}

    assert accepted == app_id(2)
    assert states.keys() == {app_id(1), app_id(2)}
    assert states[app_id(1)] == "FAILED"
    assert applications_in(tmp_path / "state.db") == [app_id(2)]


def test_label_of_a_node_survives_a_restart(tmp_path: Path) -> None:
    """The node came back into the partition that it registers with."""
    nodes = Workload("nodes", (NodeSpec("n1", Resource(10, 10), partition="own"),), ())
    partitions = []
    for label in ("gpu", None):
        with daemon(tmp_path / "state.db") as manager:
            manager.bring(nodes)
            if label is not None:
                manager.admin.replace_labels_on_node("n1:45454", label, timeout=TIMEOUT_S)
            partitions += [node.partition for node in manager.clients.get_cluster_nodes(timeout=TIMEOUT_S)]

    assert partitions == ["gpu", "gpu"]


def test_resource_manager_stops_if_an_indispensable_write_fails(tmp_path: Path) -> None:
    refuse(tmp_path / "state.db", attempt_id(1), table="attempts")
    with daemon(tmp_path / "state.db") as manager:
        manager.bring(Workload("nodes", (NodeSpec("n1", Resource(10, 10)),), ()))
        manager.clients.submit_application(submission(app_id(1)), TIMEOUT_S)

        assert manager.dispatcher.wait_for_service_to_stop(TIMEOUT_S)

    assert str(manager.dispatcher.failure_cause) == "database or disk is full"
    assert applications_in(tmp_path / "state.db") == [app_id(1)]


def test_resource_manager_does_not_start_with_a_store_that_another_one_uses(tmp_path: Path) -> None:
    with no_thread_is_left("dispatcher-monitor"), daemon(tmp_path / "state.db"):
        other = daemon(tmp_path / "state.db")

        with pytest.raises(StateStoreError, match="in use: another resource manager"), other:
            pass

    assert other.state is ServiceState.STOPPED


def test_resource_manager_does_not_start_with_a_record_that_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with daemon(path) as manager:
        manager.clients.submit_application(submission(app_id(1)), TIMEOUT_S)
    change(path, "UPDATE applications SET application_id = ?, record = '{}' || record", "application_7_0009")

    with pytest.raises(StateStoreError, match="damaged: the record of application_7_0009"), daemon(path):
        pass

    change(path, "UPDATE applications SET application_id = ?, record = substr(record, 3)", app_id(1))
    assert applications_in(path) == [app_id(1)]  # it was closed, and not touched
