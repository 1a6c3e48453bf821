"""RMApp and RMAppAttempt after a restart: from what the store holds to where they go on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from statemachines.resourcemanager import FinalApplicationStatus, Resource, UnknownAttemptError

from ....kit.scenarios import play
from ..builders import MASTER, NODE, send
from ..inner import ApplicationAttemptStateData, MasterContainerData, RecoveredApplication
from .stage import MachineStage

APP, FIRST, SECOND = "application_0_0001", "appattempt_0_0001_000001", "appattempt_0_0001_000002"
MASTERS = MasterContainerData(MASTER, NODE, Resource(2048, 1000))


def attempt_record(number: int, state: str | None = None, **more: Any) -> ApplicationAttemptStateData:
    return ApplicationAttemptStateData(f"appattempt_0_0001_{number:06d}", MASTERS, start_ms=number, state=state, **more)


class RecoveryStage(MachineStage):
    """`stored number=1 state=FAILED` adds an attempt's record. `recover` gives all records to the application."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.stored: dict[str, ApplicationAttemptStateData] = {}  # by attempt

    def do_stored(self, number: int, state: Any = None, **more: Any) -> None:
        record = attempt_record(number, getattr(state, "name", state), **more)
        self.stored[record.attempt_id] = record

    def do_recover(self, state: Any = None, **stored: Any) -> None:
        """`stored` overrides fields of the application's own record."""
        record = self.entity.record()._replace(state=getattr(state, "name", state), **stored)
        send(self.entity, "RECOVER", state=RecoveredApplication(record, self.stored))
        assert self.workshop.context.attempts == {attempt.entity: attempt for attempt in self.entity.attempts}

    def do_exited(self, status: int) -> None:
        """The last attempt."""
        self.entity.attempts[-1].exit_status = status

    def do_first(self) -> None:
        """The first event that was posted last is handled."""
        self.entity.handle(self.step[0])

    def look(self, what: str) -> Iterable[object]:
        context = self.workshop.context
        if what == "states":
            return [attempt.state.name for attempt in self.entity.attempts]
        if what == "told":  # calls of the scheduler, with whether it recovers
            news: list[Any] = self.workshop.scheduler.news
            return [f"{event.type.name} {event.entity} {event.is_recovering}" for event in news]
        if what == "watched":
            return [each.entity for each in self.entity.attempts if each.entity in context.am_liveliness_monitor]
        if what == "registers":  # the last attempt's master
            try:
                self.workshop.masters.register_application_master(self.entity.attempts[-1].entity)
            except UnknownAttemptError:
                return [False]
            return [True]
        if what == "deadline":
            return [context.app_lifetime_monitor.deadline_ms(self.entity.entity)]
        if what.startswith("record."):
            return [getattr(self.entity.record(), what.removeprefix("record."))]
        return super().look(what)


ADDED = f"APP_ADDED_{APP}_True"
RECORD = {"start_ms": 2, "submit_ms": 0, "launch_ms": 5, "finish_ms": 70, "diagnostics": "it_was_killed"}

