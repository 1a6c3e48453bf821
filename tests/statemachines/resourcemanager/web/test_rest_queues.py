"""GET /scheduler: a queue's limits, its lists, and what the scheduler has done last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from statemachines.resourcemanager import ContainerRequest, Resource
from statemachines.simulation.workload import NodeSpec

from ..daemon.yarn_cluster import Yarn
from .served import Served, amount

pytestmark = pytest.mark.long

QUEUES = {
    "kind": "capacity",
    "queues": [
        {"name": "a", "capacity": 60, "maximum_capacity": 80, "queues": [
            {"name": "c", "maximum_allocation_mb": 300, "acl_submit_applications": "ann"},
        ]},
        {"name": "b", "capacity": 40, "maximum_allocation_vcores": 2},
    ],
    "maximum_allocation_mb": 500,
    "maximum_allocation_vcores": 4,
}  # fmt: skip
NODE = NodeSpec("n1", Resource(1000, 10_000))
ANY = 2**31 - 1
NONE = "N/A"


@pytest.fixture
def yarn() -> Iterator[Yarn]:
    with Yarn(NODE, scheduler=QUEUES) as yarn:
        yield yarn


@pytest.fixture
def served(yarn: Yarn) -> Iterator[Served]:
    """Publishes when a test asks for it, and otherwise not within its time."""
    with Served(yarn.manager, refresh_ms=60_000) as served:
        yield served


def queues_of(served: Served) -> dict[str, Any]:
    """By path."""
    waiting, found = [served.get("/scheduler")["scheduler"]["schedulerInfo"]], {}
    while waiting:
        queue = waiting.pop()
        found[queue["queuePath"]] = queue
        waiting += queue.get("queues", {"queue": []})["queue"]
    return found


def test_a_percentage_is_no_configured_resource_but_an_effective_one(served: Served) -> None:
    """`configuredMinResource` had the effective value."""
    (partition,) = queues_of(served)["root.a"]["capacities"]["queueCapacitiesByPartition"]

    assert partition["configuredMinResource"] == partition["configuredMaxResource"] == amount(Resource(0, 0))
    assert partition["effectiveMinResource"] == amount(Resource(600, 6000))
    assert partition["effectiveMaxResource"] == amount(Resource(800, 8000))


def test_the_largest_container_of_a_queue_is_its_own_or_that_of_the_queues_above(served: Served) -> None:
    queues = queues_of(served)

    found = {path: queue["maximumAllocation"] for path, queue in queues.items()}
    assert found == {
        "root": amount(Resource(500, 4000, ANY)),
        "root.a": amount(Resource(500, 4000, ANY)),
        "root.a.c": amount(Resource(300, 4000, ANY)),
        "root.b": amount(Resource(500, 2000, ANY)),
    }


def test_a_queue_without_a_maximum_says_the_greatest_number() -> None:
    with Yarn(NODE) as yarn, Served(yarn.manager) as served:
        (found,) = {str(each["maximumAllocation"]) for each in queues_of(served).values()}

    assert found == str(amount(Resource(ANY, ANY * 1000, ANY)))


def test_the_lists_of_queues_are_their_own_and_for_everyone_where_none_is_configured(served: Served) -> None:
    found = {
        path: {each["accessType"]: each["accessControlList"] for each in queue["queueAcls"]["queueAcl"]}
        for path, queue in queues_of(served).items()
    }

    everyone = {"SUBMIT_APP": "*", "ADMINISTER_QUEUE": "*"}
    assert found == {
        "root": everyone,
        "root.a": everyone,
        "root.b": everyone,
        "root.a.c": everyone | {"SUBMIT_APP": "ann"},
    }


def test_a_list_that_a_queue_above_has_is_not_repeated() -> None:
    lists = {"acl_submit_applications": "ann", "acl_administer_queue": " ops"}
    with Yarn(NODE, scheduler=QUEUES | lists) as yarn, Served(yarn.manager) as served:
        queues = queues_of(served)

    (submit, administer), (inherited, _) = (queues[path]["queueAcls"]["queueAcl"] for path in ("root", "root.b"))
    assert (submit["accessControlList"], administer["accessControlList"]) == ("ann", " ops")
    assert inherited["accessControlList"] == " "


def test_the_share_of_masters(served: Served) -> None:
    queues = queues_of(served)

    (partition,) = queues["root.b"]["capacities"]["queueCapacitiesByPartition"]
    assert (queues["root.b"]["configuredMaxAMResourceLimit"], partition["maxAMLimitPercentage"]) == (0.1, 10.0)


def test_what_a_queue_uses_by_partition(yarn: Yarn, served: Served) -> None:
    master = yarn.submit_and_run("app", am_mb=100, queue="b", user="bob")
    master.get_running(ContainerRequest(Resource(200, 1000), tag=1))

    (usage,) = queues_of(served)["root.b"]["resources"]["resourceUsagesByPartition"]

    assert usage["used"]["memory"] == 300
    assert usage["amUsed"]["memory"] == 100
    assert set(usage) == {"partitionName", "used", "reserved", "pending", "amUsed", "amLimit", "userAmLimit"}


# -- health ------------------------------------------------------------------------------------------------------------


def health_of(served: Served) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """When the last run was; the last operations; and the counts, with MB, of the last run. Both by operation."""
    health = served.get("/scheduler")["scheduler"]["schedulerInfo"]["health"]
    last = {each["operation"]: (each["containerId"], each["queue"]) for each in health["operationsInfo"]}
    done = {each["operation"]: (each["count"], each["resources"]["memory"]) for each in health["lastRunDetails"]}
    return health["lastrun"], last, done


def test_a_scheduler_that_has_done_nothing(served: Served) -> None:
    when, last, done = health_of(served)

    assert when == 0
    operations = ("last-allocation", "last-release", "last-preemption", "last-reservation")
    assert last == dict.fromkeys(operations, (NONE, NONE))
    assert done == dict.fromkeys(("releases", "allocations", "reservations"), (0, 0))


def test_the_last_operations_and_their_counts(yarn: Yarn, served: Served) -> None:
    master = yarn.submit_and_run("app", am_mb=100, queue="b", user="bob")
    served.publish()
    yarn.advance(1_000)
    first, second = master.get_running(*(ContainerRequest(Resource(mb, 1000), tag=mb) for mb in (150, 200)))
    allocated = health_of(served)
    yarn.advance(1_000)
    yarn.end(first)
    released = health_of(served)
    yarn.advance(1_000)
    later = health_of(served)

    assert (allocated[0], allocated[1]["last-allocation"]) == (1_000, (second.entity, "root.b"))
    assert allocated[2] == {"releases": (0, 0), "allocations": (2, 350), "reservations": (0, 0)}
    assert (released[0], released[1]["last-release"]) == (2_000, (first.entity, "root.b"))
    assert released[2] == {"releases": (1, 150), "allocations": (0, 0), "reservations": (0, 0)}
    assert later == released


def test_a_container_that_comes_and_goes_between_two_publications_is_both(yarn: Yarn, served: Served) -> None:
    master = yarn.submit_and_run("app", am_mb=100, queue="b", user="bob")
    served.publish()
    (container,) = master.get_running(ContainerRequest(Resource(150, 1000), tag=1))
    yarn.end(container)

    _, last, done = health_of(served)

    assert last["last-allocation"] == last["last-release"] == (container.entity, "root.b")
    assert done == {"releases": (1, 150), "allocations": (1, 150), "reservations": (0, 0)}
