"""Kill in every state of an application and of its attempt, again, too late, and by the end of its lifetime."""

from __future__ import annotations

from typing import Any

import pytest

from statemachines.resourcemanager import (
    ContainerStatus,
    RMAppAttemptEventType,
    RMAppAttemptState,
    RMAppEventType,
    RMAppState,
)
from statemachines.resourcemanager.events.services import RMAppManagerEventType
from statemachines.resourcemanager.records.errors import InvalidRequestError

from .yarn_cluster import Master, Yarn, ask, first_attempt

pytestmark = pytest.mark.long

REASON = "no longer needed"
# Those that an application which ends by itself comes through.
APP_STATES = [s.name for s in RMAppState if s.name not in {"NEW", "KILLING", "FAILED", "KILLED"}]
ATTEMPT_STATES = [s.name for s in RMAppAttemptState if s.name not in {"NEW", "FAILED", "KILLED"}]
STATES = [*(("RMApp", state) for state in APP_STATES), *(("RMAppAttempt", state) for state in ATTEMPT_STATES)]
TOO_LATE = {"FINAL_SAVING", "FINISHING", "FINISHED"}
NOT_WITHOUT_A_CONTAINER = {
    ("RMApp", "FINISHING"),
    ("RMAppAttempt", "SCHEDULED"),
    ("RMAppAttempt", "ALLOCATED_SAVING"),
    ("RMAppAttempt", "ALLOCATED"),
    ("RMAppAttempt", "FINISHING"),
}
NOT_WITH_A_CONTAINER = {("RMAppAttempt", "LAUNCHED_UNMANAGED_SAVING")}


class Killer:
    """Kills the application as soon as it, or its attempt, comes to a state."""

    def __init__(self, yarn: Yarn, machine: str, state: str) -> None:
        self._yarn = yarn
        self._machine = machine
        self._state = state
        self.has_killed = False
        for event_type in (RMAppEventType, RMAppAttemptEventType):
            yarn.manager.dispatcher.register(event_type, self._look)

    def _look(self, event: Any) -> None:
        (app,) = self._yarn.context.apps.values()
        entity = app if self._machine == "RMApp" else app.current_attempt
        if not self.has_killed and entity is not None and entity.state.name == self._state:
            self.has_killed = True
            self._yarn.clients.force_kill_application(app.entity, REASON)


def live(yarn: Yarn, killer: Killer, **submission: Any) -> str:
    """A whole life, cut off where it is killed."""
    app_id = yarn.submit(**submission)
    container = yarn.started[0] if yarn.started else None
    master = Master(yarn, first_attempt(app_id), container)
    if container is not None and not killer.has_killed:
        yarn.launch(container)
    if not killer.has_killed:
        master.register()
    if not killer.has_killed:
        master.get_running(ask(), ask())
        master.finish()
    if container is not None and container.entity in yarn.context.containers:
        yarn.end(container)
    return app_id


def check_nothing_is_left(yarn: Yarn) -> None:
    context = yarn.context
    assert context.containers == {}
    assert context.scheduler.waiting() == []
    assert [len(monitor) for monitor in context.monitors] == [0] * len(context.monitors)
    assert [(node.free_memory_mb, node.free_vcores_milli) for node in context.scheduler.nodes()] == [(10, 10)]
    assert yarn.clients.get_queue_info().applications == 0


@pytest.mark.parametrize("unmanaged_am", [False, True], ids=["managed", "unmanaged"])
@pytest.mark.parametrize(("machine", "state"), STATES)
def test_application_can_be_killed_in_every_state(machine: str, state: str, unmanaged_am: bool) -> None:
    with Yarn("n1") as yarn:
        killer = Killer(yarn, machine, state)
        completed: list[str] = []
        yarn.manager.dispatcher.register(RMAppManagerEventType, lambda event: completed.append(event.entity))

        app_id = live(yarn, killer, unmanaged_am=unmanaged_am, lifetime_s=1000)

        report = yarn.report(app_id)
        never = NOT_WITHOUT_A_CONTAINER if unmanaged_am else NOT_WITH_A_CONTAINER
        assert killer.has_killed == ((machine, state) not in never)
        ended_by_itself = state in TOO_LATE or not killer.has_killed
        assert report.state == ("FINISHED" if ended_by_itself else "KILLED")
        assert report.final_status == ("SUCCEEDED" if ended_by_itself else "KILLED")
        assert (REASON in report.diagnostics) == (not ended_by_itself)
        assert completed == [app_id]
        check_nothing_is_left(yarn)


