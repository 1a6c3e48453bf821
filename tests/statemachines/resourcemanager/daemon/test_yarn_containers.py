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
from statemachines.simulation.workload import NodeSpec

from ..inner import InvalidRequestError
from .stage import Scene, play_scene
from .yarn_cluster import Yarn, ask

pytestmark = pytest.mark.long

SCHEDULERS: dict[str, dict[str, Any]] = {
    "fifo": {"kind": "fifo"},
    "capacity": {"kind": "capacity", "maximum_am_resource_percent": 100},
}


RACKS = [NodeSpec(f"n{n}", Resource(10, 10), rack=f"/r{n // 3}") for n in (1, 2, 3)]
"""n3 is alone in its rack."""
LABELS = {"gpu": {"capacity": 100}}
GPU_QUEUE = {"name": "default", "capacity": 100, "accessible_node_labels": LABELS, "maximum_am_resource_percent": 100}
PARTITIONS: dict[str, Any] = {
    "nodes": [NodeSpec("plain", Resource(10, 10)), NodeSpec("fast", Resource(10, 10), partition="gpu")],
    "scheduler": {"kind": "capacity", "queues": [GPU_QUEUE]},
}
UNDER_EACH_SCHEDULER: dict[str, Scene] = {
    "a container that is fetched and not started in time is taken back": (
        {"container_allocation_expiry_s": 10},
        "start a | ask a idle 9mb | +9999 -> idle.state NEW | +1 | ask a t 9mb -> finished idle=-100 ; got t"
        " | beat n1 | cleans idle",
    ),
    "released containers make room and are reported to the master": (
        {},
        "start a | ask a acquired 4mb | get a running 5mb | ask a t 9mb -> got | release a acquired running -> got t"
        " | call a -> ended acquired running | beat n1 -> to_clean acquired running",
    ),
    "asks go to their host, then its rack, then anywhere": (
        {"nodes": RACKS},
        "start a am_host=n3 | ask a t 10mb @n1 -> @t n1 | ask a u 10mb @n1 -> @u n2 | ask a v 10mb @n1 -> got"
        " | ask a w @n1! -> got",
    ),
    "a blacklisted host gets nothing until it is removed from the list": (
        {},
        "start a | avoid a n1 | ask a t -> got | forgive a n1 -> got t ; @t n1",
    ),
}
UNDER_ONE: dict[str, Scene] = {
    "a container that is started in time stays": (
        {"container_allocation_expiry_s": 10},
        "start a | ask a t | +9999 | launch t | +100000 -> t.state RUNNING",
    ),
    "a container of another application cannot be released": (
        {},
        "start a | start b | get b t | refused release a t -> refusal InvalidContainerReleaseError ; t.state RUNNING",
    ),
    # The increase is confirmed, so it is not taken back.
    "a container grows and shrinks when its node says so": (
        {},
        "start a | get a t 2mb | resize a t 6 -> resized t=6 | beat n1 | resized t 6 | +10000000"
        " -> t.resource 6 | resize a t 10 -> resized | resize a t 1 | ask a u 8mb -> got u",
    ),
    "an ask that insists on its rack waits for it": (
        {"nodes": [NodeSpec("n1", Resource(10, 10), rack="/a"), NodeSpec("n2", Resource(10, 10), rack="/b")]},
        "start a am_host=n2 | get a t 10mb /a! -> @t n1 | ask a u 5mb /a! -> got | end t | call a -> got u ; @u n1",
    ),
    "asks go to nodes of their partition only": (
        PARTITIONS,
        "start a | ask a t 9mb -> @t plain | ask a u -> got | ask a v 8mb :gpu -> @v fast | label fast | call a"
        " -> got u ; @u fast | ask a w :gpu -> got ; root/default.accessible_node_labels gpu",
    ),
    "an application of a partition runs there with its master": (
        PARTITIONS,
        "start a node_label=gpu -> started fast ; a.node_label gpu | ask a t -> @t fast",
    ),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize("scene", UNDER_EACH_SCHEDULER.values(), ids=UNDER_EACH_SCHEDULER)
def test_containers_under_each_scheduler(scene: Scene, scheduler: dict[str, Any]) -> None:
    options, script = scene
    play_scene((options | {"scheduler": scheduler}, script))


@pytest.mark.parametrize("scene", UNDER_ONE.values(), ids=UNDER_ONE)
def test_containers(scene: Scene) -> None:
    play_scene(scene)


# -- sizes -------------------------------------------------------------------------------------------------------------


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
