"""Nodes that are decommissioned, lost, unhealthy, rebooted, shut down or resized, and the effects on applications."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import NMContainerStatus, Resource, RMNodeEventType
from statemachines.resourcemanager.events.records import EXIT_ABORTED
from statemachines.resourcemanager.events.rmnode import RMNodeEvent
from statemachines.resourcemanager.events.services import NodesListManagerEventType
from statemachines.resourcemanager.machines.rmnode import node_id
from statemachines.resourcemanager.records.errors import NodeRefusedError
from statemachines.resourcemanager.services.resource_tracker_service import NodeAction
from statemachines.simulation.workload import NodeSpec

from .yarn_cluster import Yarn, ask, hosts_of

pytestmark = pytest.mark.long

EXPIRY_MS = 1000


def empty(yarn: Yarn, host: str, timeout_s: int | None = None) -> None:
    yarn.do(lambda: yarn.admin.refresh_nodes([host], graceful=True, timeout_s=timeout_s))


# -- decommissioning --------------------------------------------------------------------------------------------------


def test_node_is_emptied_gets_nothing_new_and_leaves_when_its_applications_have_ended() -> None:
    with Yarn("n1", "n2") as yarn:
        master = yarn.submit_and_run(am_host="n1")
        (task,) = master.get_running(ask(host="n1", relax_locality=False))

        empty(yarn, "n1")
        yarn.heartbeat("n1")
        elsewhere = hosts_of(master.get(ask(host="n1")))
        insisting = master.get(ask(host="n1", relax_locality=False))
        yarn.end(task)
        waiting = yarn.node_states()
        master.finish_and_exit()
        answer = yarn.heartbeat("n1")  # it reports once more, and is empty
        after = yarn.heartbeat("n1")

        assert (elsewhere, insisting) == (["n2"], [])
        assert waiting == {"n1": "DECOMMISSIONING", "n2": "RUNNING"}
        assert yarn.node_states() == {"n1": "DECOMMISSIONED", "n2": "RUNNING"}
        assert answer.apps_to_clean == ["application_0_0001"]
        assert after.action is NodeAction.SHUTDOWN
        with pytest.raises(NodeRefusedError):
            yarn.register("n1")


def test_node_that_is_not_empty_in_time_leaves_with_what_it_runs() -> None:
    with Yarn("n1", "n2") as yarn:
        master = yarn.submit_and_run(am_host="n2")
        (task,) = master.get_running(ask(host="n1"))

        empty(yarn, "n1", timeout_s=5)
        yarn.advance(4_999)
        before = yarn.node_states()["n1"]
        yarn.advance(1)
        finished = master.allocate().finished

        assert before == "DECOMMISSIONING"
        assert yarn.node_states()["n1"] == "DECOMMISSIONED"
        assert [(status.container, status.exit_status) for status in finished] == [(task.entity, EXIT_ABORTED)]


def test_recommissioned_node_stays_past_its_time_and_is_used_again() -> None:
    with Yarn("n1") as yarn:
        master = yarn.submit_and_run()

        empty(yarn, "n1", timeout_s=5)
        yarn.heartbeat("n1")
        meanwhile = master.get(ask())
        yarn.do(lambda: yarn.admin.recommission(["n1"]))
        got = master.get()
        yarn.advance(10_000)

        assert meanwhile == []
        assert hosts_of(got) == ["n1"]
        assert yarn.node_states() == {"n1": "RUNNING"}


def test_master_is_notified_when_a_node_begins_to_leave_and_when_it_has_left() -> None:
    with Yarn("n1", "n2") as yarn:
        master = yarn.submit_and_run(am_host="n2")
        master.get_running(ask(host="n1"))

        empty(yarn, "n1", timeout_s=5)
        first = master.allocate().updated_nodes
        yarn.advance(5_000)
        second = master.allocate().updated_nodes

        assert first == [(node_id("n1"), NodesListManagerEventType.NODE_DECOMMISSIONING)]
        assert second == [(node_id("n1"), NodesListManagerEventType.NODE_UNUSABLE)]
        assert master.allocate().updated_nodes == ()


def test_node_that_is_decommissioned_at_once_ends_what_it_runs() -> None:
    with Yarn("n1", "n2") as yarn:
        app = yarn.submit(am_host="n1")
        yarn.run(app)

        yarn.do(lambda: yarn.admin.refresh_nodes(["n1"]))

        assert yarn.node_states() == {"n1": "DECOMMISSIONED", "n2": "RUNNING"}
        assert yarn.states(app) == ("ACCEPTED", ["FAILED", "LAUNCHED"])
        assert yarn.report(app).master_node == node_id("n2")


def test_recommissioned_host_may_register_a_node_again() -> None:
    with Yarn("n1") as yarn:
        yarn.do(lambda: yarn.admin.refresh_nodes(["n1"]))

        yarn.do(lambda: yarn.admin.recommission(["n1"]))
        yarn.register("n1")

        assert yarn.node_states() == {"n1": "RUNNING"}
        assert yarn.submit_and_run().container is not None


# -- lost, ill, rebooted, shut down -----------------------------------------------------------------------------------


def test_lost_node_ends_its_containers_and_the_master_learns_of_each() -> None:
    with Yarn("n1", "n2", expiry_ms=EXPIRY_MS) as yarn:
        master = yarn.submit_and_run(am_host="n1")
        tasks = master.get_running(ask(host="n2"), ask(host="n2"))

        yarn.advance(EXPIRY_MS // 2)
        yarn.heartbeat("n1")
        master.allocate()
        yarn.advance(EXPIRY_MS // 2)
        response = master.allocate()

        assert yarn.node_states() == {"n1": "RUNNING", "n2": "LOST"}
        assert {status.container for status in response.finished} == {task.entity for task in tasks}
        assert {status.exit_status for status in response.finished} == {EXIT_ABORTED}
        assert (node_id("n2"), NodesListManagerEventType.NODE_UNUSABLE) in response.updated_nodes
        assert yarn.clients.get_cluster_metrics().total == Resource(10, 10)


def test_master_on_a_lost_node_is_followed_by_another_as_often_as_that_happens() -> None:
    with Yarn("n1", max_attempts=2) as yarn:
        app = yarn.submit()

        for _ in range(3):
            yarn.run(app)
            yarn.do(lambda: yarn.context.post(RMNodeEvent(RMNodeEventType.EXPIRE, node_id("n1"))))
            yarn.register("n1")

        assert yarn.states(app) == ("ACCEPTED", ["FAILED"] * 3 + ["LAUNCHED"])


def test_node_that_begins_anew_without_registering_is_rebooted_and_registers() -> None:
    with Yarn("n1") as yarn:
        app = yarn.submit()
        yarn.run(app)
        first = yarn.heartbeat("n1", response_id=0)
        second = yarn.heartbeat("n1", response_id=first.response_id)

        answer = yarn.heartbeat("n1", response_id=0)  # it has forgotten where it was
        rebooted = yarn.node_states(), yarn.states(app)
        yarn.register("n1")

        assert second.response_id == 2
        assert answer.action is NodeAction.RESYNC
        assert rebooted == ({"n1": "REBOOTED"}, ("ACCEPTED", ["FAILED", "SCHEDULED"]))
        assert yarn.node_states() == {"n1": "RUNNING"}
        assert yarn.states(app) == ("ACCEPTED", ["FAILED", "LAUNCHED"])


def test_ill_node_ends_its_containers_and_serves_again_when_it_is_well() -> None:
    with Yarn("n1", "n2") as yarn:
        master = yarn.submit_and_run(am_host="n1")
        (task,) = master.get_running(ask(host="n2"))

        yarn.heartbeat("n2", healthy=False)
        ill = yarn.node_states()["n2"], [node.is_healthy for node in yarn.clients.get_cluster_nodes(["UNHEALTHY"])]
        finished = [status.container for status in master.allocate().finished]
        insisting = master.get(ask(host="n2", relax_locality=False))
        cleaned = yarn.heartbeat("n2").containers_to_clean
        got = master.get()

        assert ill == ("UNHEALTHY", [False])
        assert finished == [task.entity]
        assert insisting == []
        assert cleaned == {task.entity}
        assert yarn.node_states()["n2"] == "RUNNING"
        assert hosts_of(got) == ["n2"]


def test_node_that_shuts_down_by_itself_leaves_at_once() -> None:
    with Yarn("n1", "n2") as yarn:
        app = yarn.submit(am_host="n1")
        yarn.run(app)

        yarn.do(lambda: yarn.manager.tracker.unregister_node(node_id("n1")))

        assert yarn.node_states() == {"n1": "SHUTDOWN", "n2": "RUNNING"}
        assert yarn.states(app) == ("ACCEPTED", ["FAILED", "LAUNCHED"])
        assert yarn.heartbeat("n1").action is NodeAction.RESYNC


def test_node_that_loses_only_the_connection_keeps_its_containers() -> None:
    with Yarn("n1") as yarn:
        app = yarn.submit()
        master = yarn.run(app)
        (task,) = master.get_running(ask())

        reports = [NMContainerStatus(c.entity, c.request.resource) for c in (master.container, task) if c is not None]
        yarn.register("n1", containers=reports, running_apps=[app])

        assert yarn.states(app) == ("RUNNING", ["RUNNING"])
        assert len(yarn.clients.get_containers(master.attempt)) == 2
        assert master.allocate().finished == ()


def test_node_manager_that_was_restarted_has_lost_its_containers() -> None:
    with Yarn("n1") as yarn:
        app = yarn.submit()
        yarn.run(app)

        yarn.register("n1")

        assert yarn.node_states() == {"n1": "RUNNING"}
        assert yarn.states(app) == ("ACCEPTED", ["FAILED", "LAUNCHED"])


def test_container_that_its_node_no_longer_reports_is_lost() -> None:
    with Yarn("n1") as yarn:
        master = yarn.submit_and_run()
        kept, lost = master.get_running(ask(), ask())
        assert master.container is not None

        yarn.heartbeat("n1", running=frozenset([master.container.entity, kept.entity]))

        assert [status.container for status in master.allocate().finished] == [lost.entity]


# -- changes ----------------------------------------------------------------------------------------------------------


def test_capacity_of_a_node_changes_while_it_runs() -> None:
    with Yarn("n1") as yarn:
        master = yarn.submit_and_run()
        too_large = master.get(ask(15))

        yarn.do(lambda: yarn.admin.update_node_resource(node_id("n1"), Resource(20, 20)))
        got = master.get()
        yarn.do(lambda: yarn.admin.update_node_resource(node_id("n1"), Resource(2, 2)))

        assert too_large == []
        assert [container.request.resource.memory_mb for container in got] == [15]
        assert yarn.clients.get_cluster_metrics().total == Resource(2, 2)
        assert len(yarn.clients.get_containers(master.attempt)) == 2  # what it has given stays given
        assert master.get(ask()) == []


def test_host_that_is_on_no_list_is_shut_down_and_forgotten() -> None:
    with Yarn("n1", "n2") as yarn:
        yarn.do(lambda: yarn.admin.refresh_nodes(include=["n1"]))
        left = yarn.node_states(), yarn.heartbeat("n2").action
        yarn.advance(60_000)

        assert left == ({"n1": "RUNNING", "n2": "SHUTDOWN"}, NodeAction.SHUTDOWN)
        assert yarn.node_states() == {"n1": "RUNNING"}
        with pytest.raises(NodeRefusedError):
            yarn.register(NodeSpec("n3", Resource(1, 1)))


def test_signal_reaches_the_node_of_the_container_with_its_next_heartbeat() -> None:
    with Yarn("n1") as yarn:
        master = yarn.submit_and_run()
        (task,) = master.get_running(ask())

        yarn.do(lambda: yarn.clients.signal_to_container(task.entity, "GRACEFUL_SHUTDOWN"))

        assert yarn.heartbeat("n1").containers_to_signal == [(task.entity, "GRACEFUL_SHUTDOWN")]
        assert list(yarn.heartbeat("n1").containers_to_signal) == []
