"""RMApp after a failed attempt: whether there is another one, and what that takes over."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from statemachines.resourcemanager import ContainerStatus

from ....kit.scenarios import play
from ..builders import NODE, TASK, Workshop, event_for
from ..inner import (
    EXIT_ABORTED,
    EXIT_DISKS_FAILED,
    EXIT_KILLED_AFTER_APP_COMPLETION,
    EXIT_KILLED_BY_RESOURCEMANAGER,
    EXIT_PREEMPTED,
)
from .stage import MachineStage

APP, SECOND = "application_0_0001", "appattempt_0_0001_000002"
FAIL = "ATTEMPT_FAILED"
WITHIN = "attempt_failures_validity_interval_ms"
NOT_ITS_OWN_FAULT = [EXIT_ABORTED, EXIT_DISKS_FAILED, EXIT_PREEMPTED, EXIT_KILLED_BY_RESOURCEMANAGER]


class RetryStage(MachineStage):
    def do_exited(self, status: int | None) -> None:
        """As the last attempt."""
        self.entity.attempts[-1].exit_status = status

    def do_failed(self, every: int) -> None:
        """The attempts have failed at these intervals, the last one now."""
        for attempt in self.entity.attempts:
            self.workshop.clock.advance(every)
            attempt.finish_ms = self.workshop.context.now_ms()

    def do_failed_now(self) -> None:
        self.entity.attempts[-1].finish_ms = self.workshop.context.now_ms()

    def do_killing(self) -> None:
        self.workshop._put(self.entity, "KILLING")

    def look(self, what: str) -> Iterable[object]:
        if what == "removed":
            return [
                event.entity[-1] for event in self.step if event.type.name == "REMOVE_APP_ATTEMPT" and not event.notify
            ]
        return super().look(what)


def old(attempts: int, within: int | None, **more: object) -> str:
    """Attempts that failed every 100 ms, of two allowed."""
    options = " ".join(f"{key}={value}" for key, value in ({"max_attempts": 2, WITHIN: within} | more).items())
    return f"app RUNNING attempts={attempts} {options} | failed every=100 | "


SCENARIOS = {
    # A master that was lost with its node used up an attempt.
    **{
        f"a failure with {status}, not the application's, counts only where one is allowed, not {allowed}": (
            f"app RUNNING attempts=2 max_attempts={allowed} | exited status={status} | {FAIL} -> state {state}"
        )
        for status in NOT_ITS_OWN_FAULT for allowed, state in ((1, "FINAL_SAVING"), (2, "ACCEPTED"))
    },
    **{
        f"a failure of its own with {status} counts": (
            f"app RUNNING attempts=2 max_attempts=2 | exited status={status} | {FAIL} -> state FINAL_SAVING"
        )
        for status in (0, 1, EXIT_KILLED_AFTER_APP_COMPLETION, None)
    },
    **{
        f"an application that wants {wanted} attempts of five has {allowed}": (
            f"app NEW max_attempts={wanted} -> entity.max_attempts {allowed}"
        )
        for wanted, allowed in ((None, 5), (0, 5), (3, 3), (9, 5))
    },
    "a failure says how many attempts were made": (
        f"app RUNNING attempts=2 max_attempts=2 | {FAIL} diagnostics=full"
        f"-> entity.diagnostics {APP}_failed_2_times,_of_2_allowed full"
    ),
    "an attempt that fails while killing gives KILLED where it would be tried again": (
        f"app KILLING attempts=1 max_attempts=2 | {FAIL} | APP_UPDATE_SAVED -> state KILLED"
    ),
    "an attempt that fails while killing gives FAILED where it would not": (
        f"app KILLING attempts=2 max_attempts=2 | {FAIL} | APP_UPDATE_SAVED -> state FAILED"
    ),
    "the next attempt has the next number, and takes no container over": (
        f"app RUNNING attempts=1 | {FAIL} -> START.entity {SECOND} ; START.transfer_state False"
        f"; entity.current_attempt.entity {SECOND} ; entity.current_attempt.number 2"
    ),
    "the start of the next attempt says that it takes over containers": (
        f"app RUNNING attempts=1 | {FAIL} keep_containers=True -> START.transfer_state True"
    ),
    "without an interval all failures count": f"{old(2, None)}{FAIL} -> state FINAL_SAVING",
    "a failure at the beginning of the interval does not count": f"{old(2, 100)}{FAIL} -> state ACCEPTED",
    "a failure within the interval counts": f"{old(2, 101)}{FAIL} -> state FINAL_SAVING",
    "attempts that are too old leave the store where there are more than allowed": (
        f"{old(4, 50)}{FAIL} -> removed 1 2 ; START.entity appattempt_0_0001_000005"
    ),
    "attempts that are too old leave the store while killing too": (
        f"{old(3, 50)}killing | {FAIL} -> posted REMOVE_APP_ATTEMPT UPDATE_APP"
    ),
    "an attempt leaves the store once": (
        f"{old(3, 50)}{FAIL} -> removed 1 | failed_now | +100 | {FAIL} -> removed 2 ; posted REMOVE_APP_ATTEMPT START"
    ),
    "as many attempts as are allowed stay in the store": f"{old(3, 50, max_attempts=3)}{FAIL} -> removed",
    "without an interval attempts stay in the store": f"{old(3, None)}{FAIL} -> removed",
    "an attempt that is not too old stays in the store with its successors": f"{old(4, 250)}{FAIL} -> removed 1",
}  # fmt: skip


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_attempts(script: str) -> None:
    play(RetryStage(max_attempts=5), script)


def test_unmanaged_master_is_not_started_again(workshop: Workshop) -> None:
    app = workshop.app("RUNNING", attempts=1, max_attempts=2, unmanaged_am=True)

    app.handle(event_for(app, FAIL, diagnostics="it was silent"))

    assert app.state.name == "FINAL_SAVING"
    assert app.diagnostics == [
        f"{APP} failed; the resource manager does not restart an unmanaged master",
        "it was silent",
    ]
    assert workshop.posted.events[0].state.diagnostics == "; ".join(app.diagnostics)


def test_next_attempt_takes_over_the_blacklist_and_what_was_not_fetched(workshop: Workshop) -> None:
    app = workshop.app("RUNNING", attempts=1)
    first, ended = app.attempts[0], (NODE, ContainerStatus(TASK, 0))
    first.blacklist.add("node7")
    first.finished_containers.append(ended)

    app.handle(event_for(app, FAIL))

    second = app.attempts[1]
    assert workshop.context.attempts[SECOND] is second
    assert (second.blacklist, second.finished_containers, first.finished_containers) == ({"node7"}, [ended], [])


@pytest.mark.parametrize("state", ["FAILED", "KILLED", "FINISHED"])
def test_container_that_ends_after_its_attempt_is_noted_for_the_next_one(workshop: Workshop, state: str) -> None:
    first = workshop.attempt(state)
    app = first.app
    app.start_attempt()
    status = ContainerStatus(TASK, 0)

    first.handle(event_for(first, "CONTAINER_FINISHED", status=status))

    assert (first.finished_containers, app.attempts[1].finished_containers) == ([], [(NODE, status)])
