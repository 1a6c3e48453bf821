"""A workload that the daemon runs in real time: faster than recorded, and again after its end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any
from unittest import mock

import pytest

from dispatcher.mailbox import ManualClock
from statemachines.resourcemanager import Resource, ResourceManager, ResourceManagerConfig, RMNodeEventType
from statemachines.simulation.workload import ApplicationSpec, ContainerSpec, NodeSpec, Workload, read_workload

from ...kit import until
from ...kit.commands import ROOT
from ..resourcemanager.inner import RMAppManagerEventType, SimulatedCluster

pytestmark = pytest.mark.long

TIMEOUT_S = 60.0
SLOT = Resource(1024, 1000)
HOUR_MS = 3_600_000


class Ends:
    """Counts applications that end, and wakes a test at the n-th. Written by the handler thread."""

    def __init__(self, manager: ResourceManager, wanted: int) -> None:
        self.apps: list[str] = []
        self.reached = threading.Event()
        self._wanted = wanted
        manager.dispatcher.register(RMAppManagerEventType, self._ended)

    def _ended(self, event: Any) -> None:
        self.apps.append(event.entity)
        if len(self.apps) == self._wanted:
            self.reached.set()


def manager_with(
    applications: Sequence[ApplicationSpec], expiry_s: int = 600, **simulation: Any
) -> tuple[ResourceManager, Workload]:
    config = ResourceManagerConfig.model_validate(
        {
            "metrics": {"enabled": False},
            "nm_heartbeat_interval_ms": 20,
            "nm_expiry_interval_s": expiry_s,
            "scheduler": {"kind": "capacity"},
            "simulation": {"am_register_delay_ms": 0, **simulation},
        }
    )
    node = NodeSpec("node1", Resource(8192, 8000))
    return ResourceManager(config), Workload("some", (node,), tuple(applications))


def test_all_times_of_an_application_are_divided_by_the_speed() -> None:
    task = ContainerSpec(SLOT, duration_ms=900, start_ms=3000)
    spec = ApplicationSpec("app", 600, SLOT, (task,), am_duration_ms=30, kill_ms=6000)

    faster = spec.faster(30)

    assert (faster.submit_ms, faster.am_duration_ms, faster.kill_ms) == (20, 1, 200)
    assert [(each.duration_ms, each.start_ms) for each in faster.containers] == [(30, 100)]
    assert (faster.name, faster.am_resource) == (spec.name, spec.am_resource)
    endless = ApplicationSpec("app", 0, SLOT, am_duration_ms=None)
    assert endless.faster(10) == endless, "it runs until it is killed"


def test_a_workload_begins_again_when_its_applications_have_ended_however_they_end() -> None:
    """At a speed at which an hour takes seconds."""
    refused = ApplicationSpec("refused", 0, SLOT, queue="unknown")
    task = ContainerSpec(SLOT, duration_ms=HOUR_MS // 20, start_ms=HOUR_MS // 40)
    app = ApplicationSpec("app", HOUR_MS // 20, SLOT, (task,))
    manager, workload = manager_with([refused, app], repeat=True, speed=1000)
    ends = Ends(manager, 6)
    manager.bring(workload)

    with manager:
        assert ends.reached.wait(TIMEOUT_S)
        names = manager.context.call(lambda: [manager.context.apps[id].submission.name for id in ends.apps[:6]])

    assert names == ["refused", "app"] * 3


def test_a_workload_without_repetition_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statemachines.simulation.workload.model._LOOK_MS", 1)
    manager, workload = manager_with([ApplicationSpec("app", 0, SLOT)])
    ends = Ends(manager, 1)
    manager.bring(workload)

    with manager:
        assert ends.reached.wait(TIMEOUT_S)
        handled = manager.dispatcher.stats().handled
        until(lambda: manager.dispatcher.stats().handled > handled + 10, "heartbeats go on")
        submitted = manager.context.call(lambda: len(manager.context.apps))

    assert submitted == 1


def test_a_node_whose_node_manager_falls_silent_is_lost() -> None:
    manager, workload = manager_with([], expiry_s=1, silent_after_s={"node1": 0.1})
    lost = threading.Event()

    def listen(event: Any) -> None:
        if event.type is RMNodeEventType.EXPIRE:
            lost.set()

    manager.dispatcher.register(RMNodeEventType, listen)
    manager.bring(workload)

    with manager:
        assert lost.wait(TIMEOUT_S)
        [node] = manager.clients.get_cluster_nodes({"LOST"}, timeout=TIMEOUT_S)

    assert node.host == "node1"


def test_a_simulated_node_comes_back_after_its_recommissioning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node manager was shut down, and nothing started it again."""
    monkeypatch.setattr("statemachines.simulation.cluster._RESTART_MS", 20)
    manager, workload = manager_with([])
    manager.bring(workload)
    started, shut_down = threading.Semaphore(0), threading.Semaphore(0)

    def listen(event: Any) -> None:
        if event.type is RMNodeEventType.STARTED:
            started.release()
        elif event.type is RMNodeEventType.DECOMMISSION:
            shut_down.release()

    manager.dispatcher.register(RMNodeEventType, listen)
    with manager:
        assert started.acquire(timeout=TIMEOUT_S)
        manager.admin.refresh_nodes(["node1"], timeout=TIMEOUT_S)
        assert shut_down.acquire(timeout=TIMEOUT_S)
        manager.admin.recommission(["node1"], timeout=TIMEOUT_S)
        assert started.acquire(timeout=TIMEOUT_S)
        [node] = manager.clients.get_cluster_nodes({"RUNNING"}, timeout=TIMEOUT_S)

    assert node.host == "node1"


