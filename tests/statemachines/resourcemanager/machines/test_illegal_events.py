"""A daemon that gets events which its machines do not take."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from dispatcher.journal import TRANSITIONS, read_rows
from statemachines.resourcemanager import Replay, RMAppAttemptEventType, RMAppEventType, RMContainerEventType

from ...simulation.replays import app, config, node, workload
from ..inner import RMAppAttemptEvent, RMAppEvent, RMContainerEvent, RMNodeStartedEvent

ILLEGAL_AT_MS = 2500
EVENTS: dict[str, tuple[str, Any]] = {
    "RMApp": ("apps", lambda id: RMAppEvent(RMAppEventType.START, id)),
    "RMAppAttempt": ("attempts", lambda id: RMAppAttemptEvent(RMAppAttemptEventType.START, id)),
    "RMContainer": ("containers", lambda id: RMContainerEvent(RMContainerEventType.START, id)),
    "RMNode": ("nodes", RMNodeStartedEvent),
}


@pytest.mark.parametrize("machine", EVENTS)
def test_illegal_event_is_journaled_counted_and_logged_and_the_daemon_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, machine: str
) -> None:
    work = workload(node(), app(am_duration_ms=None, kill_ms=3000))
    replay = Replay(work, config(), journal_path=tmp_path / "journal")
    manager, context = replay.manager, replay.manager.context
    entities, event_for = EVENTS[machine]
    event_type = "STARTED" if machine == "RMNode" else "START"

    def send(_: object) -> None:
        [id] = getattr(context, entities)
        context.post(event_for(id))

    manager.dispatcher.mailbox_executor.execute(
        lambda: context.timers.register_timer(ILLEGAL_AT_MS, send), "a timer of the test"
    )
    with caplog.at_level(logging.ERROR):
        replay.run()

    assert {name: stats.invalid for name, stats in manager.recorder.machines.items() if stats.invalid} == {machine: 1}
    refused = [row for row in read_rows(tmp_path / "journal", TRANSITIONS) if not row["valid"]]
    assert [(row["machine"], row["from_state"], row["event_type"], row["to_state"], row["at"]) for row in refused] == [
        (machine, "RUNNING", event_type, "RUNNING", ILLEGAL_AT_MS * 1_000_000)
    ]
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"{machine} {refused[0]['entity']}: no transition from RUNNING on {event_type}; RUNNING accepts "
    )
    assert (manager.dispatcher.stats().failed, manager.dispatcher.failure_cause) == (0, None)
    assert [ended.state.name for ended in context.apps.values()] == ["KILLED"]
    assert context.containers == {}
