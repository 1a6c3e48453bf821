"""Attempts of an application, from outside: masters that crash, fall silent, are kept from nodes, or live elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from ..inner import EXIT_ABORTED, EXIT_DISKS_FAILED, EXIT_PREEMPTED
from .stage import Scene, play_scene

pytestmark = pytest.mark.long

EXPIRY: dict[str, Any] = {"expiry_ms": 1000}
TWO_NODES: dict[str, Any] = {"nodes": ("n1", "n2")}
KEEPS, UNMANAGED = "keep_containers_across_attempts=true", "unmanaged_am=true"

MASTERS_THAT_FAIL: dict[str, Scene] = {
    "a crash is followed by another master, and the last crash fails the application": (
        TWO_NODES | {"max_attempts": 2},
        "submit a | run a m | get m t | crash m out_of_memory -> a ACCEPTED FAILED LAUNCHED ; live ?"
        " ; m.exit_status 1 ; m.host | stops t | run a b -> a RUNNING FAILED RUNNING | end b 2 out_of_memory_again"
        " -> a FAILED FAILED FAILED ; a.final_status FAILED ; a.containers 0 ; b.exit_status 2 ; b.host"
        " | says a out_of_memory_again | says a failed_2_times,_of_2_allowed",
    ),
    **{
        f"an application that wants {wanted} of 3 attempts has {given}": (
            {"max_attempts": 3},
            f"submit a{wish}{' | run a | crash a' * given} -> a FAILED{' FAILED' * given}",
        )
        for wanted, wish, given in (("none", "", 3), ("2", " max_attempts=2", 2), ("9", " max_attempts=9", 3))
    },
    "a master that falls silent is followed by another and refused": (
        EXPIRY,
        "start a | +999 | beat n1 -> a RUNNING RUNNING | +1 -> a ACCEPTED FAILED LAUNCHED | stops a"
        " | beat n1 | cleans a | refused call a -> refusal UnknownAttemptError"
        " | run a b -> a RUNNING FAILED RUNNING",
    ),
    "a master that calls does not expire": (
        EXPIRY,
        "start a" + " | +999 | call a | beat n1" * 5 + " -> a RUNNING RUNNING",
    ),
    "a master that is launched and never registers expires": (
        EXPIRY | {"max_attempts": 1},
        "submit a | +999 | beat n1 -> a ACCEPTED LAUNCHED | +1 -> a FAILED FAILED | says a silent_for_too_long",
    ),
    "a master that has unregistered and does not exit is stopped in the end": (
        EXPIRY,
        "start a | finish a -> a FINISHED FINISHING ; a.final_status SUCCEEDED | +999 | beat n1"
        " -> a FINISHED FINISHING | +1 -> a FINISHED FINISHED | stops a",
    ),
    "failures older than the validity interval do not count": (
        {"max_attempts": 2},
        "submit a attempt_failures_validity_interval_ms=10000" + " | run a | crash a | +10001" * 4 + " -> a ACCEPTED"
        " FAILED FAILED FAILED FAILED LAUNCHED | run a | crash a | +9000 | run a | crash a"
        " -> a FAILED FAILED FAILED FAILED FAILED FAILED FAILED",
    ),
    **{
        f"a failure with exit status {status} is not the master's and does not count": (
            {"max_attempts": 2},
            f"submit a{f' | run a | end a {status}' * 3} -> a ACCEPTED FAILED FAILED FAILED LAUNCHED",
        )
        for status in (EXIT_ABORTED, EXIT_DISKS_FAILED, EXIT_PREEMPTED)
    },
    "an attempt that its user fails is followed by another, and its container is stopped": (
        {},
        "start a | fail a -> a ACCEPTED FAILED LAUNCHED | beat n1 | cleans a",
    ),
    "an application whose last attempt its user fails says so": (
        {"max_attempts": 1},
        "start a | fail a -> a FAILED FAILED | says a failed_by_its_user",
    ),
}
WHERE_THEY_RUN: dict[str, Scene] = {
    "the next master avoids the hosts on which masters crashed": (
        {"nodes": ("n1", "n2", "n3"), "max_attempts": 3},
        "submit a am_host=n1 | run a | crash a | run a b | crash b | run a c"
        " -> started n1 n2 n3 ; c.system_blacklist n1 n2",
    ),
    "a master may run again where it crashed if there is nowhere else": (
        {"max_attempts": 2},
        "submit a | run a | crash a -> a ACCEPTED FAILED LAUNCHED",
    ),
    "a host that the master avoids for itself takes the tasks of its application": (
        TWO_NODES | {"max_attempts": 3},
        "submit a am_host=n1 | run a | crash a | run a b | ask b t @n1! -> got t ; @t n1",
    ),
    # The node was lost, with the master on it; both had only lost the network.
    "a node that runs a given up master is told to stop it when it comes back": (
        EXPIRY,
        "start a | +500 | call a | +500 -> nodes n1=LOST ; a ACCEPTED FAILED SCHEDULED | beat n1 running=a"
        " -> action RESYNC | register n1 | beat n1 running=a | beat n1 running=a"
        " -> to_clean a ; a ACCEPTED FAILED LAUNCHED",
    ),
    "a master on a node that is to leave may still be launched there": (
        TWO_NODES,
        "submit a am_host=n1 | empty n1 | beat n1 | run a | exit a | beat n1"
        " -> a FINISHED FINISHED ; nodes n1=DECOMMISSIONED n2=RUNNING",
    ),
}
THEIR_TASKS: dict[str, Scene] = {
    # The next master could not know what one is for that was fetched and never started.
    "tasks go on for the next master where the application keeps them": (
        TWO_NODES,
        f"submit a {KEEPS} | run a | get a lasting ending | ask a fetched | crash a | end ending 3 | run a b"
        " -> kept lasting ; live b lasting | call b | finds ending 3"
        " | end lasting | call b -> finished lasting=0",
    ),
    "kept tasks end with the last attempt": (
        {"max_attempts": 2},
        f"submit a {KEEPS} | run a | get a t | crash a -> t.state RUNNING | run a b | crash b"
        " -> a FAILED FAILED FAILED ; live | beat n1 | cleans t",
    ),
}
ELSEWHERE: dict[str, Scene] = {
    "a master that the cluster does not run works without a container": (
        {},
        f"submit a {UNMANAGED} -> a ACCEPTED LAUNCHED ; a.containers 0 | unmanaged a -> a RUNNING RUNNING"
        " | get a t 9mb -> got t | end t | finish a -> done True ; a FINISHED FINISHED ; started",
    ),
    "a master that the cluster does not run is not tried again": (
        EXPIRY | {"max_attempts": 3},
        f"submit a {UNMANAGED} | unmanaged a | +1000 -> a FAILED FAILED",
    ),
    "a master elsewhere that keeps its containers may begin again, and is told of them": (
        {},
        f"submit a {UNMANAGED} {KEEPS} | unmanaged a | get a t | enrol a -> kept t ; a RUNNING RUNNING",
    ),
}
SCENES = MASTERS_THAT_FAIL | WHERE_THEY_RUN | THEIR_TASKS | ELSEWHERE


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_attempts(scene: Scene) -> None:
    play_scene(scene)
