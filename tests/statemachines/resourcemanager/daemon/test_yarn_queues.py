"""Queues and the applications in them, from outside: order, elasticity, limits, moves, and those kept after the end."""

from __future__ import annotations

from typing import Any

import pytest

from statemachines.resourcemanager import ApplicationNotFoundError

from ..inner import InvalidRequestError, RMStateStoreEvent, RMStateStoreEventType
from .stage import Scene, play_scene
from .yarn_cluster import Yarn, first_attempt

pytestmark = pytest.mark.long


def tree(*queues: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"kind": "capacity", "queues": list(queues), "maximum_am_resource_percent": 100, **more}


def half(name: str, **more: Any) -> dict[str, Any]:
    """A queue of half the cluster, in which one user may have all."""
    return {"name": name, "capacity": 50, "user_limit_factor": 10, **more}


def many(name: str, count: int) -> str:
    return " ".join(f"{name}{number}" for number in range(1, count + 1))


HALVES: dict[str, Any] = {"scheduler": tree(half("a"), half("b"))}
DEFAULT: dict[str, Any] = {"name": "default", "capacity": 100}
HALF_FOR_A_USER = DEFAULT | {"minimum_user_limit_percent": 50, "user_limit_factor": 1}
PARENT = half("parent", queues=[{"name": "leaf", "capacity": 100}])
SCENES: dict[str, Scene] = {
    "the priority can be raised while an application waits": (
        {"scheduler": tree(DEFAULT)},
        "start filler | start a | start b | get filler t 7mb | ask a u 7mb | ask b v 7mb | priority b 9 | end t"
        " | call a -> got | call b -> got v ; b.priority 9",
    ),
    # With its master, each has its half in the end.
    "a queue uses what its sibling leaves, and gets its own back as room is given up": (
        HALVES,
        f"start greedy queue=a | get greedy {many('t', 9)} | ask greedy {many('u', 9)} | submit late queue=b"
        " -> root/a.used_capacity 2.0 ; late ACCEPTED SCHEDULED"
        f" | end t1 | run late | ask late {many('v', 9)} | end t2 | end t3 | end t4 | end t5"
        " -> greedy.containers 5 ; late.containers 5",
    ),
    "a queue is held at its maximum though the cluster is empty": (
        {"scheduler": tree(half("a", maximum_capacity=60), half("b"))},
        f"start a queue=a | ask a {many('t', 9)} -> a.containers 6",
    ),
    # A user at the limit gets one more.
    "the users of a queue share it": (
        {"scheduler": tree(HALF_FOR_A_USER)},
        f"start ann user=ann | start bob user=bob | get ann {many('a', 3)} | get bob {many('b', 20)}"
        f" -> ann.containers 4 ; bob.containers 6 | ask ann {many('c', 20)} | end b1 | end b2 | end b3 | end b4"
        " -> ann.containers 6 ; bob.containers 4",
    ),
    "the masters of a queue have their share, and the others wait for it": (
        {"scheduler": tree(DEFAULT | {"maximum_am_resource_percent": 30})},
        "submit a am_mb=2 | submit b am_mb=2 | submit c am_mb=2 -> a ACCEPTED LAUNCHED ; b ACCEPTED SCHEDULED"
        " ; c ACCEPTED SCHEDULED ; root/default.applications 3 ; root/default.pending_applications 2 | run a | exit a"
        " -> b ACCEPTED LAUNCHED",
    ),
    "an application that is moved counts in its new queue with all that it has": (
        HALVES,
        "start a queue=a | get a t u | move a b -> root/a.used 0 ; root/b.used 3 ; a.queue b | exit a"
        " -> a FINISHED FINISHED ; root/b.applications 0",
    ),
    **{
        f"an application for the queue {queue}, which takes none, fails and says why": (
            {"scheduler": tree(half("stopped", state="STOPPED"), PARENT)},
            f"submit a queue={queue} -> a FAILED ; a.final_status FAILED ; a.attempt_id None | says a {queue}",
        )
        for queue in ("nowhere", "stopped", "parent")
    },
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_queues(scene: Scene) -> None:
    play_scene(scene)


def test_impossible_move_is_refused_and_the_application_stays() -> None:
    stopped = half("b", state="STOPPED")
    with Yarn("n1", scheduler=tree(half("a"), stopped)) as yarn:
        app = yarn.submit(queue="a")

        for queue, why in (("b", "STOPPED|stopped"), ("nowhere", "nowhere"), ("root", "root")):
            with pytest.raises(InvalidRequestError, match=why):
                yarn.clients.move_application_across_queues(app, queue)

        assert yarn.report(app).queue == "a"
        assert yarn.clients.get_queue_info("root.a").applications == 1


def test_oldest_ended_applications_beyond_the_maximum_are_forgotten_and_leave_the_store_with_their_attempts() -> None:
    stored: list[RMStateStoreEvent] = []
    with Yarn("n1", max_completed_applications=2) as yarn:
        yarn.manager.dispatcher.register(RMStateStoreEventType, stored.append)
        running = yarn.submit_and_run()
        ended = [yarn.submit() for _ in range(4)]
        for app in ended:
            yarn.run(app).finish_and_exit()

        kept = [report.application_id for report in yarn.clients.get_applications()]
        with pytest.raises(ApplicationNotFoundError):
            yarn.report(ended[0])

        assert kept == [running.app_id, *ended[2:]]
        assert yarn.clients.get_cluster_metrics().apps_completed == 4
        assert sorted(yarn.manager.store.load_state().applications) == sorted(kept)
        removed = [(e.entity, e.state, e.notify) for e in stored if e.type is RMStateStoreEventType.REMOVE_APP]
        assert removed == [(app, (first_attempt(app),), False) for app in ended[:2]]
