"""The launcher of masters."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from statemachines.resourcemanager import RMContainer

from ..builders import MASTER
from ..inner import AMLauncherEvent, AMLauncherEventType, ApplicationMasterLauncher
from .desk import Desk

LAUNCH, CLEANUP = AMLauncherEventType.LAUNCH, AMLauncherEventType.CLEANUP
ATTEMPT = "appattempt_0_0001_000001"


class FakeNodeManagers:
    """Records starts and stops; `broken` nodes can do neither."""

    def __init__(self, *, broken: bool = False) -> None:
        self.calls: list[tuple[str, str]] = []
        self._broken = broken

    def start_container(self, container: RMContainer) -> None:
        self._note("start", container.entity)

    def stop_container(self, container_id: str) -> None:
        self._note("stop", container_id)

    def _note(self, what: str, container_id: str) -> None:
        if self._broken:
            raise OSError("the disk is full")
        self.calls.append((what, container_id))


@pytest.fixture
def desk() -> Desk:
    """With an application whose master has its container."""
    desk = Desk()
    desk.attempt("ALLOCATED").master_container = MASTER
    assert desk.live(ATTEMPT, 1, "ACQUIRED").entity == MASTER
    return desk


def handle(desk: Desk, type: AMLauncherEventType, *, broken: bool = False) -> list[tuple[str, str]]:
    """Have a launcher handle an event for the attempt; returns the calls of its node managers."""
    launcher = ApplicationMasterLauncher(desk.context)
    launcher.node_managers = nodes = FakeNodeManagers(broken=broken)
    launcher.handle(AMLauncherEvent(type, ATTEMPT))
    return nodes.calls


def test_master_is_launched_in_its_container_and_cleaned_up_on_its_node(desk: Desk) -> None:
    assert (handle(desk, LAUNCH), desk.posted.news()) == ([("start", MASTER)], ["RMAppAttempt LAUNCHED"])
    assert (handle(desk, CLEANUP), len(desk.posted.events)) == ([("stop", MASTER)], 1)


def test_attempt_is_notified_of_a_failed_launch_and_a_failed_clean_up_is_logged(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        handle(desk, LAUNCH, broken=True)
        handle(desk, CLEANUP, broken=True)

    (failed,) = desk.posted.events
    assert desk.posted.news() == ["RMAppAttempt LAUNCH_FAILED"]
    assert (failed.entity, failed.diagnostics) == (ATTEMPT, "launch failed: the disk is full")
    assert f"{ATTEMPT}: launch failed: OSError('the disk is full')" in caplog.text
    assert f"{ATTEMPT}: clean-up of {MASTER} failed: OSError('the disk is full')" in caplog.text


NOTHING_TO_DO: dict[str, Callable[[Desk], Any]] = {
    "the master is unmanaged": lambda desk: setattr(desk.context.attempts[ATTEMPT], "master_container", None),
    "the attempt is forgotten": lambda desk: desk.context.attempts.pop(ATTEMPT),
}


@pytest.mark.parametrize("type", AMLauncherEventType)
@pytest.mark.parametrize("before", NOTHING_TO_DO.values(), ids=NOTHING_TO_DO)
def test_nothing_is_launched_or_cleaned_up(
    desk: Desk, type: AMLauncherEventType, before: Callable[[Desk], Any]
) -> None:
    before(desk)

    assert (handle(desk, type), desk.posted.events) == ([], [])


def test_container_that_has_ended_meanwhile_is_not_launched(desk: Desk) -> None:
    del desk.context.containers[MASTER]

    assert (handle(desk, LAUNCH), desk.posted.events) == ([], [])
