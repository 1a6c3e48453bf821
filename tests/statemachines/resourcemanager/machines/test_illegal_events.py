"""A daemon that gets events which its machines do not take."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from dispatcher import JournalWriter
from dispatcher.journal import TRANSITIONS, read_rows
from dispatcher.testing import ManualClock
from statemachines.resourcemanager import ResourceManager, RMAppAttemptEventType, RMAppEventType, RMContainerEventType

from ...simulation.replays import TIMEOUT_S, app, config, node, workload
from ..inner import RMAppAttemptEvent, RMAppEvent, RMContainerEvent, RMNodeStartedEvent

ILLEGAL_AT_MS = 2500


class Daemon:
    """A resource manager with a journal, a node, and an application that runs until it is killed at 3000 ms."""

    def __init__(self, journal: Path) -> None:
        self.journal = JournalWriter(journal)
        self._idle = threading.Event()
        self.manager = ResourceManager(config(), clock=ManualClock(), journal=self.journal, on_idle=self._idle.set)
        self.context = self.manager.context
        self.states: list[str] = []  # of the entity concerned, before and after the event
        self.manager.bring(workload(node(), app(am_duration_ms=None, kill_ms=3000)))

    def run(self, machine: str) -> None:
        """Run to the end, with an event that the machine does not accept while the application runs."""
        timers, execute = self.context.timers, self.manager.dispatcher.mailbox_executor.execute
        execute(lambda: timers.register_timer(ILLEGAL_AT_MS, lambda _: self._send(machine)), "a timer of the test")
        execute(lambda: timers.register_timer(ILLEGAL_AT_MS + 1, lambda _: self._note(machine)), "another one")
        with self.manager:
            assert self._idle.wait(TIMEOUT_S)
        self.journal.close()

    def _send(self, machine: str) -> None:
        self._note(machine)
        entity = self._entity(machine).entity
        events: dict[str, Any] = {
            "RMApp": RMAppEvent(RMAppEventType.START, entity),
            "RMAppAttempt": RMAppAttemptEvent(RMAppAttemptEventType.START, entity),
            "RMContainer": RMContainerEvent(RMContainerEventType.START, entity),
            "RMNode": RMNodeStartedEvent(entity),
        }
        self.context.post(events[machine])

    def _note(self, machine: str) -> None:
        self.states.append(self._entity(machine).state.name)

    def _entity(self, machine: str) -> Any:
        context = self.context
        entities: dict[str, dict[str, Any]] = {
            "RMApp": context.apps,
            "RMAppAttempt": context.attempts,
            "RMContainer": context.containers,
            "RMNode": context.nodes,
        }
        (entity,) = entities[machine].values()
        return entity

    def invalid(self) -> dict[str, float]:
        """The metric by machine, without zeros."""
        return {
            sample.labels["machine"]: sample.value
            for family in self.manager.registry.collect()
            for sample in family.samples
            if sample.name == "statemachine_invalid_transitions_total" and sample.value
        }


@pytest.mark.parametrize(
    ("machine", "event_type"),
    [("RMApp", "START"), ("RMAppAttempt", "START"), ("RMContainer", "START"), ("RMNode", "STARTED")],
)
def test_illegal_event_is_journaled_counted_and_logged_and_the_daemon_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, machine: str, event_type: str
) -> None:
    daemon = Daemon(tmp_path / "journal")

    with caplog.at_level(logging.ERROR):
        daemon.run(machine)

    assert daemon.states == ["RUNNING", "RUNNING"]
    assert daemon.invalid() == {machine: 1}
    refused = [row for row in read_rows(tmp_path / "journal", TRANSITIONS) if not row["valid"]]
    assert [(row["machine"], row["from_state"], row["event_type"], row["to_state"], row["at"]) for row in refused] == [
        (machine, "RUNNING", event_type, "RUNNING", ILLEGAL_AT_MS * 1_000_000)
    ]
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"{machine} {refused[0]['entity']}: no transition from RUNNING on {event_type}; RUNNING accepts "
    )
    assert (daemon.manager.dispatcher.stats().failed, daemon.manager.dispatcher.failure_cause) == (0, None)
    assert [ended.state.name for ended in daemon.context.apps.values()] == ["KILLED"]
    assert daemon.context.containers == {}