@pytest.mark.parametrize("state", ["KILLING", "FINAL_SAVING", "KILLED"])
def test_second_kill_changes_nothing(state: str) -> None:
    with Yarn("n1") as yarn:
        master = yarn.submit_and_run()
        (app,) = yarn.context.apps.values()
        killer = Killer(yarn, "RMApp", state)

        yarn.kill(app.entity)
        yarn.end(master.container, 143)

        assert killer.has_killed
        assert yarn.states(app.entity) == ("KILLED", ["KILLED"])
        assert yarn.report(app.entity).diagnostics == "killed by its user"
        check_nothing_is_left(yarn)


def test_kill_of_a_failed_application_leaves_it_failed() -> None:
    with Yarn("n1", max_attempts=1) as yarn:
        app = yarn.submit()
        yarn.end(yarn.run(app).container, 1)

        yarn.kill(app)

        assert yarn.report(app).state == "FAILED"
        assert yarn.do(lambda: yarn.clients.force_kill_application(app))


def test_master_that_is_killed_while_it_fails_is_not_followed_by_another() -> None:
    with Yarn("n1", max_attempts=3) as yarn:
        app = yarn.submit()
        master = yarn.run(app)

        def crash_and_kill() -> None:
            yarn.manager.tracker.heartbeat("n1:45454", (), (_crashed(master),))
            yarn.clients.force_kill_application(app)

        yarn.do(crash_and_kill)

        assert yarn.report(app).state == "KILLED"
        assert len(yarn.clients.get_application_attempts(app)) == 1


def test_application_is_killed_at_the_end_of_its_lifetime_and_not_before() -> None:
    with Yarn("n1") as yarn:
        yarn.advance(500)
        app = yarn.submit(lifetime_s=10)
        yarn.run(app)
        deadline_ms = yarn.report(app).deadline_ms

        yarn.advance(9_999)
        before = yarn.report(app).state
        yarn.advance(1)

        assert deadline_ms == 10_500
        assert before == "RUNNING"
        assert yarn.report(app).state == "KILLED"
        assert "lifetime" in yarn.report(app).diagnostics
        assert yarn.report(app).deadline_ms is None


def test_lifetime_of_a_running_application_can_be_changed_but_not_into_the_past() -> None:
    with Yarn("n1") as yarn:
        app = yarn.submit(lifetime_s=10)
        yarn.run(app)
        yarn.advance(5_000)

        with pytest.raises(InvalidRequestError, match="Set a longer lifetime, or kill it"):
            yarn.clients.update_application_timeouts(app, 5)
        yarn.clients.update_application_timeouts(app, 20)
        yarn.advance(14_999)
        before = yarn.report(app).state
        yarn.advance(1)

        assert (before, yarn.report(app).state) == ("RUNNING", "KILLED")


def test_lifetime_is_bounded_and_given_by_the_queue() -> None:
    queue = {"name": "default", "capacity": 100, "maximum_lifetime_s": 10, "default_lifetime_s": 5}
    with Yarn("n1", scheduler={"kind": "capacity", "queues": [queue]}) as yarn:
        greedy, silent = yarn.submit(lifetime_s=100), yarn.submit()

        deadlines = [yarn.report(app).deadline_ms for app in (greedy, silent)]
        yarn.advance(5_000)
        states = [yarn.report(app).state for app in (greedy, silent)]

        assert deadlines == [10_000, 5_000]
        assert states == ["ACCEPTED", "KILLED"]


def _crashed(master: Master) -> ContainerStatus:
    assert master.container is not None
    return ContainerStatus(master.container.entity, 1)
