"""A daemon whose store cannot be used, or fails: it says so, to its user or to its clients, and loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher import ServiceState
from statemachines.resourcemanager import (
    ApplicationNotStoredError,
    ApplicationSubmission,
    Caller,
    ChangeNotStoredError,
    Resource,
    ResourceManager,
    StateStoreError,
)
from statemachines.simulation.workload import NodeSpec, Workload

from ....kit import no_thread_is_left, until
from ...simulation.replays import config
from ..inner import AdminService, InvalidRequestError
from ..stores import TIMEOUT_S, app_id, applications_in, attempt_id, change, refuse, refuse_changes_of_nodes

N1, N2 = "n1:45454", "n2:45454"


def daemon(path: Path) -> ResourceManager:
    """A resource manager in real time, with a store of its own."""
    return ResourceManager(config(state_store={"kind": "sqlite", "path": path}))


def submission(app_id: str) -> ApplicationSubmission:
    return ApplicationSubmission("job", Resource(1, 1), application_id=app_id)


def test_client_hears_that_its_application_cannot_be_stored_and_others_can(tmp_path: Path) -> None:
    refuse(tmp_path / "state.db", app_id(1))
    with daemon(tmp_path / "state.db") as manager:
        with pytest.raises(ApplicationNotStoredError, match="database or disk is full"):
            manager.clients.submit_application(submission(app_id(1)), TIMEOUT_S)
        accepted = manager.clients.submit_application(submission(app_id(2)), TIMEOUT_S)
        states = {report.application_id: report.state for report in manager.clients.get_applications()}

    assert accepted == app_id(2)
    assert states.keys() == {app_id(2)}  # the other one can be submitted again
    assert applications_in(tmp_path / "state.db") == [app_id(2)]


@pytest.mark.parametrize(
    ("changes", "after"),
    [
        ([lambda admin: admin.replace_labels_on_node(N1, "gpu")], {N1: "10 MB of gpu", N2: "10 MB of own"}),
        ([lambda admin: admin.update_node_resource(N1, Resource(5, 5))], {N1: "5 MB of own", N2: "10 MB of own"}),
        ([lambda admin: admin.refresh_nodes(["n1"])], {"n1:-1": "DECOMMISSIONED", N2: "10 MB of own"}),
        ([lambda admin: admin.refresh_nodes(["n1"], graceful=True)], {"n1:-1": "DECOMMISSIONED", N2: "10 MB of own"}),
        (
            [lambda admin: admin.refresh_nodes(["n1"]), lambda admin: admin.recommission(["n1"])],
            {N1: "10 MB of own", N2: "10 MB of own"},
        ),
        ([lambda admin: admin.refresh_nodes(include=["n2"])], {N2: "10 MB of own"}),
        (
            [lambda admin: admin.refresh_nodes(include=["n2"]), lambda admin: admin.refresh_nodes(include=[])],
            {N1: "10 MB of own", N2: "10 MB of own"},
        ),
        (
            [
                lambda admin: admin.replace_labels_on_node(N1, "gpu"),
                lambda admin: admin.update_node_resource(N1, Resource(5, 5)),
                lambda admin: admin.give_up_node_change(N1, "label"),
                lambda admin: admin.give_up_node_change(N1, "capacity"),
            ],
            {N1: "10 MB of own", N2: "10 MB of own"},
        ),
    ],
    ids=[
        *("label", "capacity", "excluded", "excluded gracefully", "recommissioned", "included", "all included again"),
        "given up",
    ],
)
def test_what_an_administrator_changes_of_nodes_survives_a_restart(
    tmp_path: Path, changes: list[Callable[[AdminService], None]], after: dict[str, str]
) -> None:
    """A decommissioned node ran again (YARN-10896), with the capacity and the label that it registers with."""
    nodes = Workload("nodes", tuple(NodeSpec(host, Resource(10, 10), partition="own") for host in ("n1", "n2")), ())
    with daemon(tmp_path / "state.db") as manager:
        manager.bring(nodes)
        for change_nodes in changes:
            change_nodes(manager.admin)
        before = manager.admin.changes

    with daemon(tmp_path / "state.db") as manager:
        manager.bring(nodes)
        found = manager.clients.get_cluster_nodes(timeout=TIMEOUT_S)
        assert manager.admin.changes == before

    out = "DECOMMISSIONED"
    texts = {n.node_id: out if n.state == out else f"{n.capacity.memory_mb} MB of {n.partition}" for n in found}
    assert texts == after


def test_changes_of_queues_survive_a_restart_and_those_that_fit_no_longer_are_kept_without_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def capacity_daemon(**capacities: float) -> ResourceManager:
        queues = [{"name": name, "capacity": capacity} for name, capacity in capacities.items()]
        store = {"kind": "sqlite", "path": tmp_path / "state.db"}
        return ResourceManager(config(state_store=store, scheduler={"kind": "capacity", "queues": queues}))

    def seen(manager: ResourceManager) -> tuple[dict[str, tuple[int, str]], list[str]]:
        infos = manager.context.call(manager.context.scheduler.queues)
        queues = {info.path: (round(100 * info.capacity), info.state) for info in infos[1:]}
        return queues, [f"{each.queue} {each.key}" for each in manager.admin.changes.queues if not each.problem]

    def scheduler_queue(manager: ResourceManager) -> str | None:
        return manager.context.scheduler.queue_of(app_id(2))

    with capacity_daemon(a=60, b=40) as manager:
        manager.admin.update_queues(
            {"a": {"capacity": 50}, "b": {"state": "STOPPED"}}, add={"root.c": {"capacity": 10}}
        )
    with capacity_daemon(a=60, b=40) as manager:
        changed = seen(manager)
        with pytest.raises(InvalidRequestError, match=r"queue root\.b is stopped"):
            manager.clients.submit_application(submission(app_id(1))._replace(queue="b"), caller=Caller("ann"))
    with capacity_daemon(a=30, b=70) as manager:
        other = seen(manager)
    with capacity_daemon(a=60, b=40) as manager:
        again = seen(manager)
        manager.clients.submit_application(submission(app_id(2))._replace(queue="c"), TIMEOUT_S)
        until(lambda: scheduler_queue(manager) == "root.c")
        manager.admin.update_queues({"c": {"state": "STOPPED"}})
        with pytest.raises(InvalidRequestError, match=r"queue root\.c has 1 application and cannot be removed"):
            manager.admin.give_up_queue_changes()
        manager.clients.force_kill_application(app_id(2), timeout=TIMEOUT_S)
        until(lambda: scheduler_queue(manager) is None)
        manager.admin.give_up_queue_changes()
    with capacity_daemon(a=60, b=40) as manager:
        given_up = seen(manager)

    all_changes = ["root.a capacity", "root.b state", "root.c capacity", "root.c queue"]
    run, stopped = "RUNNING", "STOPPED"
    assert changed == again == ({"root.a": (50, run), "root.b": (40, stopped), "root.c": (10, run)}, all_changes)
    assert other == ({"root.a": (30, run), "root.b": (70, stopped)}, ["root.b state"])
    assert "3 changes of queues set aside" in caplog.text
    assert given_up == ({"root.a": (60, run), "root.b": (40, run)}, [])


def test_change_of_nodes_that_cannot_be_stored_holds_and_its_administrator_hears_of_it(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    refuse_changes_of_nodes(path, "host_lists")
    with daemon(path) as manager:
        with pytest.raises(ChangeNotStoredError, match=r"change of hosts holds only until .* disk is full"):
            manager.admin.refresh_nodes(["n1"], timeout=TIMEOUT_S)
        nodes = manager.clients.get_cluster_nodes({"DECOMMISSIONED"}, timeout=TIMEOUT_S)

    assert [node.host for node in nodes] == ["n1"]


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
