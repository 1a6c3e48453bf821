"""The applications that the capacity scheduler accepts, moves and recovers."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import ApplicationSubmission, NMContainerStatus, Resource
from statemachines.simulation.workload import NodeSpec

from ....kit.scenarios import play
from ..inner import InvalidRequestError
from .queue_cluster import QueueCluster, queue_config
from .stage import SchedulerStage

ONE = Resource(1, 1)
DAY = queue_config("day", 50, maximum_applications=2, maximum_lifetime_s=600, user_limit_factor=9)
TREE = (
    queue_config("research", 60, DAY, queue_config("night", 50, state="STOPPED"), maximum_applications=3),
    queue_config("batch", 40, maximum_capacity=50, user_limit_factor=9),
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


def test_a_second_live_attempt_leaves_its_application_active_once(cluster: QueueCluster) -> None:
    """It was pending beside: the search for the next application to activate found it again and again."""
    app = cluster.add_app(queue="day")

    for number in (1, 2):
        cluster.add_attempt(app, number)

    day = cluster.info("root.research.day")
    assert (day.active_applications, day.pending_applications) == (1, 0)


def test_full_queue_takes_no_more_until_one_ends(cluster: QueueCluster) -> None:
    first, _ = (cluster.add_app(queue="day") for _ in range(2))
    submission = ApplicationSubmission("job", ONE, queue="day")

    full = cluster.policy.check_submission(submission)
    cluster.remove_app(first)

    assert full == "queue root.research.day already has 2 applications, its maximum"
    assert cluster.policy.check_submission(submission) is None


# -- moves ------------------------------------------------------------------------------------------------------------


SCENARIOS = {
    "a moved application takes its containers and asks along": (
        "app x@day | ask x 1*4 | ask x 9 -> apps 1 1 1 0 0 | move x batch -> apps 1 0 0 0 1 ; containers:root 4"
        "; containers:root.research 0 ; containers:root.batch 4 ; root.batch 4 ; why:x QUEUE_LIMIT root.batch"
    ),
    "a move frees room in the old queue and uses room in the new one": (
        "app x@batch | app y@batch user=bob | ask x 1*5 | ask x 1 | ask y 1 -> count:x 5 ; count:y 0"
        "| move x day -> count:x 6 ; count:y 1"
    ),
    "the next attempt inherits the usage in the queue": (
        "app x@batch keep_containers_across_attempts=1 | ask x 1*3 | stop x keep -> containers:root.batch 2"
        "| next y x keep -> containers:root.batch 2"
    ),
}  # fmt: skip


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_application(cluster: QueueCluster, script: str) -> None:
    play(SchedulerStage(cluster), script)


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


# -- attempts and recovery --------------------------------------------------------------------------------------------


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
    for _ in range(count):
        app = cluster.add_app(is_recovering=True, queue=queue, user="ann")
        attempts.append(f"{app.replace('application', 'appattempt')}_000001")
        cluster.recover_attempt(attempts[-1], f"{app.replace('application', 'container')}_01_000001")
    return attempts
