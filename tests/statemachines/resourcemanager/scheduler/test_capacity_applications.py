"""The applications that the capacity scheduler accepts, moves and recovers, and its reports on queues."""

from __future__ import annotations

from typing import Any

import pytest

from statemachines.resourcemanager import ApplicationSubmission, NMContainerStatus, Resource
from statemachines.resourcemanager.events.scheduler import AppAddedSchedulerEvent, AppAttemptAddedSchedulerEvent
from statemachines.resourcemanager.records.errors import InvalidRequestError
from statemachines.resourcemanager.resource_manager import make_scheduler
from statemachines.resourcemanager.scheduler.capacity.capacity_scheduler import CapacityScheduler
from statemachines.resourcemanager.scheduler.fifo import FifoScheduler
from statemachines.simulation.workload import NodeSpec

from ..cluster import Cluster, accepted_app, attempt_of_app
from .queue_cluster import QueueCluster

ONE = Resource(1, 1)
TREE: tuple[dict[str, Any], ...] = (
    {
        "name": "research",
        "capacity": 60,
        "maximum_applications": 3,
        "queues": [
            {
                "name": "day",
                "capacity": 50,
                "maximum_applications": 2,
                "maximum_lifetime_s": 600,
                "user_limit_factor": 9,
            },
            {"name": "night", "capacity": 50, "state": "STOPPED"},
        ],
    },
    {"name": "batch", "capacity": 40, "maximum_capacity": 50, "user_limit_factor": 9},
)


@pytest.fixture
def cluster() -> QueueCluster:
    cluster = QueueCluster(*TREE, maximum_am_resource_percent=100)
    cluster.add_node("n1")
    return cluster


# -- submissions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["day", "root.research.day"])
def test_application_is_taken_by_its_queues_name_or_path(cluster: QueueCluster, name: str) -> None:
    app = cluster.add_app(queue=name)

    assert cluster.news_names() == [f"APP_ACCEPTED {app}"]
    assert cluster.scheduler.queue_of(app) == "root.research.day"


@pytest.mark.parametrize(
    ("submission", "message"),
    [
        ({"queue": "nowhere"}, "queue nowhere does not exist; queues that accept applications: batch, day, night"),
        ({"queue": "root.research"}, "queue root.research is a parent queue and does not accept applications"),
        ({"queue": "night"}, "queue root.research.night is stopped and does not accept new applications"),
        ({"queue": "batch", "node_label": "gpu"}, "queue root.batch may not use partition gpu"),
        ({"queue": "batch", "am_node_label": "gpu"}, "queue root.batch may not use partition gpu"),
    ],
)
def test_application_is_rejected_with_the_reason(
    cluster: QueueCluster, submission: dict[str, str], message: str
) -> None:
    answer = cluster.policy.check_submission(ApplicationSubmission("job", ONE, **submission))  # type: ignore[arg-type]
    app = cluster.add_app(**submission)

    assert answer == message
    (event,) = cluster.news
    assert (event.type.name, event.entity, event.diagnostics) == ("APP_REJECTED", app, message)
    assert cluster.scheduler.queue_of(app) is None
    assert cluster.info("root").applications == 0


def test_master_may_have_a_partition_of_its_own() -> None:
    queue = {"name": "a", "accessible_node_labels": {"gpu": {"capacity": 100}}}
    cluster = QueueCluster(queue, maximum_am_resource_percent=100)
    for label, own in (("gpu", ""), ("gpu", None), (None, "gpu")):
        cluster.add_app(queue="a", node_label=label, am_node_label=own)

    partitions = [
        (app.default_partition, app.master_partition)  # type: ignore[attr-defined]
        for app in cluster.scheduler._books.apps.values()
    ]

    assert partitions == [("gpu", ""), ("gpu", "gpu"), ("", "gpu")]


def test_full_queue_takes_no_more_until_one_ends(cluster: QueueCluster) -> None:
    first, _ = (cluster.add_app(queue="day") for _ in range(2))
    submission = ApplicationSubmission("job", ONE, queue="day")

    full = cluster.policy.check_submission(submission)
    cluster.remove_app(first)

    assert full == "queue root.research.day already has 2 applications, its maximum"
    assert cluster.policy.check_submission(submission) is None


