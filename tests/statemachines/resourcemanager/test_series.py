"""The series of a cluster, its queues and its nodes: what they say, their labels, and who follows for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from statemachines.resourcemanager import ContainerRequest, Resource, ResourceManager, ResourceManagerConfig
from statemachines.simulation.workload import NodeSpec

from ...kit import until
from ...kit.holding import held
from ..simulation.replays import TIMEOUT_S
from .daemon.yarn_cluster import Yarn
from .inner import Publication, ReadModel, series

ClusterSeries = series.ClusterSeries

pytestmark = pytest.mark.long

QUEUES = {
    "kind": "capacity",
    "queues": [
        {"name": "a", "capacity": 60, "queues": [{"name": "c", "maximum_am_resource_percent": 100}]},
        {"name": "b", "capacity": 40, "maximum_am_resource_percent": 100},
    ],
}
NODE = NodeSpec("n1", Resource(1000, 10_000, gpus=4, others=(("fpga", 2), ("gpus", 7))))
MB = 2**20


def scraped(series: ClusterSeries) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by name, without its beginning, and by the labels after the dispatcher's."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in series.collect("rm"):
        for sample in family.samples:
            dispatcher, *labels = sample.labels.values()
            assert dispatcher == "rm"
            values = found.setdefault(sample.name.removeprefix("resourcemanager_"), {})
            assert tuple(labels) not in values, "Prometheus would reject the page"
            values[tuple(labels)] = sample.value
    return found


def published(manager: ResourceManager) -> dict[str, dict[tuple[str, ...], float]]:
    """The series with all that was done until now."""

    async def scrape() -> dict[str, dict[tuple[str, ...], float]]:
        model = ReadModel(manager)
        model.follow()
        await model.published(TIMEOUT_S)
        try:
            return scraped(ClusterSeries(manager, model))
        finally:
            await model.close()

    return asyncio.run(scrape())


def test_a_queue_shows_what_it_uses_what_it_waits_for_and_how_long() -> None:
    with Yarn(NODE, scheduler=QUEUES) as yarn:
        yarn.submit_and_run("first", am_mb=100, queue="c").get_running(
            ContainerRequest(Resource(200, 1000, gpus=2), host="n1", tag=1)
        )
        yarn.submit("waits", am_mb=800, queue="b")
        yarn.advance(60_000)
        yarn.submit("waits, too", am_mb=800, queue="root.b")
        yarn.advance(30_000)

        found = published(yarn.manager)

    queue = "root.a.c"
    assert found["queue_used"][queue, "memory_bytes"] == 300 * MB
    assert (found["queue_used"][queue, "gpus"], found["queue_used"][queue, "fpga"]) == (2, 0)
    assert found["queue_guaranteed"]["root.b", "memory_bytes"] == 400 * MB
    assert found["queue_pending"]["root.b", "memory_bytes"] == 2 * 800 * MB
    assert found["queue_containers"][queue, "allocated"] == 2
    applications = found["queue_applications"]
    assert [applications[each, "running"] for each in ("root", "root.a", queue, "root.b")] == [1, 1, 1, 0]
    assert [applications[each, "waiting"] for each in ("root", "root.a", queue, "root.b")] == [2, 0, 0, 2]
    assert found["queue_oldest_wait_seconds"] == {(queue,): 0, ("root.b",): 90}


def test_a_node_shows_what_it_has_and_one_that_has_left_shows_nothing() -> None:
    with Yarn(NODE, "n2", scheduler=QUEUES) as yarn:
        yarn.submit_and_run("first", am_mb=100, queue="c")
        before = published(yarn.manager)
        yarn.do(lambda: yarn.admin.refresh_nodes(["n2"]))
        yarn.advance(5_000)

        found = published(yarn.manager)

    assert before["node_state"] == {("n1:45454", "RUNNING"): 1, ("n2:45454", "RUNNING"): 1}
    assert found["node_state"] == {("n1:45454", "RUNNING"): 1}
    assert found["node_capacity"]["n1:45454", "gpus"] == 4, "a type of that name does not replace it"
    assert found["node_used"]["n1:45454", "memory_bytes"] == 100 * MB
    assert found["node_containers"] == {("n1:45454",): 1}
    assert found["node_heartbeat_age_seconds"] == {("n1:45454",): 5}
    assert found["nodes"]["RUNNING",] == found["nodes"]["DECOMMISSIONED",] == 1
    assert found["capacity"]["memory_bytes",] == 1000 * MB


def test_of_more_nodes_than_may_have_series_those_that_do_not_run_come_first() -> None:
    with Yarn("n1", "n2", "n3", expiry_ms=50_000, metrics={"enabled": False, "nodes": 2}) as yarn:
        yarn.advance(30_000)
        for host in ("n1", "n2"):
            yarn.heartbeat(host)
        yarn.advance(30_000)

        found = published(yarn.manager)

    assert list(found["node_state"]) == [("n3:45454", "LOST"), ("n1:45454", "RUNNING")]
    assert found["nodes_without_series"] == {(): 1}
    assert (found["nodes"]["RUNNING",], found["nodes"]["LOST",]) == (2, 1)


def test_a_resource_that_no_node_has_is_no_label() -> None:
    with Yarn("n1") as yarn:
        yarn.submit_and_run("first").allocate(ContainerRequest(Resource(1, 1, others=(("unheard-of", 1),)), tag=1))

        found = published(yarn.manager)

    assert {resource for _, resource in found["queue_pending"]} == {"memory_bytes", "vcores"}


# -- who follows -------------------------------------------------------------------------------------------------------


@contextmanager
def real_time() -> Iterator[tuple[ResourceManager, ClusterSeries]]:
    config = {"name": "series-rm", "metrics": {"enabled": False}}
    manager = ResourceManager(ResourceManagerConfig.model_validate(config))
    with ClusterSeries(manager) as series, manager:
        yield manager, series


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "series-rm-series"]


def test_series_are_followed_from_the_start_until_the_stop() -> None:
    with real_time() as (manager, series):
        assert threads() == ["series-rm-series"]

        manager.context.call(lambda: manager.tracker.register_node(NodeSpec("n1", Resource(10, 10))))
        until(lambda: scraped(series).get("node_state") == {("n1:45454", "RUNNING"): 1})

    until(lambda: threads() == [], "its thread has ended")


def test_the_first_scrape_has_series_though_a_handler_hangs() -> None:
    """Nothing was published before the first scrape, so it and those after it had none."""
    with real_time() as (manager, series):
        until(lambda: series.model.number)
        with held(manager.context.execute):
            assert scraped(series)["state_age_seconds"]


def test_a_scrape_does_not_wait_for_a_handler_that_hangs() -> None:
    with real_time() as (manager, series):
        until(lambda: series.model.number)
        with held(manager.context.execute):
            until(lambda: scraped(series)["state_age_seconds"][()] > 0.05)
        until(lambda: scraped(series)["state_age_seconds"][()] < 0.05)


def test_following_goes_on_after_a_publication_that_could_not_be_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread's task ended without a word, and there were no series until the daemon was restarted."""
    apply, failed = ReadModel.apply, threading.Event()

    def fail_once(model: ReadModel, publication: Publication) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("not this one")
        apply(model, publication)

    monkeypatch.setattr(ReadModel, "apply", fail_once)
    with real_time() as (_, series):
        assert failed.wait(TIMEOUT_S)

        until(lambda: scraped(series).get("state_age_seconds"))