SCENARIOS = {
    **{
        f"an application that is {end} is recovered without the scheduler": (
            f"app NEW | stored number=1 state=FAILED | stored number=2 state={end} | recover state={end} finish_ms=70"
            f"-> state {end} ; states FAILED {end} ; entity.finish_ms 70 ; posted APP_COMPLETED ; told"
            "| APP_RUNNING_ON_NODE -> posted CLEANUP_APP"
        )
        for end in ("FINISHED", "FAILED", "KILLED")
    },
    # The application's end was stored, and the attempt's was not.
    "an attempt without a stored end takes the end of its application": (
        "app NEW | stored number=1 | recover state=KILLED finish_ms=70"
        "-> state KILLED ; states KILLED ; posted APP_COMPLETED"
    ),
    "the record of a recovered application is what was stored": (
        f"app NEW | recover state=KILLED {' '.join(f'{name}={value}' for name, value in RECORD.items())}"
        f"-> record.state KILLED ; {' ; '.join(f'record.{name} {value}' for name, value in RECORD.items())}"
    ),
    # The scheduler answers, and that starts the first attempt.
    "an application without an attempt goes on as a new one": (
        f"app NEW | recover -> state SUBMITTED ; posted ; told APP_ADDED_{APP}_False"
    ),
    "a live attempt waits for its master, which may register at once": (
        "app NEW | stored number=1 state=FAILED | stored number=2 | recover launch_ms=3"
        f"-> state ACCEPTED ; states FAILED LAUNCHED ; told {ADDED} APP_ATTEMPT_ADDED_{SECOND}_True"
        f"; posted ATTEMPT_LAUNCHED ; watched {SECOND} ; registers True"
    ),
    "the time of the first launch stays": (
        "app NEW | +50 | stored number=1 | recover launch_ms=3 | ATTEMPT_LAUNCHED -> entity.launch_ms 3 ; posted"
    ),
    **{
        f"an application learns that its attempt is {end}, which only that had stored": (
            f"app NEW | stored number=1 state={end} diagnostics=because | recover"
            f"-> told {ADDED} APP_ATTEMPT_ADDED_{FIRST}_True ; posted ATTEMPT_{end} APP_ATTEMPT_REMOVED"
            f"; ATTEMPT_{end}.diagnostics because ; APP_ATTEMPT_REMOVED.entity {FIRST} | first -> state {then}"
        )
        for end, then in (("FAILED", "ACCEPTED"), ("FINISHED", "FINAL_SAVING"), ("KILLED", "FINAL_SAVING"))
    },
    "containers of a failed attempt are kept for the next one across a restart": (
        "app NEW keep_containers_across_attempts=True | stored number=1 state=FAILED | recover"
        "-> ATTEMPT_FAILED.keep_containers True ; APP_ATTEMPT_REMOVED.keep_containers True"
    ),
    # A later attempt exists, so this one has ended; its last write was lost.
    "an older attempt without an end has failed": (
        "app NEW | stored number=1 | stored number=2 | recover -> states FAILED LAUNCHED"
    ),
    "failures before the restart count": (
        "app NEW | stored number=1 state=FAILED exit_status=1 | stored number=2 | recover | exited status=1"
        "| ATTEMPT_FAILED -> state FINAL_SAVING"
    ),
    "the next attempt is numbered after the stored ones": (
        "app NEW attempt_failures_validity_interval_ms=10 max_attempts=2 | stored number=3 state=FAILED finish_ms=0"
        "| stored number=4 | recover launch_ms=3 | +100 -> posted"
        "| ATTEMPT_FAILED -> posted START ; START.entity appattempt_0_0001_000005"
    ),
    "the lifetime goes on from the submission": "app NEW lifetime_s=60 | +5000 | recover -> deadline 60000",
}  # fmt: skip


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_recovery(script: str) -> None:
    play(RecoveryStage(), script)


def test_without_work_preserving_recovery_the_scheduler_does_not_get_the_live_attempt() -> None:
    script = (
        f"app NEW | stored number=1 | recover -> state ACCEPTED ; states LAUNCHED ; told {ADDED} ; watched {FIRST}"
        "; registers False"
    )

    play(RecoveryStage(work_preserving_recovery=False), script)


# -- attempts ---------------------------------------------------------------------------------------------------------


def test_record_of_a_recovered_attempt_is_what_was_stored() -> None:
    stage = RecoveryStage()
    play(stage, "app NEW")
    about = {"exit_status": 0, "diagnostics": "all done", "tracking_url": "http://history/1", "finish_ms": 60}
    stage.do_stored(1, "FINISHED", final_status="SUCCEEDED", **about)

    play(stage, "recover state=FINISHED finish_ms=70")

    (attempt,) = stage.entity.attempts
    assert attempt.record() == stage.stored[FIRST]
    assert (attempt.master_container, attempt.master_node) == (MASTER, NODE)
    assert stage.entity.final_status is FinalApplicationStatus.SUCCEEDED


def test_unmanaged_attempt_has_no_container_after_a_restart_either() -> None:
    stage = RecoveryStage()
    play(stage, "app NEW unmanaged_am=True | stored number=1")
    stage.stored[FIRST] = record = stage.stored[FIRST]._replace(master_container=None)

    play(stage, "recover")

    (attempt,) = stage.entity.attempts
    assert (attempt.state.name, attempt.master_container, attempt.record()) == ("LAUNCHED", None, record)