def test_lifetime_is_the_queues(cluster: QueueCluster) -> None:
    def lifetime_s(**submission: Any) -> int | None:
        return cluster.scheduler.lifetime_s(ApplicationSubmission("job", ONE, **submission))

    assert [lifetime_s(queue="day"), lifetime_s(queue="day", lifetime_s=60), lifetime_s(queue="batch")] == [
        600,
        60,
        None,
    ]


def test_scheduler_is_the_configured_one() -> None:
    kinds = [type(make_scheduler(each.context)) for each in (Cluster(), QueueCluster())]

    assert kinds == [FifoScheduler, CapacityScheduler]


# -- moves ------------------------------------------------------------------------------------------------------------


def test_moved_application_takes_its_containers_and_asks_along(cluster: QueueCluster) -> None:
    attempt = cluster.attempt_in("day")
    cluster.get(attempt, *[ONE] * 4)
    cluster.ask(attempt, Resource(9, 9))

    cluster.move(attempt, "batch")

    assert cluster.scheduler.queue_of(cluster.app_of(attempt).id) == "root.batch"
    assert [cluster.info(path).containers for path in ("root", "root.research", "root.batch")] == [4, 0, 4]
    assert cluster.info("root.batch").used == Resource(4, 4)
    assert [info.applications for info in cluster.scheduler.queues()] == [1, 0, 0, 0, 1]
    assert "queue root.batch has" in cluster.scheduler.why_waiting(attempt, cluster.request(Resource(9, 9))).sentence
    cluster.check()


def test_move_frees_room_in_the_old_queue_and_uses_room_in_the_new_one(cluster: QueueCluster) -> None:
    mover, stayer = cluster.attempt_in("batch"), cluster.attempt_in("batch", "bob")
    cluster.get(mover, *[ONE] * 5)
    cluster.ask(mover, ONE)
    cluster.ask(stayer, ONE)
    assert cluster.pull(stayer) == []

    cluster.move(mover, "day")

    assert (len(cluster.pull(mover)), len(cluster.pull(stayer))) == (1, 1)
    cluster.check()


def test_move_beyond_the_maximum_of_a_queue_is_refused(cluster: QueueCluster) -> None:
    attempt = cluster.attempt_in("day")
    cluster.get(attempt, *[ONE] * 6)
    app = cluster.app_of(attempt).id

    answer = cluster.scheduler.check_move(app, "batch")

    assert answer == (
        f"the containers of {app} use <memory:6 MB, vCores:0.006>, which would bring queue root.batch beyond its "
        "maximum capacity, <memory:5 MB, vCores:0.005>"
    )
    with pytest.raises(InvalidRequestError, match="beyond its maximum"):
        cluster.scheduler.move_application(app, "batch")
    cluster.check()


@pytest.mark.parametrize(
    ("queue", "message"),
    [
        ("nowhere", "queue nowhere does not exist"),
        ("night", "queue root.research.night is stopped"),
        ("day", "queue root.research.day already has 2 applications"),
    ],
)
def test_move_to_a_queue_that_takes_none_is_refused(cluster: QueueCluster, queue: str, message: str) -> None:
    for _ in range(2):
        cluster.add_app(queue="day")
    app = cluster.add_app(queue="batch")

    answer = cluster.scheduler.check_move(app, queue)

    assert answer is not None
    assert message in answer


def test_move_within_a_full_parent_is_possible() -> None:
    leaf = {"capacity": 50}
    queues = [{"name": "x", **leaf}, {"name": "y", **leaf}]
    cluster = QueueCluster({"name": "p", "maximum_applications": 1, "queues": queues})
    app = cluster.add_app(queue="x")

    assert cluster.scheduler.check_move(app, "y") is None
    assert cluster.scheduler.check_move(app, "x") is None
    assert "not in the scheduler" in str(cluster.scheduler.check_move("application_0_0099", "y"))


def test_pending_application_stays_pending_in_the_queue_it_moves_to() -> None:
    leaf = {"capacity": 50, "maximum_am_resource_percent": 0}
    cluster = QueueCluster({"name": "a", **leaf}, {"name": "b", **leaf})
    cluster.add_node("n1")
    _, pending, other = (cluster.attempt_in(queue) for queue in "aab")
    cluster.ask(pending, ONE)

    cluster.move(pending, "b")
    before = cluster.pull(pending)
    cluster.remove_attempt(other)

    assert (before, len(cluster.pull(pending))) == ([], 1)
    cluster.check()


