"""Containers reported by registering nodes: after a restart of the resource manager, or without a known owner."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import ContainerStatus, NMContainerStatus, Resource, RMNodeEventType

from ..cluster import Cluster
from ..inner import SchedulerEvent, SchedulerEventType, attempt_of

SMALL = Resource(1, 1)
FOREIGN = "container_0_0099_01_000001"


def posted(cluster: Cluster, *types: object) -> list[object]:
    return [event for event in cluster.dispatcher.events if event.type in types]


def recovered(cluster: Cluster, **submission: object) -> tuple[str, str]:
    """An application and its attempt as recovered by a restarted resource manager, without events to either."""
    app = cluster.add_app(is_recovering=True, **submission)
    attempt = f"{app.replace('application', 'appattempt')}_000001"
    cluster.recover_attempt(attempt, master=f"{app.replace('application', 'container')}_01_000001")
    return app, attempt


def report(app: str, number: int, attempt: int = 1, **more: object) -> NMContainerStatus:
    container = f"{app.replace('application', 'container')}_{attempt:02d}_{number:06d}"
    return NMContainerStatus(container, **({"resource": Resource(2, 3), "kind": "map"} | more))  # type: ignore[arg-type]


def test_running_containers_of_a_known_attempt_are_taken_back(cluster: Cluster) -> None:
    app, attempt = recovered(cluster)
    size = Resource(2, 3, gpus=1, gpu_milli=400, others=(("fpga", 1),))

    node = cluster.add_node(
        "n1", gpus=2, others={"fpga": 2}, containers=(report(app, 1), report(app, 2, resource=size, gpu_devices=(1,)))
    )

    master, task = cluster.scheduler.live_containers(attempt)
    assert [container.state.name for container in (master, task)] == ["RUNNING", "RUNNING"]
    assert (task.request.resource, task.gpu_devices, task.request.kind, task.node) == (size, (1,), "map", node)
    (scheduled,) = cluster.scheduler.nodes()
    assert (scheduled.free_memory_mb, scheduled.free_gpu_milli) == (6, [1000, 600])
    assert cluster.scheduler.has_master_container(node)
    assert {event.type.name for event in cluster.news} == {"APP_RUNNING_ON_NODE"}
    cluster.finish(task)
    cluster.check()


def test_new_containers_are_numbered_behind_those_that_were_taken_back(cluster: Cluster) -> None:
    app, attempt = recovered(cluster)
    cluster.add_node("n1", containers=(report(app, 7),))

    (container,) = cluster.get(attempt, SMALL)

    assert container.entity.endswith("_01_000008")


def test_containers_of_a_restarted_resource_manager_have_its_epoch(cluster: Cluster) -> None:
    cluster.context.epoch = 3
    app, attempt = recovered(cluster)
    cluster.add_node("n1", containers=(report(app, 7),))

    (container,) = cluster.get(attempt, SMALL)

    assert container.entity == "container_e03_0_0001_01_000001"


def test_container_that_ended_meanwhile_ends_here_too_and_has_no_room(cluster: Cluster) -> None:
    app, attempt = recovered(cluster)
    status = ContainerStatus(report(app, 2).container, 1, "crashed")

    cluster.add_node("n1", containers=(report(app, 2, status=status),))

    assert cluster.news[-1].status == status
    assert cluster.scheduler.live_containers(attempt) == []
    cluster.check()


@pytest.mark.parametrize("whose", ["unknown application's", "no container", "earlier attempt's", "no attempt's"])
def test_other_containers_are_to_be_cleaned_up(cluster: Cluster, whose: str) -> None:
    app, _ = recovered(cluster)
    other = cluster.add_app()
    stray = {
        "unknown application's": NMContainerStatus(FOREIGN, SMALL),
        "no container": NMContainerStatus("what?", SMALL),
        "earlier attempt's": report(app, 1, attempt=9),
        "no attempt's": report(other, 1),
    }[whose]

    node = cluster.add_node("n1", containers=(stray,))

    assert [(e.entity, e.about) for e in posted(cluster, RMNodeEventType.CLEANUP_CONTAINER)] == [
        (node, stray.container)
    ]  # type: ignore[attr-defined]
    assert cluster.context.containers == {}
    cluster.check()


def test_containers_of_an_earlier_attempt_are_the_last_ones_if_they_are_kept(cluster: Cluster) -> None:
    app = cluster.add_app(keep_containers_across_attempts=True)
    attempt = f"{app.replace('application', 'appattempt')}_000002"
    cluster.recover_attempt(attempt)

    cluster.add_node("n1", containers=(report(app, 5, attempt=1),))

    (container,) = cluster.scheduler.live_containers(attempt)
    assert container.attempt == attempt
    cluster.check()


def test_node_that_brings_more_than_it_has_is_full(cluster: Cluster) -> None:
    app, attempt = recovered(cluster)
    node = cluster.add_node("n1", containers=(report(app, 1, resource=Resource(12, 1, 1), gpu_devices=(0,)),))
    cluster.short.add(node)

    cluster.ask(attempt, SMALL)

    assert cluster.pull(attempt) == []
    cluster.check()


def test_container_that_was_given_up_a_moment_ago_is_not_taken_back(cluster: Cluster) -> None:
    """The queued end of the old container removed the new one with its id from the context."""
    node, attempt = cluster.add_node("n1"), cluster.new_attempt()
    (container,) = cluster.get(attempt, SMALL)
    running = (NMContainerStatus(container.entity, SMALL),)

    def lose_and_find_again() -> None:
        """Runs before the events of the loss are handled."""
        cluster.scheduler.handle(cluster.announcement(node))
        cluster.scheduler.handle(SchedulerEvent(SchedulerEventType.NODE_REMOVED, node))
        cluster.scheduler.handle(cluster.announcement(node, running))

    cluster.in_handler(lose_and_find_again)

    assert container.state.name == "KILLED"
    assert cluster.context.containers == {}
    cluster.check()


def test_the_attempt_of_a_container() -> None:
    assert attempt_of("container_1_0002_03_000004") == "appattempt_1_0002_000003"
    assert attempt_of("container_e17_1_0002_03_000004") == "appattempt_1_0002_000003"


@pytest.mark.parametrize(
    "text", ["container_1_0002_03", "container_1_0002_\u0663_000004", "container_e_1_2_3_4"], ids=ascii
)
def test_a_container_of_no_attempt(text: str) -> None:
    with pytest.raises(ValueError, match="is not the id of a container"):
        attempt_of(text)
