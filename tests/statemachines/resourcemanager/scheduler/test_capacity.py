"""How room is divided among queues, users and applications; event-driven."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher import ConfigError
from statemachines.resourcemanager import Resource

from ....kit.scenarios import play
from .queue_cluster import QueueCluster
from .stage import SchedulerStage

FREE: dict[str, Any] = {"user_limit_factor": 100, "maximum_am_resource_percent": 100}
TEN = "node n0 n1 n2 n3 n4 n5 n6 n7 n8 n9"


def halves(a: dict[str, Any] | None = None, b: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Queues a and b with half of the cluster each; users and masters may use their whole queue."""
    return [{"name": "a", "capacity": 50, **FREE, **(a or {})}, {"name": "b", "capacity": 50, **FREE, **(b or {})}]


def one(**more: Any) -> list[dict[str, Any]]:
    return [{"name": "a", "user_limit_factor": 9, "maximum_am_resource_percent": 100, **more}]


SHARED = {"name": "a", "maximum_am_resource_percent": 100}
LEAF = {"capacity": 50, **FREE}

QUEUES = {
    "a queue uses idle room of its sibling": (
        halves(), f"{TEN} | app x@a | ask x 1*120 -> count:x 100 ; root.a 100 ; why:x NO_ROOM",
    ),
    "a queue stops at its maximum though there is room": (
        halves({"maximum_capacity": 60}), f"{TEN} | app x@a | ask x 1*70 -> count:x 60 ; why:x QUEUE_LIMIT root.a",
    ),
    # 40 are left, and 10 in use on a draining node. Its own capacity counts once it is recommissioned.
    "a queue stops at its maximum of what is left while nodes drain": (
        halves({"maximum_capacity": 50}),
        f"{TEN} | app x@a | ask x 1*10 | drain n0 n1 n2 n3 n4 n5 | ask x 1*100 -> count:x 25 ; maximum:root.a 25"
        "| end x1 x2 x3 x4 -> count:x 23 ; maximum:root.a 23 | size n5 20 -> count:x 23 ; maximum:root.a 23"
        "| undrain n0 n1 n2 n3 n4 n5 -> count:x 55 ; maximum:root.a 55",
    ),
    "an ask that waited for its queue is served on any node": (
        halves({"capacity": 20, "maximum_capacity": 20}, {"capacity": 80}),
        f"{TEN} | app x@a | ask x 10*3 -> count:x 2 | end x1 -> count:x 2 ; waits",
    ),
    "a parent bounds its children together": (
        [
            {"name": "p", "capacity": 50, "maximum_capacity": 50, "queues": [{"name": name, **LEAF} for name in "xy"]},
            {"name": "q", "capacity": 50},
        ],
        "node n1 | app x@x y@y | ask x 1*4 | ask y 1*4 -> count:x 4 ; count:y 1 ; why:y QUEUE_LIMIT root.p",
    ),
    "the queue that uses least of its guarantee comes first": (
        [{"name": "a", "capacity": 75, "user_limit_factor": 9}, {"name": "b", "capacity": 25, "user_limit_factor": 9}],
        "app x@a y@b | ask y 1*8 | ask x 1*8 | node n1 8 -> count:x 6 ; count:y 2",
    ),
    "the more urgent queue comes first while it is within its guarantee": (
        halves(b={"priority": 1}),
        "node n1 | app x@a y@b | ask x 10 | ask x 1*8 | ask y 1*8 | end x1 -> count:x 5 ; count:y 5"
        "; first y1 y2 y3 y4 y5",
    ),
    "a maximum holds for GPUs": (
        halves({"maximum_capacity": 50}),
        "node n1 n2 100g2 | app x@a | ask x 1g1:500*6 -> count:x 4 ; root.a 4g1:2000 ; why:x QUEUE_LIMIT root.a",
    ),
    "a maximum holds for vcores": (
        halves({"maximum_capacity": 50}),
        "node n1 | app x@a | ask x 1x3*3 -> count:x 1 ; root.a 1x3 ; why:x QUEUE_LIMIT root.a",
    ),
    "a queue beyond its limit in one type gets nothing of the others": (
        halves({"maximum_capacity": 50}),
        "node n1 n2 | app x@a | ask x 9x1!n1 | lose n2 | ask x 0x1 -> count:x 1 ; why:x QUEUE_LIMIT root.a",
    ),
    "a maximum holds for further types": (
        halves({"maximum_capacity": 50}), f"{TEN} | node special 10f4 | app x@a | ask x 1f1*3 -> count:x 2",
    ),
    "a container does not grow beyond the limit of its queue": (
        halves({"maximum_capacity": 50}),
        f"{TEN} | app x@a | ask x 7*7 | resize x1 9 8 2 -> resized no yes yes ; root.a 44 ; containers:root 7",
    ),
    "a container that shrinks makes room below the limit": (
        halves({"maximum_capacity": 50}),
        f"{TEN} | app x@a | ask x 10*5 | ask x 5 -> count:x 5 | resize x1 5 -> count:x 6",
    ),
    "headroom is what the queue has room for": (
        halves({"maximum_capacity": 60}),
        "node n1 100 | app ann@a | app bob@a user=bob | ask bob 45 | ask ann 200 -> room:ann 15",
    ),
    "headroom is half of it for two users": (
        halves({"user_limit_factor": 1, "minimum_user_limit_percent": 50}),
        "node n1 100 | app ann@a | app bob@a user=bob | ask ann 20 | ask bob 10 | ask ann 1!away"
        "| ask bob 1!away -> room:ann 5",
    ),
    "headroom is what the attempt then gets": (
        halves({"user_limit_factor": 2, "maximum_capacity": 80}),
        f"{TEN} | app x@a | ask x 1*20 -> room:x 30 | ask x 1*60 -> room:x 0 ; count:x 80",
    ),
}  # fmt: skip

