"""Scheduling on heartbeats: locality delays, containers per heartbeat, and reservations."""

from __future__ import annotations

from typing import Any

import pytest

from ....kit.scenarios import play
from ..cluster import Cluster
from ..inner import FifoScheduler
from .queue_cluster import QueueCluster
from .stage import SchedulerStage

RACKS = "node preferred near rack=/a | node far rack=/b | app x y | "
FREE = {"user_limit_factor": 9}


def on_heartbeats(policy: str, **scheduler: Any) -> Cluster:
    if policy == "capacity":
        queue = {"name": "default", **FREE}
        return QueueCluster(queue, on_heartbeat=True, maximum_am_resource_percent=100, **scheduler)
    return Cluster(lambda context: FifoScheduler(context, on_heartbeat=True), scheduler=scheduler)


SCENARIOS: dict[str, tuple[dict[str, Any], str]] = {
    "an ask waits until a node with room reports": ({}, "node n1 | app x | ask x 5 -> x | beat n1 -> x n1"),
    "a late report of a node that has become unhealthy gives nothing": (
        {}, "node n1 n2 | app x | sicken n1 | ask x 5 | update n1 -> x | beat n2 -> x n2",
    ),
    "the room of a released container goes with the next heartbeat": (
        {}, "node n1 | app x | ask x 10 | beat n1 | ask x 10 x1 -> x | beat n1 -> x n1",
    ),
    "a heartbeat allocates up to the configured number of containers": (
        {"containers_per_heartbeat": 2},
        "node n1 | app x | ask x 1*5 | beat n1 -> count:x 2 | beat n1 -> count:x 4 | beat n1 -> count:x 5",
    ),
    "without such a number a heartbeat allocates what it can": (
        {"containers_per_heartbeat": None}, "node n1 | app x | ask x 1*5 | beat n1 -> count:x 5",
    ),
    "the preferred host is taken at once": ({}, RACKS + "ask x 1@preferred | beat far preferred -> x preferred"),
    "an ask lets opportunities pass before it takes another node of its rack": (
        {"node_locality_delay": 2}, RACKS + "ask x 1@preferred | beat near near -> x | beat near -> x near",
    ),
    "an ask lets as many pass for any node as for its rack if no more are configured": (
        {"node_locality_delay": 2, "rack_locality_additional_delay": 0},
        RACKS + "ask x 1@preferred | beat far far -> x | beat far -> x far",
    ),
    "an ask lets more pass before it takes any node": (
        {"node_locality_delay": 2, "rack_locality_additional_delay": 1},
        RACKS + "ask x 1@preferred | beat far far far -> x | beat far -> x far",
    ),
    "by default an ask lets as many more pass as there are nodes": (
        {"node_locality_delay": 2, "rack_locality_additional_delay": None},
        RACKS + "ask x 1@preferred | beat far far far -> x | beat far -> x far",
    ),
    "an ask does not let more pass than there are nodes": (
        {"node_locality_delay": 2, "rack_locality_additional_delay": 99},
        RACKS + "ask x 1@preferred | beat far far far -> x | beat far -> x far",
    ),
    "without a delay any node is taken at once": (
        {"node_locality_delay": None}, RACKS + "ask x 1@preferred | beat far -> x far",
    ),
    "the preferred rack is taken at once, and another is not": (
        {"node_locality_delay": 1, "rack_locality_additional_delay": 1},
        RACKS + "ask x 1@/a*2 | beat far -> x | beat near -> x near near",
    ),
    "an ask that insists never takes another node": (
        {"node_locality_delay": None},
        RACKS + "ask x 1!preferred | beat near far near far near far near far -> x | beat preferred -> x preferred",
    ),
    "a heartbeat counts as one opportunity however many containers it allocates": (
        {"node_locality_delay": 2}, RACKS + "ask x 1@preferred | ask y 1*5 | beat near -> x ; count:y 5",
    ),
    "an ask that waits for its host does not block later asks": (
        {}, RACKS + "ask x 2@preferred 1 | beat far -> sizes:x 1",
    ),
    "a locality delay restarts once an ask gets its preferred node": (
        {"node_locality_delay": 1, "rack_locality_additional_delay": 0},
        RACKS + "ask x 6@preferred*2 | beat far preferred -> x preferred | beat far -> x preferred"
        "| beat far -> x preferred far",
    ),
}  # fmt: skip


@pytest.mark.parametrize("policy", ["fifo", "capacity"])
@pytest.mark.parametrize(("config", "script"), SCENARIOS.values(), ids=SCENARIOS)
def test_heartbeat(config: dict[str, Any], script: str, policy: str) -> None:
    play(SchedulerStage(on_heartbeats(policy, **config)), script)


CROWDED = "node n1 spare | app small big | ask small 4 5 | beat n1 | launch small1 small2 | ask big 10 | "
"""A node, almost filled by two containers of `small`; `big` asks for all of it. The spare one is room for its queue."""
AGAIN = "end small1 | ask small 5 | beat n1 | end small2 | ask small 5 | beat n1 "

RESERVATIONS = {
    "a reserved node is kept until there is room enough": CROWDED + f"beat n1 | {AGAIN} -> big n1",
    "a reserved container gets its GPUs with its room": (
        "node n1 spare 10g2 | app small big | ask small 1g1 | beat n1 | ask big 1g2 | beat n1 -> reserved n1"
        "| end small1 -> gpus:big 0 1"
    ),
    "a node that could never take the ask is not reserved": (
        CROWDED + "stop big | app huge | ask huge 11x1 | beat n1 -> reserved"
    ),
    "an ask reserves one node only": CROWDED + "node n2 | ask small 1 | beat n2 n1 n2 n1 -> reserved n2",
    "a reservation ends when the ask is served elsewhere": (
        CROWDED + "beat n1 -> reserved n1 | node n2 | beat n2 n1 -> reserved ; big n2"
    ),
    "a reservation ends with the attempt": CROWDED + "beat n1 -> reserved n1 | stop big -> reserved ; big",
    "a reservation ends with the node": CROWDED + "beat n1 -> reserved n1 | lose n1 -> reserved ; big",
    "a reservation ends when the node is resized": CROWDED + "beat n1 -> reserved n1 | size n1 12 -> reserved ; big",
    "a reservation ends when the node drains": CROWDED + "beat n1 -> reserved n1 | drain n1 -> reserved ; big",
    "a reservation ends when the node is relabelled": CROWDED + "beat n1 -> reserved n1 | label n1 x -> reserved ; big",
    "a reservation ends when the host is blacklisted": (
        CROWDED + "beat n1 -> reserved n1 | ban big n1 -> reserved ; big"
    ),
    "a node that is announced again keeps its reservation": (
        CROWDED + "beat n1 -> reserved n1 | announce n1 -> reserved n1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("script", RESERVATIONS.values(), ids=RESERVATIONS)
def test_reservation(script: str) -> None:
    play(SchedulerStage(on_heartbeats("capacity")), script)


def test_without_reservations_small_asks_of_an_earlier_application_take_each_bit_of_room() -> None:
    play(SchedulerStage(on_heartbeats("fifo")), CROWDED + f"beat n1 | {AGAIN} -> big ; count:small 2")


def test_reservation_becomes_the_container() -> None:
    stage = SchedulerStage(on_heartbeats("capacity"))
    play(stage, CROWDED + "beat n1 -> reserved n1")
    (reserved,) = (c for c in stage.cluster.context.containers.values() if c.state.name == "RESERVED")

    play(stage, "end small1 small2 -> big n1 ; reserved")

    assert stage.containers["big1"] is reserved