def test_running_application_keeps_running_in_its_new_queue_whatever_share_masters_have_left() -> None:
    leaf = {"capacity": 50, "maximum_am_resource_percent": 0}
    cluster = QueueCluster({"name": "a", **leaf}, {"name": "b", **leaf})
    cluster.add_node("n1")
    running, _ = (cluster.attempt_in(queue) for queue in "ab")
    cluster.get(running, ONE)

    cluster.move(running, "b")
    cluster.ask(running, ONE)

    assert len(cluster.pull(running)) == 1
    cluster.check()


# -- attempts and recovery --------------------------------------------------------------------------------------------


def test_next_attempt_inherits_the_usage_in_the_queue(cluster: QueueCluster) -> None:
    attempt = cluster.attempt_in("batch", keep_containers_across_attempts=True)
    app = cluster.app_of(attempt).id
    cluster.get(attempt, ONE, ONE, ONE)

    cluster.remove_attempt(attempt, keep_containers=True)
    between = cluster.info("root.batch").containers
    cluster.add_attempt(app, 2, transfer_state=True)

    assert (between, cluster.info("root.batch").containers) == (2, 2)
    cluster.check()


def test_recovered_containers_count_in_their_queue_though_they_are_beyond_its_limits() -> None:
    cluster = QueueCluster({"name": "a", "capacity": 10, "maximum_capacity": 10}, {"name": "b", "capacity": 90})
    apps = recovered(cluster, queue="a", count=2)
    reports = tuple(
        NMContainerStatus(f"container_0_{number:04d}_01_{index:06d}", ONE) for number in (1, 2) for index in (1, 2)
    )

    cluster.tracker.register_node(NodeSpec("n1", Resource(10, 10)), containers=reports)

    assert cluster.info("root.a").containers == 4
    assert cluster.info("root.a").used == Resource(4, 4)
    assert [cluster.app_of(attempt).is_active for attempt in apps] == [True, True]
    assert {container.state.name for container in cluster.context.containers.values()} == {"RUNNING"}
    cluster.check()


def test_recovered_application_whose_queue_is_gone_is_killed() -> None:
    cluster = QueueCluster({"name": "a"})

    recovered(cluster, queue="gone", count=1)

    (event,) = cluster.news
    assert (event.type.name, event.diagnostics) == (
        "KILL",
        "queue gone does not exist; queues that accept applications: a",
    )
    assert list(cluster.capacity_scheduler._books.attempts) == []


def test_recovered_application_is_taken_by_a_queue_that_is_stopped_or_full() -> None:
    cluster = QueueCluster({"name": "a", "state": "STOPPED", "maximum_applications": 1})

    recovered(cluster, queue="a", count=2)

    assert (cluster.news, cluster.info("root.a").applications, cluster.info("root.a").state) == ([], 2, "STOPPED")


def recovered(cluster: QueueCluster, queue: str, count: int) -> list[str]:
    """`count` applications with an attempt whose master runs, as after a restart."""
    attempts = []
    for number in range(1, count + 1):
        app = f"application_0_{number:04d}"
        submission = ApplicationSubmission("job", ONE, queue=queue, user="ann")
        cluster.context.apps[app] = accepted_app(cluster.context, app, submission)
        attempt = attempt_of_app(cluster.context, app, 1, f"container_0_{number:04d}_01_000001")
        cluster.scheduler.handle(AppAddedSchedulerEvent(app, is_recovering=True))
        cluster.scheduler.handle(AppAttemptAddedSchedulerEvent(attempt, is_recovering=True))
        attempts.append(attempt)
    return attempts


# -- reports ----------------------------------------------------------------------------------------------------------


def test_queues_are_reported_parents_first(cluster: QueueCluster) -> None:
    cluster.get(cluster.attempt_in("day"), *[ONE] * 6)

    infos = {info.path: info for info in cluster.scheduler.queues()}

    assert list(infos) == ["root", "root.research", "root.research.day", "root.research.night", "root.batch"]
    day = infos["root.research.day"]
    assert (day.capacity, day.maximum_capacity, day.used_capacity) == (0.3, 1.0, pytest.approx(2.0))
    assert (day.state, infos["root.research.night"].state) == ("RUNNING", "STOPPED")
    assert infos["root"].children == ("root.research", "root.batch")
    assert (infos["root"].used, infos["root"].used_capacity) == (Resource(6, 6), 0.6)