USERS = {
    # Ann, at the limit, comes first and gets one more, as in YARN; then it is bob's turn.
    "users share a queue and the first does not keep it": (
        [{**SHARED, "minimum_user_limit_percent": 50}],
        "node n1 | app ann@a | app bob@a user=bob | ask ann 1*20 | ask bob 1*20 -> count:ann 10 ; bob"
        "| end ann1 ann2 ann3 ann4 ann5 -> count:ann 6 ; count:bob 4 ; why:ann USER_LIMIT",
    ),
    "a user does not get beyond the factor though there is room": (
        halves({"user_limit_factor": 0.5}), f"{TEN} | app x@a | ask x 1*50 -> count:x 26 ; why:x USER_LIMIT",
    ),
    "a user that no longer waits leaves its part to the others at once": (
        [{**SHARED, "minimum_user_limit_percent": 25}],
        "node n1 n2 | app ann@a | app bob@a user=bob | ask bob 11x1 | ask ann 1*20 -> count:ann 11 | stop bob"
        "-> count:ann 20",
    ),
    "a user limit is of the dominant resource": (
        [{**SHARED, "minimum_user_limit_percent": 50}],
        "node n1 100x10 | app ann@a | app bob@a user=bob | ask ann 10x3*2 | ask bob 1000x1 | ask ann 1x1"
        "-> count:ann 2 ; why:ann USER_LIMIT",
    ),
    "a user limit grows with the queue beyond its guarantee": (
        halves({"minimum_user_limit_percent": 10}),
        f"{TEN} | app ann@a | app bob@a user=bob | ask ann 1*60 | ask bob 1*60 | ask ann 1*60 -> count:ann 60"
        "; count:bob 40",
    ),
}  # fmt: skip

MASTERS = {
    "applications beyond the share of masters are pending and come in their order": (
        one(maximum_am_resource_percent=20),
        "node n1 | app p q r@a | app s@a priority=5 | ask p 1 | ask q 1 | ask r 1 | ask s 1 -> p n1 ; q n1 ; r ; s"
        "; why:r AM_LIMIT ; why:s AM_LIMIT | stop p -> r ; s n1 ; pending:root 1",
    ),
    "one application may always run, and one alone without a share, whatever the scheduler's": (
        one(maximum_am_resource_percent=0), "node n1 100 | app x y@a | ask x 1 | ask y 1 -> x n1 ; y",
    ),
    "applications that came before the nodes run when these come": (
        one(maximum_am_resource_percent=50),
        "app p q r s t u@a | ask p 1 | ask q 1 | ask r 1 | ask s 1 | ask t 1 | ask u 1 | node n1"
        "-> p n1 ; q n1 ; r n1 ; s n1 ; t n1 ; u",
    ),
    "an unmanaged master needs no share": (
        one(maximum_am_resource_percent=0),
        "node n1 | app x@a | app y@a unmanaged_am=1 | ask x 1 | ask y 1 -> x n1 ; y n1",
    ),
    "a priority may change while an application is pending": (
        one(maximum_am_resource_percent=0), "node n1 | app x y z@a | ask y 1 | ask z 1 | urge z 3 | stop x -> y ; z n1",
    ),
    "a pending application stays pending in the queue it moves to": (
        halves({"maximum_am_resource_percent": 0}, {"maximum_am_resource_percent": 0}),
        "node n1 | app x y@a | app z@b | ask y 1 | move y b -> y | stop z -> y n1",
    ),
    "a running application keeps running in its new queue whatever share masters have left": (
        halves({"maximum_am_resource_percent": 0}, {"maximum_am_resource_percent": 0}),
        "node n1 | app x@a y@b | ask x 1 | move x b | ask x 1 -> x n1 n1",
    ),
}  # fmt: skip

