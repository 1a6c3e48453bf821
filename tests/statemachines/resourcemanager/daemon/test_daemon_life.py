"""Starts and stops of a resource manager in real time: under load, twice, half way, and while a client waits."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher import ConfigError, ServiceState
from dispatcher.mailbox import RejectedExecutionError
from statemachines.resourcemanager import ApplicationSubmission, Resource, ResourceManager, RMContainer, RMNodeEventType
from statemachines.simulation.workload import Workload

from ....kit import in_threads, until
from ...simulation.replays import TIMEOUT_S, app, config, node, task, workload
from ..inner import (
    FINAL_STATES,
    MemoryRMStateStore,
    RMAppManagerEventType,
    RMFatalEvent,
    RMFatalEventType,
    RMNodeEvent,
    SimulatedCluster,
)
from ..stores import applications_in

pytestmark = pytest.mark.long

JOB = ApplicationSubmission("job", Resource(1, 1))
LOAD = workload(
    node("n1", 1000, 1000),
    node("n2", 1000, 1000),
    *[app(f"app-{n}", submit_ms=2 * n, tasks=(task(5), task(20, memory_mb=3), task(1))) for n in range(200)],
)


class SilentStore(MemoryRMStateStore):
    """Answers nothing."""

    def _answer(self, event: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def leaves_no_thread() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    until(lambda: {thread.name for thread in set(threading.enumerate()) - before} <= {"dispatcher-monitor"})


def daemon(
    store: Path | None = None, nodes: type[SimulatedCluster] = SimulatedCluster, **settings: Any
) -> ResourceManager:
    """With simulated nodes that report often; with a store in a file, if one is given."""
    if store is not None:
        settings["state_store"] = {"kind": "sqlite", "path": store}
    return ResourceManager(
        config(**{"nm_heartbeat_interval_ms": 5, "simulation": {"am_register_delay_ms": 0}, **settings}),
        node_managers=nodes,
    )


def states(manager: ResourceManager) -> list[Any]:
    states: list[Any] = manager.context.call(lambda: [app.state for app in manager.context.apps.values()])
    return states


def check_nothing_went_wrong(manager: ResourceManager) -> None:
    assert manager.dispatcher.failure_cause is None
    assert (manager.dispatcher.stats().failed, manager.dispatcher.stats().discarded) == (0, 0)
    assert manager.dispatcher.queue_size() == 0


def test_waiting_client_fails_at_once_when_the_resource_manager_cannot_go_on() -> None:
    """It waited until the resource manager was stopped."""
    manager = ResourceManager(config(), store=SilentStore())
    with manager:
        answer = manager.clients.submit_application_later(JOB)
        until(lambda: manager.clients.calls._waiting)
        manager.context.post(RMFatalEvent(RMFatalEventType.STATE_STORE_OP_FAILED, "store", OSError("gone")))

        assert isinstance(answer.exception(TIMEOUT_S), RejectedExecutionError)
        assert manager.state is ServiceState.STARTED


def test_stop_fails_waiting_clients() -> None:
    manager = ResourceManager(config(), store=SilentStore())
    with manager:
        answers = [manager.clients.submit_application_later(JOB) for _ in range(3)]
        until(lambda: manager.clients.calls._waiting)

    assert [type(answer.exception(TIMEOUT_S)) for answer in answers] == [RejectedExecutionError] * 3
    with pytest.raises(RejectedExecutionError):
        manager.clients.submit_application(JOB)
    with pytest.raises(RejectedExecutionError):
        manager.clients.get_applications()


@pytest.mark.parametrize("policy", ["block", "reject", "drop_oldest"])
def test_every_submission_is_acknowledged_however_full_the_queue_is(tmp_path: Path, policy: str) -> None:
    """A full queue refused the store's answer: the application was stored, and never learned of it."""
    queue = {"queue_capacity": 1, "queue_full_policy": policy}
    manager = daemon(tmp_path / "state.db", dispatcher=queue)
    ids: list[str] = []

    def submit() -> None:
        for _ in range(15):
            ids.append(manager.clients.submit_application(JOB, TIMEOUT_S))

    with manager:
        manager.bring(workload(node("n1", 100, 100)))
        in_threads(submit, submit, submit)
        until(lambda: FINAL_STATES.issuperset(states(manager)), "the end of all applications")

    check_nothing_went_wrong(manager)
    assert sorted(applications_in(tmp_path / "state.db")) == sorted(ids)


@pytest.mark.parametrize("settings", [{}, {"dispatcher": {"queue_capacity": 5}}])
def test_stop_under_load_drains_what_is_under_way_and_the_next_one_takes_it_up(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    begun = threading.Event()
    manager = daemon(tmp_path / "state.db", **settings)
    manager.dispatcher.register(RMAppManagerEventType, lambda event: begun.set())
    with manager:
        manager.bring(LOAD)
        assert begun.wait(TIMEOUT_S)
    check_nothing_went_wrong(manager)
    stored = applications_in(tmp_path / "state.db")
    assert stored

    following = daemon(tmp_path / "state.db", am_expiry_interval_s=0.1, **settings)
    with following:
        following.bring(Workload("nodes", LOAD.nodes, ()))
        until(lambda: FINAL_STATES.issuperset(states(following)), "the end of all applications")
        assert sorted(following.context.apps) == sorted(stored)
    check_nothing_went_wrong(following)


def test_stop_by_a_handler_drains_and_frees_the_store(tmp_path: Path) -> None:
    """The store stopped before the dispatcher had drained, and what came then could not be stored."""
    manager = daemon(tmp_path / "state.db")
    manager.dispatcher.register(RMAppManagerEventType, lambda event: manager.stop())
    manager.init()
    manager.start()
    manager.bring(LOAD)

    assert manager.wait_for_service_to_stop(TIMEOUT_S)
    check_nothing_went_wrong(manager)
    assert is_free(tmp_path / "state.db")


def is_free(path: Path) -> bool:
    with daemon(path):
        return True


def test_start_that_fails_half_way_leaves_nothing_and_frees_the_store(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        manager = daemon(tmp_path / "state.db", metrics={"enabled": True, "port": taken.getsockname()[1]})

        with pytest.raises(ConfigError, match="cannot listen there"), manager:
            pass

    assert manager.state is ServiceState.STOPPED
    assert is_free(tmp_path / "state.db")


def test_resource_manager_that_was_never_started_can_be_stopped(tmp_path: Path) -> None:
    manager = daemon(tmp_path / "state.db")
    manager.init()
    manager.stop()

    assert is_free(tmp_path / "state.db")


def test_master_goes_on_without_a_container_that_its_node_could_not_start() -> None:
    """The node had been told to shut down a moment ago; the error ended the resource manager."""

    class RefusesOnce(SimulatedCluster):
        has_refused = False

        def start_task(self, container: RMContainer, duration_ms: int) -> None:
            if self.has_refused:
                super().start_task(container, duration_ms)
                return
            self.has_refused = True
            manager.context.post(RMNodeEvent(RMNodeEventType.EXPIRE, container.node))
            raise ConnectionError("no node manager")

    manager = daemon(nodes=RefusesOnce)
    with manager:
        manager.bring(workload(node(), app(tasks=(task(1), task(1)))))
        until(lambda: states(manager) and FINAL_STATES.issuperset(states(manager)), "the end of the application")
        assert [state.name for state in states(manager)] == ["FINISHED"]
        until(lambda: not manager.context.containers)
    check_nothing_went_wrong(manager)