def test_a_simulated_node_of_an_excluded_host_waits_for_its_recommissioning(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a host that was excluded before a restart, the workload did not start."""
    monkeypatch.setattr("statemachines.simulation.cluster._RESTART_MS", 20)
    manager, workload = manager_with([])
    started = threading.Event()
    manager.dispatcher.register(
        RMNodeEventType, lambda event: started.set() if event.type is RMNodeEventType.STARTED else None
    )
    with manager:
        manager.admin.refresh_nodes(["node1"], timeout=TIMEOUT_S)
        manager.bring(workload)
        manager.admin.recommission(["node1"], timeout=TIMEOUT_S)
        assert started.wait(TIMEOUT_S)


def test_the_live_workload_has_applications_that_one_recognizes_and_never_pauses() -> None:
    """Its applications were job_0001 to job_0400."""
    workload = read_workload(ROOT / "config" / "workloads" / "live")

    names = [app.name for app in workload.applications]
    busy = [
        (app.submit_ms, max(each.start_ms + each.duration_ms for each in app.containers))
        for app in workload.applications
    ]
    end_ms = max(end for _, end in busy)

    assert {"nightly-etl-orders", "train-resnet50", "adhoc-churn-last-week-1"} <= set(names)
    assert all(any(begin <= at < end for begin, end in busy) for at in range(2000, end_ms, 1000))
    assert min(begin for begin, _ in busy) == 0


def test_the_heartbeats_of_a_node_use_one_entry_of_the_agenda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each made one of its own: beside 10,000 nodes, collections of garbage looked at them above all."""
    manager, workload = manager_with([])
    heard, reached = 0, threading.Event()
    schedule = "statemachines.simulation.cluster.ScheduledCall"
    made = mock.Mock(wraps=resolve_name(schedule))

    def hear(event: Any) -> None:
        nonlocal heard
        heard += event.type is RMNodeEventType.STATUS_UPDATE
        if heard == 10:
            reached.set()

    monkeypatch.setattr(schedule, made)
    manager.dispatcher.register(RMNodeEventType, hear)
    manager.bring(workload)

    with manager:
        assert reached.wait(TIMEOUT_S)

    assert made.call_count == 1


def test_virtual_time_knows_neither_speed_nor_repetition() -> None:
    config = ResourceManagerConfig.model_validate(
        {"metrics": {"enabled": False}, "simulation": {"am_register_delay_ms": 0, "speed": 10, "repeat": True}}
    )
    idle, clock = threading.Event(), ManualClock()
    manager = ResourceManager(config, clock=clock, on_idle=idle.set)
    ends = Ends(manager, 1)
    manager.bring(Workload("some", (NodeSpec("node1", Resource(8192, 8000)),), (ApplicationSpec("app", 5000, SLOT),)))

    with manager:
        assert idle.wait(TIMEOUT_S)

    assert len(ends.apps) == 1
    assert clock.current_processing_time() >= 5000


# -- a resource manager that falls behind -----------------------------------------------------------------------------

MOST_QUEUED = 50


def test_daemons_wait_while_many_events_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """They called all the same, in mails that precede events: the longer the queue, the fewer events were handled."""
    monkeypatch.setattr("statemachines.simulation.cluster.MOST_QUEUED", MOST_QUEUED)
    nodes = tuple(NodeSpec(f"node{number}", Resource(8192, 8000)) for number in range(20))
    config = ResourceManagerConfig.model_validate({"metrics": {"enabled": False}, "nm_heartbeat_interval_ms": 1})
    manager = ResourceManager(config, node_managers=SimulatedCluster)
    manager.bring(Workload("nodes", nodes, ()))
    agenda, queue_size = SimulatedCluster.of(manager).agenda, manager.dispatcher.queue_size

    def is_full() -> bool:
        agenda.expire_due()
        return queue_size() >= MOST_QUEUED

    def fall_behind() -> tuple[int, int]:
        """On the handler thread, which handles no event meanwhile; returns the queue's lengths before and after."""
        until(is_full, "a long queue")
        before = queue_size()
        until(lambda: int(agenda.next_deadline_ms() or 0) < manager.context.now_ms(), "more is due")
        agenda.expire_due()
        return before, queue_size()

    with manager:
        until(lambda: len(manager.clients.get_cluster_nodes({"RUNNING"})) == len(nodes), "all nodes run")
        before, after = manager.context.call(fall_behind)
        handled = manager.dispatcher.stats().handled
        until(lambda: manager.dispatcher.stats().handled > handled + 10 * len(nodes), "heartbeats go on")

    assert before == after
