"""Containers from the request to the end: placement, limits and reports."""

from __future__ import annotations

from typing import Any

import pytest

from statemachines.resourcemanager import (
    ApplicationSubmission,
    FinalApplicationStatus,
    InvalidApplicationMasterRequestError,
    Resource,
    RMAppAttemptEventType,
)
from statemachines.resourcemanager.events.records import EXIT_ABORTED
from statemachines.resourcemanager.records.errors import InvalidContainerReleaseError, InvalidRequestError
from statemachines.resourcemanager.records.resource import named
from statemachines.simulation.workload import NodeSpec

from .yarn_cluster import Yarn, ask, hosts_of

pytestmark = pytest.mark.long

SCHEDULERS: dict[str, dict[str, Any]] = {
    "fifo": {"kind": "fifo"},
    "capacity": {"kind": "capacity", "maximum_am_resource_percent": 100},
}


@pytest.fixture(params=SCHEDULERS)
def scheduler(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SCHEDULERS[request.param]


# -- their lives ------------------------------------------------------------------------------------------------------


def test_container_that_is_fetched_and_not_started_in_time_is_taken_back(scheduler: dict[str, Any]) -> None:
    with Yarn("n1", scheduler=scheduler, container_allocation_expiry_s=10) as yarn:
        master = yarn.submit_and_run()
        (idle,) = master.get(ask(9))
        yarn.advance(9_999)
        before = [container.state for container in yarn.clients.get_containers(master.attempt)]
        yarn.advance(1)
        response = master.allocate(ask(9))

        assert before == ["RUNNING", "NEW"]
        assert [(status.container, status.exit_status) for status in response.finished] == [(idle.entity, EXIT_ABORTED)]
        assert [container.request.resource.memory_mb for container in response.allocated] == [9]
        assert idle.entity in yarn.heartbeat("n1").containers_to_clean


def test_container_that_is_started_in_time_stays() -> None:
    with Yarn("n1", container_allocation_expiry_s=10) as yarn:
        master = yarn.submit_and_run()
        (task,) = master.get(ask())

        yarn.advance(9_999)
        yarn.launch(task)
        yarn.advance(100_000)

        assert yarn.clients.get_container_report(task.entity).state == "RUNNING"


def test_released_containers_make_room_and_are_reported_to_the_master(scheduler: dict[str, Any]) -> None:
    with Yarn("n1", scheduler=scheduler) as yarn:
        master = yarn.submit_and_run()
        acquired, running = master.get(ask(4), ask(5))
        yarn.launch(running)
        waiting = master.get(ask(9))

        got = master.get(releases=[acquired.entity, running.entity])

        assert waiting == []
        assert [container.request.resource.memory_mb for container in got] == [9]
        assert {status.container for status in master.allocate().finished} == {acquired.entity, running.entity}
        assert yarn.heartbeat("n1").containers_to_clean == {acquired.entity, running.entity}


def test_container_of_another_application_cannot_be_released() -> None:
    with Yarn("n1") as yarn:
        mine, other = yarn.submit_and_run(), yarn.submit_and_run()
        (task,) = other.get_running(ask())

        with pytest.raises(InvalidContainerReleaseError, match=task.entity):
            mine.allocate(releases=[task.entity])

        assert yarn.clients.get_container_report(task.entity).state == "RUNNING"


def test_container_grows_and_shrinks_when_its_node_says_so() -> None:
    with Yarn("n1") as yarn:
        master = yarn.submit_and_run()
        (task,) = master.get_running(ask(2))

        response = master.allocate(resizes=[(task.entity, Resource(6, 1))])
        news = yarn.heartbeat("n1").containers_to_update
        yarn.heartbeat("n1", resized=((task.entity, Resource(6, 1)),))
        yarn.advance(10_000_000)  # the increase is confirmed, so it is not taken back
        grown = yarn.clients.get_container_report(task.entity).resource
        refused = master.allocate(resizes=[(task.entity, Resource(10, 1))]).resized
        master.allocate(resizes=[(task.entity, Resource(1, 1))])

        assert response.resized == [(task.entity, Resource(6, 1))]
        assert news in ({}, {task.entity: Resource(6, 1)})
        assert (grown, refused) == (Resource(6, 1), [])
        assert len(master.get(ask(8))) == 1


IMPOSSIBLE = [
    Resource(-5, 1),
    Resource(1, -1),
    Resource(1, 1, gpus=-1),
    Resource(1, 1, gpus=1, gpu_milli=0),
    Resource(1, 1, gpus=1, gpu_milli=1500),
    Resource(1, 1, others=(("fpga", -2),)),
]


def test_size_that_no_container_can_have_is_refused_and_the_books_stay() -> None:
    """Less than nothing was allocated: the node then had more room than it had."""
    with Yarn("n1") as yarn:
        master = yarn.submit_and_run()
        (task,) = master.get_running(ask(2))

        for size in IMPOSSIBLE:
            with pytest.raises(InvalidApplicationMasterRequestError, match="no container can have"):
                master.allocate(ask(1), ask(resource=size), releases=[task.entity])
            with pytest.raises(InvalidApplicationMasterRequestError, match="no container can have"):
                master.allocate(resizes=[(task.entity, size)])
            with pytest.raises(InvalidRequestError, match="am_resource is"):
                yarn.clients.submit_application(ApplicationSubmission("app", size))

        assert [node.free_memory_mb for node in yarn.context.scheduler.nodes()] == [7]
        assert yarn.clients.get_container_report(task.entity).state == "RUNNING"
        assert len(yarn.clients.get_applications()) == 1


# -- where they go ----------------------------------------------------------------------------------------------------


def test_asks_go_to_their_host_then_its_rack_then_anywhere(scheduler: dict[str, Any]) -> None:
    nodes = [NodeSpec(f"n{n}", Resource(10, 10), rack=f"/r{n // 3}") for n in (1, 2, 3)]  # n3 is alone in its rack
    with Yarn(*nodes, scheduler=scheduler) as yarn:
        master = yarn.submit_and_run(am_host="n3")

        places = [hosts_of(master.get(ask(10, host="n1"))) for _ in range(3)]
        insisting = master.get(ask(1, host="n1", relax_locality=False))

        assert places == [["n1"], ["n2"], []]
        assert insisting == []


def test_ask_that_insists_on_its_rack_waits_for_it() -> None:
    with Yarn(NodeSpec("n1", Resource(10, 10), rack="/a"), NodeSpec("n2", Resource(10, 10), rack="/b")) as yarn:
        master = yarn.submit_and_run(am_host="n2")
        (there,) = master.get_running(ask(10, rack="/a", relax_locality=False))
        waiting = master.get(ask(5, rack="/a", relax_locality=False))

        yarn.end(there)

        assert hosts_of([there]) == ["n1"]
        assert waiting == []
        assert hosts_of(master.get()) == ["n1"]


def test_blacklisted_host_gets_nothing_until_it_is_removed_from_the_list(scheduler: dict[str, Any]) -> None:
    with Yarn("n1", scheduler=scheduler) as yarn:
        master = yarn.submit_and_run()

        none = master.get(ask(), blacklist_additions=["n1"])
        got = master.get(blacklist_removals=["n1"])

        assert none == []
        assert hosts_of(got) == ["n1"]


def test_asks_go_to_nodes_of_their_partition_only() -> None:
    labels = {"gpu": {"capacity": 100}}
    queue = {"name": "default", "capacity": 100, "accessible_node_labels": labels, "maximum_am_resource_percent": 100}
    nodes = [NodeSpec("plain", Resource(10, 10)), NodeSpec("fast", Resource(10, 10), partition="gpu")]
    with Yarn(*nodes, scheduler={"kind": "capacity", "queues": [queue]}) as yarn:
        master = yarn.submit_and_run()

        plain = hosts_of(master.get(ask(9), ask(1)))
        fast = hosts_of(master.get(ask(8, node_label="gpu")))
        yarn.do(lambda: yarn.admin.replace_labels_on_node("fast:45454", ""))
        relabelled = hosts_of(master.get()), master.get(ask(1, node_label="gpu"))

        assert plain == ["plain"]
        assert fast == ["fast"]
        assert relabelled == (["fast"], [])
        assert yarn.clients.get_queue_info("root.default").accessible_node_labels == ("gpu",)


def test_application_of_a_partition_runs_there_with_its_master() -> None:
    labels = {"gpu": {"capacity": 100}}
    queue = {"name": "default", "capacity": 100, "accessible_node_labels": labels}
    nodes = [NodeSpec("plain", Resource(10, 10)), NodeSpec("fast", Resource(10, 10), partition="gpu")]
    with Yarn(*nodes, scheduler={"kind": "capacity", "queues": [queue]}) as yarn:
        app = yarn.submit(node_label="gpu")
        master = yarn.run(app)

        assert hosts_of(yarn.started) == ["fast"]
        assert hosts_of(master.get(ask())) == ["fast"]
        assert yarn.report(app).node_label == "gpu"


def test_named_resource_types_are_had_and_given_back(scheduler: dict[str, Any]) -> None:
    size = Resource(1, 1, others=named({"fpga": 2}))
    nodes = [NodeSpec("n1", Resource(10, 10)), NodeSpec("n2", Resource(10, 10, others=named({"fpga": 3, "disk": 1})))]
    with Yarn(*nodes, scheduler=scheduler) as yarn:
        master = yarn.submit_and_run()

        (first,) = master.get_running(ask(resource=size))
        waiting = master.get(ask(resource=size))
        never = master.get(ask(resource=Resource(1, 1, others=named({"tape": 1}))))
        report = next(node for node in yarn.clients.get_cluster_nodes() if node.host == "n2")
        yarn.end(first)
        second = master.get()

        assert hosts_of([first]) == ["n2"]
        assert (waiting, never) == ([], [])
        assert report.used.other("fpga") == 2
        assert hosts_of(second) == ["n2"]


def test_gpus_are_shared_by_thousandths_and_told_apart(scheduler: dict[str, Any]) -> None:
    with Yarn(NodeSpec("n1", Resource(10, 10, gpus=2)), scheduler=scheduler) as yarn:
        master = yarn.submit_and_run()
        most, half = Resource(1, 1, gpus=1, gpu_milli=700), Resource(1, 1, gpus=1, gpu_milli=500)

        devices = [c.gpu_devices for c in master.get(ask(resource=most), ask(resource=most))]
        too_much = master.get(ask(resource=half))

        assert sorted(devices) == [(0,), (1,)]
        assert too_much == []
        assert yarn.clients.get_cluster_metrics().allocated.gpu_milli_total == 1400


# -- reports ----------------------------------------------------------------------------------------------------------


def test_reports_tell_of_an_application_from_its_submission_to_its_end() -> None:
    with Yarn("n1") as yarn:
        yarn.advance(100)
        app = yarn.submit("count", 2, user="ann", priority=3, application_type="MR", tags=("nightly",))
        accepted = yarn.report(app)
        yarn.advance(1_000)
        master = yarn.run(app)
        (task,) = master.get_running(ask(3))
        yarn.advance(2_000)
        master.allocate(progress=0.5, tracking_url="http://other")
        running, cluster = yarn.report(app), yarn.clients.get_cluster_metrics()
        yarn.end(task)
        master.finish_and_exit(tracking_url="http://history", diagnostics="counted")
        yarn.advance(1_000)
        ended = yarn.report(app)
        (attempt,) = yarn.clients.get_application_attempts(app)

    assert (accepted.name, accepted.user, accepted.queue, accepted.priority) == ("count", "ann", "default", 3)
    assert (accepted.application_type, accepted.tags) == ("MR", ("nightly",))
    assert (accepted.state, accepted.final_status, accepted.finish_ms) == ("ACCEPTED", "UNDEFINED", None)
    assert (running.state, running.progress, running.tracking_url) == ("RUNNING", 0.5, "http://other")
    assert (running.host, running.rpc_port, running.containers) == ("host", 1234, 2)
    assert running.allocated == Resource(5, 2)
    assert running.usage.memory_mb_seconds == 2 * 3 + 3 * 2
    assert (cluster.apps_running, cluster.containers_allocated, cluster.allocated) == (1, 2, Resource(5, 2))
    assert (ended.state, ended.final_status, ended.progress) == ("FINISHED", "SUCCEEDED", 1.0)
    assert (ended.submit_ms, ended.launch_ms, ended.finish_ms) == (100, 100, 3_100)
    assert (ended.tracking_url, ended.diagnostics, ended.containers) == ("http://history", "counted", 0)
    assert ended.usage.memory_mb_seconds == running.usage.memory_mb_seconds
    assert (attempt.state, attempt.exit_status, attempt.final_status) == ("FINISHED", None, "SUCCEEDED")


def test_what_the_master_said_of_the_end_is_told_with_the_end() -> None:
    """It was told as soon as the master had said it, of an application that was reported as RUNNING."""
    with Yarn("n1") as yarn:
        app = yarn.submit()
        master = yarn.run(app)
        news: list[tuple[str, str]] = []
        yarn.manager.dispatcher.register(
            RMAppAttemptEventType, lambda _: news.append((yarn.report(app).state, yarn.report(app).final_status))
        )

        master.finish_and_exit(final_status=FinalApplicationStatus.FAILED)

        assert {final_status for state, final_status in news if state == "RUNNING"} == {"UNDEFINED"}
        assert news[-1] == ("FINISHED", "FAILED")
