"""A whole resource manager in virtual time, where more goes wrong than a workload can say."""

from __future__ import annotations

import threading
import urllib.request
from typing import Any

import pytest

from dispatcher.testing import ManualClock
from statemachines.resourcemanager import (
    ApplicationSubmission,
    Resource,
    ResourceManager,
    RMContainer,
    RMContainerEventType,
)
from statemachines.simulation.workload import Workload

from ...kit import no_thread_is_left, until
from ..simulation.replays import TIMEOUT_S, app, config, node, task, workload
from .inner import NodeManagers, RMAppManagerEventType, SimulatedCluster


def acquisitions(manager: ResourceManager) -> list[int]:
    """The times, in ms, at which masters are to fetch a container from now on."""
    found: list[int] = []

    def note(event: Any) -> None:
        if event.type is RMContainerEventType.ACQUIRED:
            found.append(manager.context.now_ms())

    manager.dispatcher.register(RMContainerEventType, note)
    return found


def ran(work: Workload, clock: ManualClock, **more: Any) -> tuple[ResourceManager, list[int]]:
    """A resource manager that had this workload until nothing was left to happen, and its acquisitions."""
    is_idle, settings = threading.Event(), config(max_attempts=3)
    manager = ResourceManager(settings, clock=clock, on_idle=is_idle.set, **{"node_managers": SimulatedCluster, **more})
    manager.bring(work)
    acquired = acquisitions(manager)
    with manager:
        assert is_idle.wait(TIMEOUT_S)
    invalid = sum(stats.invalid for stats in manager.recorder.machines.values())
    assert (manager.dispatcher.failure_cause, manager.dispatcher.stats().failed, invalid) == (None, 0, 0)
    return manager, acquired


def test_application_whose_master_cannot_be_launched_fails_and_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(SimulatedCluster):
        def start_container(self, container: RMContainer) -> None:
            raise OSError("the disk is full")

    manager, _ = ran(workload(node(), app()), ManualClock(), node_managers=Refusing)

    (failed,) = manager.context.apps.values()
    assert (failed.state.name, len(failed.attempts)) == ("FAILED", 3)
    assert failed.diagnostics[-1] == "launch failed: the disk is full"
    assert manager.context.containers == {}
    assert [scheduled.free_memory_mb for scheduled in manager.context.scheduler.nodes()] == [10]
    assert caplog.text.count("launch failed") == 3


@pytest.mark.parametrize("start_ms", [0, 1_700_000_000_000])
def test_time_of_a_workload_begins_with_the_run(start_ms: int) -> None:
    """In real time, all containers of a master were asked for at once, whatever their start."""
    clock = ManualClock(start_ms)

    manager, acquired = ran(workload(node(), app(submit_ms=50, tasks=(task(10, start_ms=4000), task(10)))), clock)

    assert [time_ms < start_ms + 4000 for time_ms in acquired] == [True, True, False]
    assert (acquired[-1], clock.current_processing_time()) == (start_ms + 4000, start_ms + 4010)
    assert [each.state.name for each in manager.context.apps.values()] == ["FINISHED"]


def test_resource_manager_runs_in_real_time_and_leaves_no_thread() -> None:
    settings = config(
        simulation={"am_register_delay_ms": 0}, metrics={"enabled": True, "port": 0}, nm_heartbeat_interval_ms=20
    )
    manager, completed = ResourceManager(settings), threading.Event()
    manager.dispatcher.register(RMAppManagerEventType, lambda event: completed.set())
    manager.bring(workload(node(), app(tasks=(task(1),))))

    with no_thread_is_left("dispatcher-monitor"), manager:  # that one serves all dispatchers of the process
        assert completed.wait(TIMEOUT_S)
        assert manager.metrics_server is not None
        with urllib.request.urlopen(manager.metrics_server.url, timeout=TIMEOUT_S) as response:
            scraped = response.read().decode()

    assert 'state="FINISHED"} 1.0' in scraped
    assert [app.state.name for app in manager.context.apps.values()] == ["FINISHED"]


def test_without_node_managers_allocated_containers_expire_unstarted() -> None:
    """Each attempt fails by its container's end, which is not its own fault: another one follows."""
    manager = ResourceManager(config(container_allocation_expiry_s=60), clock=ManualClock())
    acquired = acquisitions(manager)

    with manager:
        manager.context.call(lambda: manager.tracker.register_node(node()))
        app_id = manager.clients.submit_application(ApplicationSubmission("job", Resource(1, 1)), TIMEOUT_S)
        until(lambda: len(acquired) > 2, "the third attempt's container")
        report = manager.clients.get_application_report(app_id)

    assert report.state == "ACCEPTED"
    assert acquired[:3] == [0, 60_000, 120_000]
    assert manager.dispatcher.stats().failed == 0


def test_workload_cannot_join_nodes_that_are_not_simulated() -> None:
    class Others(NodeManagers):
        def start_container(self, container: RMContainer) -> None: ...

        def stop_container(self, container_id: str) -> None: ...

    manager = ResourceManager(config(), node_managers=lambda _: Others(), clock=ManualClock())

    with pytest.raises(TypeError, match="SimulatedCluster"):
        SimulatedCluster.of(manager)
