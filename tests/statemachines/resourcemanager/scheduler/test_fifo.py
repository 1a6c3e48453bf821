"""The one queue of the FIFO scheduler."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import ContainerRequest, Resource

from ....kit.scenarios import play
from ..cluster import Cluster
from ..inner import InvalidRequestError
from .stage import SchedulerStage


def test_there_is_one_queue_and_it_takes_all(cluster: Cluster) -> None:
    cluster.add_node("n1", gpus=1)
    app = cluster.add_app(queue="research", lifetime_s=7)
    submission = cluster.context.apps[app].submission
    cluster.get(cluster.add_attempt(app), Resource(5, 2, 1, 300))

    root, default = cluster.scheduler.queues()

    assert (root.path, root.children, default.path, default.children) == ("root", ("root.default",), "root.default", ())
    assert default[1:9] == ("RUNNING", 1.0, 1.0, 0.5, Resource(5, 2, 1, 300), 1, 0, 1)
    assert cluster.policy.check_submission(submission) is None
    assert cluster.scheduler.lifetime_s(submission) == 7
    assert [cluster.scheduler.queue_of(one) for one in (app, "application_0_0099")] == ["root.default", None]


def test_applications_can_be_moved_to_where_they_are_only(cluster: Cluster) -> None:
    app = cluster.add_app()

    cluster.scheduler.move_application(app, "default")

    assert cluster.scheduler.check_move(app, "root.default") is None
    with pytest.raises(InvalidRequestError, match="queue 'research' does not exist"):
        cluster.scheduler.move_application(app, "research")


def test_headroom_is_what_the_asked_partitions_have_free(cluster: Cluster) -> None:
    for host, partition in ("n1", ""), ("n2", ""), ("n3", "gpu"):
        cluster.add_node(host, partition=partition)
    attempt = cluster.new_attempt()
    cluster.get(attempt, Resource(4, 3))
    default = cluster.headroom(attempt)

    cluster.ask(attempt, ContainerRequest(Resource(11, 1), node_label="gpu"))
    in_gpu = cluster.headroom(attempt)
    cluster.ask(attempt, Resource(11, 1))
    in_both = cluster.headroom(attempt)

    assert (default, in_gpu, in_both) == (Resource(16, 17), Resource(10, 10), Resource(26, 27))


def test_node_that_has_less_than_is_used_keeps_its_containers_and_gets_nothing(cluster: Cluster) -> None:
    script = (
        "node n1 10g2f1 | app x | ask x 4g1f1 4g1 | size n1 5x10 -> n1 -3 ; x1 RUNNING ; x2 RUNNING"
        "| ask x 1 0g1 0 -> count:x 2 | end x2 -> sizes:x 4g1f1 1 0 ; waits x:0g1"
    )

    play(SchedulerStage(cluster), script)
