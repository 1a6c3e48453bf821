"""Simulated daemons of a resource manager that falls behind."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import Resource, ResourceManager, ResourceManagerConfig
from statemachines.simulation.workload import NodeSpec, Workload

from ...kit import until
from ..resourcemanager.inner import SimulatedCluster

MOST_QUEUED = 50
NODES = tuple(NodeSpec(f"node{number}", Resource(8192, 8000)) for number in range(20))


def test_daemons_wait_while_many_events_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """They called all the same, in mails that precede events: the longer the queue, the fewer events were handled."""
    monkeypatch.setattr("statemachines.simulation.cluster.MOST_QUEUED", MOST_QUEUED)
    config = ResourceManagerConfig.model_validate({"metrics": {"enabled": False}, "nm_heartbeat_interval_ms": 1})
    manager = ResourceManager(config, node_managers=SimulatedCluster)
    manager.bring(Workload("nodes", NODES, ()))
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
        until(lambda: len(manager.clients.get_cluster_nodes({"RUNNING"})) == len(NODES), "all nodes run")
        before, after = manager.context.call(fall_behind)
        handled = manager.dispatcher.stats().handled
        until(lambda: manager.dispatcher.stats().handled > handled + 10 * len(NODES), "heartbeats go on")

    assert before == after
