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

from ..inner import RMAppManagerEventType
from .stage import Scene, play_scene
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


LIFETIMES = {"name": "default", "capacity": 100, "maximum_lifetime_s": 10, "default_lifetime_s": 5}
SCENES: dict[str, Scene] = {
    "a kill of a failed application leaves it failed": (
        {"max_attempts": 1},
        "submit a | run a | crash a | kill a -> a FAILED FAILED",
    ),
    "an application is killed at the end of its lifetime and not before": (
        {},
        "+500 | start a lifetime_s=10 -> a.deadline_ms 10500 | +9999 -> a RUNNING RUNNING | +1 -> a KILLED KILLED"
        " ; a.deadline_ms None | says a lifetime",
    ),
    "the lifetime of a running application can be changed, but not into the past": (
        {},
        "start a lifetime_s=10 | +5000 | refused lifetime a 5 -> refusal InvalidRequestError | lifetime a 20 | +14999"
        " -> a RUNNING RUNNING | +1 -> a KILLED KILLED",
    ),
    "the lifetime is bounded and given by the queue": (
        {"scheduler": {"kind": "capacity", "queues": [LIFETIMES]}},
        "submit greedy lifetime_s=100 | submit silent -> greedy.deadline_ms 10000 ; silent.deadline_ms 5000 | +5000"
        " -> greedy ACCEPTED LAUNCHED ; silent KILLED KILLED",
    ),
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_kills(scene: Scene) -> None:
    play_scene(scene)


def test_master_that_is_killed_while_it_fails_is_not_followed_by_another() -> None:
    with Yarn("n1", max_attempts=3) as yarn:
        app = yarn.submit()
        master = yarn.run(app)
        assert master.container is not None

        def crash_and_kill() -> None:
            yarn.manager.tracker.heartbeat("n1:45454", (), (ContainerStatus(master.container.entity, 1),))
            yarn.clients.force_kill_application(app)

        yarn.do(crash_and_kill)

        assert yarn.report(app).state == "KILLED"
        assert len(yarn.clients.get_application_attempts(app)) == 1
