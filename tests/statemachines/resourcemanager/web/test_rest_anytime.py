"""Answers before the start and after the stop, and while everything changes."""

from __future__ import annotations

import threading

import pytest

from statemachines.resourcemanager import ApplicationSubmission, Replay, Resource

from ...simulation.replays import TIMEOUT_S, app, config, node, task, workload
from ..daemon.yarn_cluster import Yarn
from .served import Served
from .test_rest_answers import check_sums

pytestmark = pytest.mark.long


@pytest.mark.long
@pytest.mark.parametrize("scheduler", ["fifo", "capacity"])
def test_the_sums_of_the_metrics_hold_on_every_scrape_during_load(scheduler: str) -> None:
    queues = {"queues": [{"name": "default", "capacity": 100}]} if scheduler == "capacity" else {}
    tasks = tuple(task(50 * number, memory_mb=3, start_ms=10 * number) for number in range(5))
    work = workload(
        *[node(f"n{number}", memory_mb=10) for number in range(20)],
        *[app(f"app-{number}", 20 * number, tasks=tasks) for number in range(300)],
    )
    replay = Replay(work, config(scheduler={"kind": scheduler, **queues}))
    with Served(replay.manager) as served:
        replay.start()
        try:
            scrapes = 0
            while not replay.wait(0):
                answer = served.ask("/metrics")
                if answer.status_code == 200:
                    check_sums(answer.json()["clusterMetrics"])
                    scrapes += 1
                else:
                    assert answer.status_code == 503
            metrics = served.get("/metrics")["clusterMetrics"]
        finally:
            replay.stop()
    assert (scrapes > 3, metrics["appsCompleted"]) == (True, 300)


def test_before_the_start_and_after_the_stop_only_info_answers() -> None:
    yarn = Yarn("n1")
    with Served(yarn.manager) as served:
        served.publish()
        yarn.manager.stop()

        answers = {path: served.ask(path).status_code for path in ("/info", "/apps", "/metrics", "/nodes/n1:45454")}

        assert answers == {"/info": 200, "/apps": 503, "/metrics": 503, "/nodes/n1:45454": 503}
        assert served.ask("/info").json()["clusterInfo"]["state"] == "STOPPED"
        assert served.ask("/apps").headers["retry-after"] == "1"


def test_applications_that_come_and_go_while_the_list_is_read() -> None:
    with Yarn("n1", max_completed_applications=5) as yarn, Served(yarn.manager, refresh_ms=1) as served:
        ends = threading.Event()
        failures: list[BaseException] = []

        def read() -> None:
            try:
                while not ends.is_set():
                    answer = served.ask("/apps")
                    ids = [each["id"] for each in answer.json()["apps"]["app"]]
                    assert ids == sorted(set(ids))
            except BaseException as error:
                failures.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(100):
            yarn.kill(
                yarn.do(
                    lambda number=number: yarn.clients.submit_application(
                        ApplicationSubmission(f"app-{number}", Resource(99_999, 1))
                    )
                )
            )
        ends.set()
        reader.join(TIMEOUT_S)
        shown = [each["name"] for each in served.get("/apps")["apps"]["app"]]

    assert (failures, shown) == ([], [f"app-{number}" for number in range(95, 100)])
