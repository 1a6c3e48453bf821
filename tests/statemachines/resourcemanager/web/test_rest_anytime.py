"""Answers while a handler is blocked, and while everything changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("uvicorn", reason="the extra web is not installed")

from statemachines.resourcemanager import ApplicationSubmission, Replay, Resource
from statemachines.resourcemanager.events import ContainerRequest
from statemachines.simulation.workload import NodeSpec

from ...simulation.replays import TIMEOUT_S, app, config, node, task, workload
from ..daemon.yarn_cluster import Master, Yarn
from .served import Served
from .test_rest_answers import check_sums

pytestmark = pytest.mark.long

ANSWER_S = 5.0
"""Far more than an answer takes, and far less than the handler is blocked for."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Yarn, Served, Master]]:
    with Yarn(NodeSpec("n1", Resource(1000, 4000))) as yarn:
        master = yarn.submit_and_run("app", am_mb=100)
        master.get_running(ContainerRequest(Resource(1, 1), tag=1))
        with Served(yarn.manager) as served:
            served.publish()
            yield yarn, served, master


def test_every_get_is_answered_while_the_handler_is_blocked(cluster: tuple[Yarn, Served, Master]) -> None:
    yarn, served, master = cluster
    assert master.container is not None
    one, attempt = f"/apps/{master.app_id}", f"/apps/{master.app_id}/appattempts/{master.attempt}"
    paths = ["", "/info", "/metrics", "/scheduler", "/apps", "/appstatistics", "/nodes", "/nodes/n1:45454"]
    paths += ["/get-node-labels", "/get-node-to-labels", "/label-mappings", one, f"{one}/state", f"{one}/queue"]
    paths += [f"{one}/priority", f"{one}/timeouts", f"{one}/timeouts/LIFETIME", f"{one}/appattempts", attempt]
    paths += [f"{attempt}/containers", f"{attempt}/containers/{master.container.entity}"]
    is_blocked, goes_on = threading.Event(), threading.Event()

    def block() -> None:
        is_blocked.set()
        goes_on.wait(TIMEOUT_S)

    blocked = yarn.manager.dispatcher.mailbox_executor.submit(block, "a handler that hangs")
    try:
        assert is_blocked.wait(TIMEOUT_S)
        begun_s = time.monotonic()
        answers = {path: served.ask(path, timeout=ANSWER_S) for path in paths}
        took_ms = 1000 * (time.monotonic() - begun_s)
        is_still_blocked = not blocked.done()
    finally:
        goes_on.set()
    blocked.result(TIMEOUT_S)

    assert is_still_blocked
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(paths, 200)
    first, last = (int(answers[path].headers["x-state-age-ms"]) for path in (paths[0], paths[-1]))
    assert 0 <= last - first <= took_ms + 1


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
