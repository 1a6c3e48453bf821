"""Moves of applications that no client waits for, as of all that are in a queue."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager.events.services import RMAppManagerEvent
from statemachines.resourcemanager.services.rm_app_manager import RMAppManager

from ..inner import RMAppManagerEventType
from .desk import Desk


@pytest.mark.parametrize(
    ("state", "moved", "logged"),
    [("RUNNING", ["root.b"], ""), ("FINISHED", [], " cannot be moved to queue root.b"), (None, [], "")],
    ids=["it is moved", "why it is not is logged", "one that is forgotten is passed over"],
)
def test_an_application_is_moved_by_event(
    desk: Desk, caplog: pytest.LogCaptureFixture, state: str | None, moved: list[str], logged: str
) -> None:
    app_id = desk.app(state).entity if state is not None else "application_0_0009"

    RMAppManager(desk.context).handle(RMAppManagerEvent(RMAppManagerEventType.APP_MOVE, app_id, "root.b"))

    assert desk.desk_scheduler.moved == [(app_id, queue) for queue in moved]
    assert (f"{app_id}{logged}" in caplog.text) is bool(logged)
