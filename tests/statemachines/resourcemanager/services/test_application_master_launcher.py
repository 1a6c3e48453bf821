"""The launcher of masters: on the handler thread, and with a pool for nodes that are slow to answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from statemachines.resourcemanager import AMLauncherEventType, RMContainer
from statemachines.resourcemanager.events import AMLauncherEvent
from statemachines.resourcemanager.services.application_master_launcher import ApplicationMasterLauncher

from ..builders import MASTER
from .desk import TIMEOUT_S, Desk

LAUNCH, CLEANUP = AMLauncherEventType.LAUNCH, AMLauncherEventType.CLEANUP
ATTEMPT = "appattempt_0_0001_000001"
OTHER_ATTEMPT, OTHER_MASTER = "appattempt_0_0002_000001", "container_0_0002_01_000001"


class FakeNodeManagers:
    """Records starts and stops with their threads; `broken` nodes can do neither."""

    def __init__(self, *, broken: bool = False) -> None:
        self.calls: list[tuple[str, str]] = []
        self.threads: set[threading.Thread] = set()
        self._broken = broken

    def start_container(self, container: RMContainer) -> None:
        self._note("start", container.entity)

    def stop_container(self, container_id: str) -> None:
        self._note("stop", container_id)

    def _note(self, what: str, container_id: str) -> None:
        if self._broken:
            raise OSError("the disk is full")
        self.threads.add(threading.current_thread())
        self.calls.append((what, container_id))


class SlowNodeManagers(FakeNodeManagers):
    """The node of `slow` begins to start it and does not get on with it until told to."""

    def __init__(self, slow: str) -> None:
        super().__init__()
        self._slow = slow
        self.has_begun = threading.Event()
        self.go_on = threading.Event()
        self.has_started = threading.Event()  # any
        self.has_stopped = threading.Event()  # any

    def start_container(self, container: RMContainer) -> None:
        if container.entity == self._slow:
            self.has_begun.set()
            assert self.go_on.wait(TIMEOUT_S)
        super().start_container(container)
        self.has_started.set()

    def stop_container(self, container_id: str) -> None:
        super().stop_container(container_id)
        self.has_stopped.set()


@pytest.fixture
def desk() -> Desk:
    """With two applications, whose masters have their containers."""
    desk = Desk()
    for attempt_id, master in ((ATTEMPT, MASTER), (OTHER_ATTEMPT, OTHER_MASTER)):
        attempt = desk.attempt("ALLOCATED")
        attempt.master_container = master
        assert desk.live(attempt_id, 1, "ACQUIRED").entity == master
    return desk


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def handle(desk: Desk, type: AMLauncherEventType, *, broken: bool = False) -> list[tuple[str, str]]:
    """Have a launcher without a pool handle an event for the first attempt; returns what the nodes were told."""
    nodes = FakeNodeManagers(broken=broken)
    ApplicationMasterLauncher(desk.context, nodes).handle(AMLauncherEvent(type, ATTEMPT))
    return nodes.calls


# -- on the handler thread --------------------------------------------------------------------------------------------


def test_master_is_launched_in_its_container(desk: Desk) -> None:
    calls = handle(desk, LAUNCH)

    assert (calls, desk.posted.told()) == ([("start", MASTER)], ["RMAppAttempt LAUNCHED"])


@pytest.mark.parametrize("type", AMLauncherEventType)
def test_without_node_managers_nothing_is_launched_and_nothing_said(desk: Desk, type: AMLauncherEventType) -> None:
    ApplicationMasterLauncher(desk.context).handle(AMLauncherEvent(type, ATTEMPT))

    assert desk.posted.told() == []


def test_connected_node_managers_launch_what_comes_next(desk: Desk) -> None:
    launcher, nodes = ApplicationMasterLauncher(desk.context), FakeNodeManagers()

    launcher.connect(nodes)
    launcher.handle(AMLauncherEvent(LAUNCH, ATTEMPT))

    assert nodes.calls == [("start", MASTER)]


def test_launch_that_fails_is_told_to_the_attempt(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        handle(desk, LAUNCH, broken=True)

    (failed,) = desk.posted.events
    assert desk.posted.told() == ["RMAppAttempt LAUNCH_FAILED"]
    assert (failed.entity, failed.diagnostics) == (ATTEMPT, "launch failed: the disk is full")
    assert f"{ATTEMPT}: launch failed: OSError('the disk is full')" in caplog.text


def test_master_is_cleaned_up_on_its_node(desk: Desk) -> None:
    calls = handle(desk, CLEANUP)

    assert (calls, desk.posted.events) == ([("stop", MASTER)], [])


def test_clean_up_that_fails_is_logged(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        handle(desk, CLEANUP, broken=True)

    assert f"{ATTEMPT}: clean-up of {MASTER} failed: OSError('the disk is full')" in caplog.text
    assert desk.posted.events == []


@pytest.mark.parametrize("type", AMLauncherEventType)
def test_master_outside_of_the_cluster_is_left_alone(desk: Desk, type: AMLauncherEventType) -> None:
    desk.context.attempts[ATTEMPT].master_container = None

    assert (handle(desk, type), desk.posted.events) == ([], [])


@pytest.mark.parametrize("type", AMLauncherEventType)
def test_attempt_that_is_no_longer_kept_has_nothing_to_launch(desk: Desk, type: AMLauncherEventType) -> None:
    del desk.context.attempts[ATTEMPT]

    assert (handle(desk, type), desk.posted.events) == ([], [])


def test_container_that_has_ended_meanwhile_is_not_launched(desk: Desk) -> None:
    del desk.context.containers[MASTER]

    assert (handle(desk, LAUNCH), desk.posted.events) == ([], [])


# -- with a pool ------------------------------------------------------------------------------------------------------


def test_pool_does_the_work(desk: Desk) -> None:
    nodes = FakeNodeManagers()
    with ThreadPoolExecutor(1) as pool:
        launcher = ApplicationMasterLauncher(desk.context, nodes, pool)
        launcher.handle(AMLauncherEvent(LAUNCH, ATTEMPT))
        launcher.handle(AMLauncherEvent(CLEANUP, ATTEMPT))

    assert nodes.calls == [("start", MASTER), ("stop", MASTER)]
    assert desk.posted.told() == ["RMAppAttempt LAUNCHED"]
    assert threading.current_thread() not in nodes.threads


def test_slow_node_holds_up_no_other(desk: Desk, pool: ThreadPoolExecutor) -> None:
    nodes = SlowNodeManagers(MASTER)
    launcher = ApplicationMasterLauncher(desk.context, nodes, pool)
    launcher.handle(AMLauncherEvent(LAUNCH, ATTEMPT))
    assert nodes.has_begun.wait(TIMEOUT_S)

    launcher.handle(AMLauncherEvent(LAUNCH, OTHER_ATTEMPT))
    other_has_started = nodes.has_started.wait(TIMEOUT_S)
    nodes.go_on.set()
    pool.shutdown()

    assert other_has_started
    assert nodes.calls == [("start", OTHER_MASTER), ("start", MASTER)]


def test_master_is_not_stopped_before_it_is_started(desk: Desk, pool: ThreadPoolExecutor) -> None:
    """A second thread took the CLEANUP while the node was busy with the LAUNCH: the master then ran for ever."""
    nodes = SlowNodeManagers(MASTER)
    launcher = ApplicationMasterLauncher(desk.context, nodes, pool)
    launcher.handle(AMLauncherEvent(LAUNCH, ATTEMPT))
    assert nodes.has_begun.wait(TIMEOUT_S)

    launcher.handle(AMLauncherEvent(CLEANUP, ATTEMPT))
    launcher.handle(AMLauncherEvent(CLEANUP, OTHER_ATTEMPT))
    assert nodes.has_stopped.wait(TIMEOUT_S)  # the pool has got to what it was given later
    nodes.go_on.set()
    pool.shutdown()

    assert nodes.calls == [("stop", OTHER_MASTER), ("start", MASTER), ("stop", MASTER)]


def test_launch_that_fails_in_the_pool_is_told_to_the_attempt(desk: Desk) -> None:
    with ThreadPoolExecutor(1) as pool:
        launcher = ApplicationMasterLauncher(desk.context, FakeNodeManagers(broken=True), pool)
        launcher.handle(AMLauncherEvent(LAUNCH, ATTEMPT))
        launcher.handle(AMLauncherEvent(CLEANUP, ATTEMPT))

    assert desk.posted.told() == ["RMAppAttempt LAUNCH_FAILED"]


def test_pool_that_is_shut_down_refuses_each_event(desk: Desk, pool: ThreadPoolExecutor) -> None:
    """The second one waited forever behind the first, which no thread was going to do."""
    launcher = ApplicationMasterLauncher(desk.context, FakeNodeManagers(), pool)
    pool.shutdown()

    for _ in range(2):
        with pytest.raises(RuntimeError, match="shutdown"):
            launcher.handle(AMLauncherEvent(LAUNCH, ATTEMPT))
