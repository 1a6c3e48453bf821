"""Nodes that are decommissioned, lost, unhealthy, rebooted, shut down or resized, and the effects on applications."""

from __future__ import annotations

from typing import Any

import pytest

from .stage import Scene, play_scene

pytestmark = pytest.mark.long

ONE: dict[str, Any] = {}
TWO: dict[str, Any] = {"nodes": ("n1", "n2")}
EXPIRY: dict[str, Any] = {"expiry_ms": 1000}

DECOMMISSIONED: dict[str, Scene] = {
    "a node is emptied, gets nothing new, and leaves when its applications have ended": (
        TWO,
        "start a am_host=n1 | get a t @n1! | empty n1 | beat n1 | ask a u @n1 -> got u ; @u n2"
        " | ask a v @n1! -> got | end t -> nodes n1=DECOMMISSIONING n2=RUNNING | exit a | beat n1 -> apps_to_clean a"
        " ; nodes n1=DECOMMISSIONED n2=RUNNING | beat n1 -> action SHUTDOWN"
        " | refused register n1 -> refusal NodeRefusedError",
    ),
    "a node that is not empty in time leaves with what it runs": (
        TWO,
        "start a am_host=n2 | get a t @n1 | empty n1 5 | +4999 -> nodes n1=DECOMMISSIONING n2=RUNNING"
        " | +1 -> nodes n1=DECOMMISSIONED n2=RUNNING | call a -> finished t=-100",
    ),
    "a recommissioned node stays past its time and is used again": (
        ONE,
        "start a | empty n1 5 | beat n1 | ask a t -> got | recommission n1 | call a -> got t ; @t n1 | +10000"
        " -> nodes n1=RUNNING",
    ),
    "a master is notified when a node begins to leave, and when it has left": (
        TWO,
        "start a am_host=n2 | get a t @n1 | empty n1 5 | call a -> updated n1=NODE_DECOMMISSIONING | +5000 | call a"
        " -> updated n1=NODE_UNUSABLE | call a -> updated",
    ),
    "a node that is decommissioned at once ends what it runs": (
        TWO,
        "start a am_host=n1 | decommission n1 -> nodes n1=DECOMMISSIONED n2=RUNNING ; a ACCEPTED FAILED LAUNCHED"
        " ; a.master_node n2:45454",
    ),
    "a recommissioned host may register a node again": (
        ONE,
        "decommission n1 | recommission n1 | register n1 -> nodes n1=RUNNING | start a -> started n1",
    ),
}
GONE_OR_ILL: dict[str, Scene] = {
    "a lost node ends its containers, and the master learns of each": (
        TWO | EXPIRY,
        "start a am_host=n1 | get a t u @n2 | +500 | beat n1 | call a | +500 | call a -> nodes n1=RUNNING n2=LOST"
        " ; finished t=-100 u=-100 ; updated n2=NODE_UNUSABLE ; total 10",
    ),
    "a master on a lost node is followed by another as often as that happens": (
        {"max_attempts": 2},
        "submit a" + " | run a | expire n1 | register n1" * 3 + " -> a ACCEPTED FAILED FAILED FAILED LAUNCHED",
    ),
    "a master on a lost node is not followed by another where one attempt is allowed": (
        {"max_attempts": 1},
        "submit a | run a | expire n1 -> a FAILED FAILED",
    ),
    # It has forgotten where it was.
    "a node that begins again without registering is rebooted, and registers": (
        ONE,
        "start a | beat n1 id=0 | beat n1 id=1 -> id 2 | beat n1 id=0 -> action RESYNC ; nodes n1=REBOOTED"
        " ; a ACCEPTED FAILED SCHEDULED | register n1 -> nodes n1=RUNNING ; a ACCEPTED FAILED LAUNCHED",
    ),
    "an ill node ends its containers, and serves again when it is well": (
        TWO,
        "start a am_host=n1 | get a t @n2 | beat n2 ill -> nodes n1=RUNNING n2=UNHEALTHY ; ill n2 | call a"
        " -> ended t | ask a u @n2! -> got | beat n2 -> to_clean t ; nodes n1=RUNNING n2=RUNNING"
        " | call a -> got u ; @u n2",
    ),
    "a node that shuts down by itself leaves at once": (
        TWO,
        "start a am_host=n1 | unregister n1 -> nodes n1=SHUTDOWN n2=RUNNING ; a ACCEPTED FAILED LAUNCHED | beat n1"
        " -> action RESYNC",
    ),
    "a node that loses only the connection keeps its containers": (
        ONE,
        "start a | get a t | register n1 a t -> a RUNNING RUNNING ; live a t | call a -> finished",
    ),
    "a node manager that was restarted has lost its containers": (
        ONE,
        "start a | register n1 -> nodes n1=RUNNING ; a ACCEPTED FAILED LAUNCHED",
    ),
    "a container that its node no longer reports is lost": (
        ONE,
        "start a | get a kept lost | beat n1 running=a,kept | call a -> ended lost",
    ),
}
CHANGES: dict[str, Scene] = {
    "the capacity of a node changes while it runs, and what it has given stays given": (
        ONE,
        "start a | ask a t 15mb -> got | capacity n1 20 | call a -> got t ; t.resource 15 | capacity n1 2"
        " -> total 2 ; live a t | ask a u -> got",
    ),
    "a node whose host is on no list is shut down and forgotten": (
        TWO,
        "include n1 -> nodes n1=RUNNING n2=SHUTDOWN | beat n2 -> action SHUTDOWN | +60000 -> nodes n1=RUNNING"
        " | refused register n3 -> refusal NodeRefusedError",
    ),
    "a signal reaches the node of the container with its next heartbeat, once": (
        ONE,
        "start a | get a t | signal t GRACEFUL_SHUTDOWN | beat n1 -> to_signal t=GRACEFUL_SHUTDOWN | beat n1"
        " -> to_signal",
    ),
}
SCENES = DECOMMISSIONED | GONE_OR_ILL | CHANGES


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_nodes(scene: Scene) -> None:
    play_scene(scene)
