"""Queues and the applications in them, from outside: order, elasticity, limits, moves, and those kept after the end."""

from __future__ import annotations

from typing import Any

import pytest

from statemachines.resourcemanager import ApplicationNotFoundError
from statemachines.resourcemanager.records.errors import InvalidRequestError

from .yarn_cluster import Master, Yarn, ask

pytestmark = pytest.mark.long


def tree(*queues: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"kind": "capacity", "queues": list(queues), "maximum_am_resource_percent": 100, **more}


def half(name: str, **more: Any) -> dict[str, Any]:
    """A queue of half the cluster, in which one user may have all."""
    return {"name": name, "capacity": 50, "user_limit_factor": 10, **more}


def tasks_of(yarn: Yarn, *masters: Master) -> list[int]:
    """How many containers each has now, besides its own."""
    return [yarn.report(master.app_id).containers - 1 for master in masters]


@pytest.mark.parametrize("kind", ["fifo", "capacity"])
def test_more_urgent_application_is_served_first_and_the_older_one_among_equals(kind: str) -> None:
    with Yarn("n1", scheduler={"kind": kind, "maximum_am_resource_percent": 100}) as yarn:
        filler = yarn.submit_and_run()
        older, younger, urgent = yarn.submit_and_run(), yarn.submit_and_run(), yarn.submit_and_run(priority=5)
        (task,) = filler.get_running(ask(6))
        for master in (younger, older, urgent):
            master.get(ask(6))
        order = []

        for _ in range(3):
            yarn.end(task)
            got = {name: master.get() for name, master in (("o", older), ("y", younger), ("u", urgent))}
            ((name, (task,)),) = [(name, tasks) for name, tasks in got.items() if tasks]
            yarn.launch(task)
            order.append(name)

        assert order == ["u", "o", "y"]


def test_priority_can_be_raised_while_an_application_waits() -> None:
    with Yarn("n1", scheduler=tree({"name": "default", "capacity": 100})) as yarn:
        filler, first, second = yarn.submit_and_run(), yarn.submit_and_run(), yarn.submit_and_run()
        (task,) = filler.get_running(ask(7))
        first.get(ask(7))
        second.get(ask(7))

        yarn.do(lambda: yarn.clients.update_application_priority(second.app_id, 9))
        yarn.end(task)

        assert tasks_of(yarn, first, second) == [0, 1]
        assert yarn.report(second.app_id).priority == 9


def test_queue_uses_what_its_sibling_leaves_and_gets_its_own_back_as_room_is_given_up() -> None:
    with Yarn("n1", scheduler=tree(half("a"), half("b"))) as yarn:
        greedy = yarn.submit_and_run(queue="a")
        tasks = greedy.get_running(*[ask()] * 9)
        greedy.get(*[ask()] * 9)
        over = yarn.clients.get_queue_info("root.a").used_capacity
        late = yarn.submit(queue="b")
        waiting = yarn.states(late)

        yarn.end(tasks[0])
        master = yarn.run(late)
        master.get(*[ask()] * 9)
        for task in tasks[1:5]:
            yarn.end(task)

        assert over == pytest.approx(2.0)
        assert waiting == ("ACCEPTED", ["SCHEDULED"])
        assert tasks_of(yarn, greedy, master) == [4, 4]  # with its master, each has its half


def test_queue_is_held_at_its_maximum_though_the_cluster_is_empty() -> None:
    with Yarn("n1", scheduler=tree(half("a", maximum_capacity=60), half("b"))) as yarn:
        master = yarn.submit_and_run(queue="a")

        master.get(*[ask()] * 9)

        assert tasks_of(yarn, master) == [5]


def test_users_of_a_queue_share_it() -> None:
    queue = {"name": "default", "capacity": 100, "minimum_user_limit_percent": 50, "user_limit_factor": 1}
    with Yarn("n1", scheduler=tree(queue)) as yarn:
        ann, bob = yarn.submit_and_run(user="ann"), yarn.submit_and_run(user="bob")
        ann.get_running(*[ask()] * 3)
        tasks = bob.get_running(*[ask()] * 20)
        alone = tasks_of(yarn, ann, bob)
        ann.get(*[ask()] * 20)

        for task in tasks[:4]:
            yarn.end(task)

        assert alone == [3, 5]
        assert tasks_of(yarn, ann, bob) == [5, 3]  # a user at the limit gets one more


def test_masters_of_a_queue_have_their_share_and_the_others_wait_for_it() -> None:
    queue = {"name": "default", "capacity": 100, "maximum_am_resource_percent": 30}
    with Yarn("n1", scheduler=tree(queue)) as yarn:
        apps = [yarn.submit(am_mb=2) for _ in range(3)]
        info = yarn.clients.get_queue_info("root.default")
        states = [yarn.states(app)[1] for app in apps]

        yarn.run(apps[0]).finish_and_exit()

        assert (info.applications, info.pending_applications) == (3, 2)
        assert states == [["LAUNCHED"], ["SCHEDULED"], ["SCHEDULED"]]
        assert yarn.states(apps[1]) == ("ACCEPTED", ["LAUNCHED"])


def test_moved_application_counts_in_its_new_queue_with_all_that_it_has() -> None:
    with Yarn("n1", scheduler=tree(half("a"), half("b"))) as yarn:
        master = yarn.submit_and_run(queue="a")
        master.get_running(ask(), ask())

        yarn.do(lambda: yarn.clients.move_application_across_queues(master.app_id, "b"))
        used = {path: yarn.clients.get_queue_info(path).used.memory_mb for path in ("root.a", "root.b")}
        queue = yarn.report(master.app_id).queue
        master.finish_and_exit()

        assert used == {"root.a": 0, "root.b": 3}
        assert queue == "b"
        assert yarn.report(master.app_id).state == "FINISHED"
        assert yarn.clients.get_queue_info("root.b").applications == 0


def test_impossible_move_is_refused_and_the_application_stays() -> None:
    stopped = half("b", state="STOPPED")
    with Yarn("n1", scheduler=tree(half("a"), stopped)) as yarn:
        app = yarn.submit(queue="a")

        for queue, why in (("b", "STOPPED|stopped"), ("nowhere", "nowhere"), ("root", "root")):
            with pytest.raises(InvalidRequestError, match=why):
                yarn.clients.move_application_across_queues(app, queue)

        assert yarn.report(app).queue == "a"
        assert yarn.clients.get_queue_info("root.a").applications == 1


@pytest.mark.parametrize("queue", ["nowhere", "stopped", "parent"])
def test_application_that_no_queue_takes_fails_and_says_why(queue: str) -> None:
    parent = half("parent", queues=[{"name": "leaf", "capacity": 100}])
    with Yarn("n1", scheduler=tree(half("stopped", state="STOPPED"), parent)) as yarn:
        app = yarn.submit(queue=queue)

        report = yarn.report(app)
        assert (report.state, report.final_status, report.attempt_id) == ("FAILED", "FAILED", None)
        assert queue in report.diagnostics


def test_oldest_ended_applications_beyond_the_maximum_are_forgotten() -> None:
    with Yarn("n1", max_completed_applications=2) as yarn:
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