FAIR = {
    "a fair queue serves the application that has least": (
        one(ordering_policy="fair"),
        "node n1 | app x y@a | ask x 6 2*2 | ask x 2*4 | ask y 2*4 | end x1 -> count:x 3 ; count:y 2",
    ),
    "a fair queue notices that an application has less than before": (
        one(ordering_policy="fair"),
        "node n1 | app x y@a | ask x 3*2 | ask y 4 | ask x 3*3 | ask y 3*3 | end x1 x2 -> count:x 2 ; count:y 1",
    ),
    # It kept its place behind users of less, after the containers of its first attempt had ended.
    "a fair queue notices that a pending application has less than before": (
        one(ordering_policy="fair", maximum_am_resource_percent=10),
        "node n1 | app x@a keep_containers_across_attempts=1 | ask x 1 1 | stop x keep | app run@a | next old x keep"
        "| app new@a | ask old 1 | ask new 1 | end x2 | stop run -> old n1 ; new",
    ),
}  # fmt: skip

ORDER = {
    "asks of one call are served by priority where there is room for some": (
        one(),
        "node n1 | app x@a | ask x 3^20 3x2^5 3x1^20 2^5 -> sizes:x 3x2 2 3 ; waits x:3x1",
    ),
}  # fmt: skip

GPU = {"gpu": {"capacity": 75, "maximum_capacity": 80}}
LABELLED: list[dict[str, Any]] = [
    {"name": "a", "capacity": 50, **FREE, "accessible_node_labels": GPU, "default_node_label": "gpu"},
    {"name": "b", "capacity": 50, **FREE, "accessible_node_labels": {"gpu": {"capacity": 25}}},
    {"name": "c", "capacity": 0, **FREE},
]
PAIR = "node plain | node labelled partition=gpu"

PARTITIONS = {
    "asks go to the partition that they name, else their application's, else their queue's": (
        LABELLED,
        f"{PAIR} | app x@a | app y@a node_label= | app z@b | ask x 1 -> x labelled | ask x 1# -> x labelled plain"
        "| ask y 1 -> y plain | ask y 1#gpu -> y plain labelled | ask z 1 -> z plain",
    ),
    "each partition has its own limits": (
        LABELLED, f"{PAIR} | app x@a | ask x 1*10 -> count:x 8 ; why:x QUEUE_LIMIT root.a | ask x 1#*12 -> count:x 18",
    ),
    "a queue gets nothing of a partition that it may not use": (
        LABELLED, f"{PAIR} | app x@c | ask x 1#gpu -> x ; why:x PARTITION",
    ),
    "a relabelled node brings its room and its containers to the other partition": (
        LABELLED,
        f"{PAIR} | app x@a | ask x 1*8 | ask x 1*4 -> count:x 8 | label plain gpu -> count:x 12"
        "| label labelled -> count:x 12",
    ),
    "limits grow when a node comes or grows, and shrink when it goes": (
        halves({"maximum_capacity": 50}),
        "node n1 | app x@a | ask x 1*20 -> count:x 5 | node n2 -> count:x 10 | size n2 20 -> count:x 15"
        "| lose n2 -> maximum:root.a 5",
    ),
    "containers of a lost node no longer count": (
        one(), "node n1 | app x@a | ask x 1 | node n2 | ask x 9 10 | lose n2 -> containers:root.a 2",
    ),
}  # fmt: skip

SCENARIOS = QUEUES | USERS | MASTERS | FAIR | ORDER | PARTITIONS


@pytest.mark.parametrize(("queues", "script"), SCENARIOS.values(), ids=SCENARIOS)
def test_division(queues: list[dict[str, Any]], script: str) -> None:
    play(SchedulerStage(QueueCluster(*queues)), script)


def test_invalid_tree_is_refused_when_the_scheduler_is_made() -> None:
    with pytest.raises(ConfigError, match=r"scheduler\.queues: the capacities add up to 40"):
        QueueCluster({"name": "a", "capacity": 40})


def test_relabelled_node_moves_what_its_containers_are_charged_for() -> None:
    stage = SchedulerStage(QueueCluster(*LABELLED))

    play(stage, f"{PAIR} | app x@a | ask x 1*8 1*4 | label plain gpu | label labelled")

    shares = stage.cluster.tree.leaves["a"].shares.values()
    assert sum(share.used["memory_mb"] for share in shares) == 12
    assert stage.cluster.info("root.a").used == Resource(12, 12)


def test_limit_in_a_partition_is_told_with_its_name() -> None:
    stage = SchedulerStage(QueueCluster(*LABELLED))

    play(stage, f"{PAIR} | app x@a | ask x 1*9")

    (ask,) = stage.cluster.scheduler.waiting_asks(stage.attempts["x"])
    assert ask.sentence == "queue root.a has used 8 MB of its 8 MB in partition gpu; the request needs 1 MB"
