"""A whole resource manager in virtual time, where more goes wrong than a workload can say."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher.testing import ManualClock
from statemachines.resourcemanager import (
    ApplicationSubmission,
    Resource,
    ResourceManager,
    RMContainer,
    RMContainerEventType,
    RMNodeEventType,
)
from statemachines.simulation.workload import Workload

from ...kit import no_thread_is_left, until
from ..simulation.replays import TIMEOUT_S, app, config, node, task, workload
from .inner import NodeManagers, RMAppManagerEventType, RMNodeEvent, SimulatedCluster, node_id

N1, N2 = node_id("n1"), node_id("n2")


class Run:
    """A resource manager with a workload, and what else is to happen."""

    def __init__(
        self, work: Workload, *, start_ms: int = 0, nodes: type[SimulatedCluster] = SimulatedCluster, **settings: Any
    ) -> None:
        self.clock = ManualClock(start_ms)
        self.is_idle = threading.Event()
        self.manager = ResourceManager(
            config(**settings), node_managers=nodes, clock=self.clock, on_idle=self.is_idle.set
        )
        self.context = self.manager.context
        self.manager.bring(work)

    def at(self, time_ms: int, action: Callable[[], Any]) -> None:
        """Do something at that time, on the handler thread; after the workload's own timers of that time so far."""
        self.manager.dispatcher.mailbox_executor.execute(
            lambda: self.context.timers.register_timer(time_ms, lambda _: action()), "a timer of the test"
        )

    def lose(self, node: str) -> None:
        self.context.post(RMNodeEvent(RMNodeEventType.EXPIRE, node))

    def go(self) -> None:
        """Run until nothing is left to happen; nothing must have gone wrong on the way."""
        with self.manager:
            assert self.is_idle.wait(TIMEOUT_S)
        dispatcher = self.manager.dispatcher
        invalid = {machine: stats.invalid for machine, stats in self.manager.recorder.machines.items()}
        assert (dispatcher.failure_cause, dispatcher.stats().failed, sum(invalid.values())) == (None, 0, 0)

    def apps(self) -> list[tuple[str, int]]:
        """State and number of attempts of each."""
        return [(app.state.name, len(app.attempts)) for app in self.context.apps.values()]


def test_application_whose_master_cannot_be_launched_fails_and_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(SimulatedCluster):
        def start_container(self, container: RMContainer) -> None:
            raise OSError("the disk is full")

    run = Run(workload(node(), app()), nodes=Refusing, max_attempts=3)

    run.go()

    (failed,) = run.context.apps.values()
    assert run.apps() == [("FAILED", 3)]
    assert failed.diagnostics[-1] == "launch failed: the disk is full"
    assert run.context.containers == {}
    assert [scheduled.free_memory_mb for scheduled in run.context.scheduler.nodes()] == [10]
    assert caplog.text.count("launch failed") == 3


def test_lost_node_stops_what_ran_on_it() -> None:
    run = Run(workload(node(), app(am_duration_ms=None, kill_ms=3000)))
    run.at(2000, lambda: run.lose(N1))

    run.go()

    assert run.apps() == [("KILLED", 2)]
    assert run.clock.current_processing_time() == 3000


@pytest.mark.parametrize("start_ms", [0, 1_700_000_000_000])
def test_time_of_a_workload_begins_with_the_run(start_ms: int) -> None:
    """In real time, all containers of a master were asked for at once, whatever their start."""
    run = Run(workload(node(), app(submit_ms=50, tasks=(task(10, start_ms=4000), task(10)))), start_ms=start_ms)
    counts: list[int] = []
    for time_ms in (3999, 4001):
        run.at(start_ms + time_ms, lambda: counts.append(run.manager.recorder.machines["RMContainer"].created))

    run.go()

    assert counts == [2, 3]
    assert run.clock.current_processing_time() == start_ms + 4010
    assert run.apps() == [("FINISHED", 1)]


def test_application_that_no_workload_describes_has_a_master_that_ends_at_once() -> None:
    run = Run(workload(node()))
    submission = ApplicationSubmission("wordcount", Resource(1, 1))
    run.at(100, lambda: run.manager.clients.submit_application(submission))

    run.go()

    assert run.apps() == [("FINISHED", 1)]
    assert run.clock.current_processing_time() == 1100


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
    acquired: list[tuple[str, int]] = []

    def note(event: Any) -> None:
        if event.type is RMContainerEventType.ACQUIRED:
            acquired.append((event.entity, manager.context.now_ms()))

    manager.dispatcher.register(RMContainerEventType, note)

    with manager:
        manager.context.call(lambda: manager.tracker.register_node(node()))
        app_id = manager.clients.submit_application(ApplicationSubmission("job", Resource(1, 1)), TIMEOUT_S)
        until(lambda: len(acquired) > 2, "the third attempt's container")
        report = manager.clients.get_application_report(app_id)

    assert report.state == "ACCEPTED"
    assert [time_ms for _, time_ms in acquired[:3]] == [0, 60_000, 120_000]
    assert manager.dispatcher.stats().failed == 0


def test_workload_cannot_join_nodes_that_are_not_simulated() -> None:
    class Others(NodeManagers):
        def start_container(self, container: RMContainer) -> None: ...

        def stop_container(self, container_id: str) -> None: ...

    manager = ResourceManager(config(), node_managers=lambda _: Others(), clock=ManualClock())

    with pytest.raises(TypeError, match="SimulatedCluster"):
        SimulatedCluster.of(manager)
