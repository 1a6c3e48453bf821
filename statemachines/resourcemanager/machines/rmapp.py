"""One application, after YARN's RMAppImpl.

A final state is stored before the application enters it: in FINAL_SAVING, `pending` keeps what follows. Handler thread
only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from statemachines.resourcemanager.events.records import (
    EXIT_ABORTED,
    EXIT_DISKS_FAILED,
    EXIT_KILLED_BY_RESOURCEMANAGER,
    EXIT_PREEMPTED,
    FinalApplicationStatus,
)
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppRecoverEvent
from statemachines.resourcemanager.events.rmappattempt import (
    RMAppAttemptEvent,
    RMAppAttemptEventType,
    RMAppAttemptRecoverEvent,
    RMAppStartAttemptEvent,
)
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.scheduler import AppAddedSchedulerEvent, SchedulerEvent, SchedulerEventType
from statemachines.resourcemanager.events.services import (
    RMAppManagerEvent,
    RMAppManagerEventType,
    RMStateStoreEvent,
    RMStateStoreEventType,
)
from statemachines.resourcemanager.machines.entity import Entity, Pending
from statemachines.resourcemanager.machines.liveliness import DeadlineMonitor
from statemachines.resourcemanager.machines.rmappattempt import AttemptContext, RMAppAttempt
from statemachines.resourcemanager.machines.states import FINAL_STATES, RMAppState
from statemachines.resourcemanager.records.stored_state import ApplicationStateData, RecoveredApplication
from statemachines.resourcemanager.records.submission import ApplicationSubmission

__all__ = ["FINAL_STATES", "RMApp", "RMAppState"]

S = RMAppState
_NOT_ITS_OWN_FAULT = frozenset({EXIT_PREEMPTED, EXIT_ABORTED, EXIT_DISKS_FAILED, EXIT_KILLED_BY_RESOURCEMANAGER})
_FINAL_STATUS = {
    S.FINISHING: FinalApplicationStatus.SUCCEEDED,
    S.FINISHED: FinalApplicationStatus.SUCCEEDED,
    S.FAILED: FinalApplicationStatus.FAILED,
    S.KILLED: FinalApplicationStatus.KILLED,
}


class AppContext(AttemptContext, Protocol):
    """What applications need of their resource manager."""

    app_lifetime_monitor: DeadlineMonitor

    @property
    def attempts(self) -> dict[str, RMAppAttempt]: ...


class RMApp(Entity[AppContext]):
    """An application. `entity` is its id. `submit_ms` defaults to now."""

    machine = "RMApp"

    __slots__ = (
        "_first_stored_attempt",
        "_state_before_end",
        "acknowledge",
        "attempts",
        "diagnostics",
        "finish_ms",
        "is_refused_by_store",
        "is_unstored",
        "launch_ms",
        "max_attempts",
        "nodes",
        "pending",
        "recovered_state",
        "start_ms",
        "submission",
        "submit_ms",
    )

    def __init__(
        self,
        context: AppContext,
        application_id: str,
        submission: ApplicationSubmission,
        *,
        submit_ms: int | None = None,
    ) -> None:
        super().__init__(context, application_id)
        self.submission: ApplicationSubmission = submission  # with the current queue, priority and lifetime
        most = context.config.max_attempts
        wanted = submission.max_attempts
        self.max_attempts: int = most if wanted is None or wanted < 1 else min(wanted, most)
        self.attempts: list[RMAppAttempt] = []  # by number, without gaps
        self.nodes: set[str] = set()  # by id: where it ran
        self.diagnostics: list[str] = []
        self.start_ms: int = context.now_ms()
        self.submit_ms: int = self.start_ms if submit_ms is None else submit_ms
        self.launch_ms: int | None = None
        self.finish_ms: int | None = None
        self.acknowledge: Callable[[RMApp], None] | None = None  # called once it is stored or has ended
        self.is_unstored: bool = False  # it ended before it could be stored
        self.is_refused_by_store: bool = False  # because the store failed
        self.pending: Pending | None = None  # while FINAL_SAVING
        self.recovered_state: RMAppState | None = None  # the final state that the store held
        self._state_before_end: RMAppState = S.NEW  # while KILLING or FINAL_SAVING, the one to report
        self._first_stored_attempt = 1  # number of the first attempt that the store still has

    # -- for reports --------------------------------------------------------------------------------------------------

    @property
    def current_attempt(self) -> RMAppAttempt | None:
        """The last attempt, or None before the first."""
        return self.attempts[-1] if self.attempts else None

    @property
    def reported_state(self) -> RMAppState:
        """The state for clients. An end that isn't stored yet can still be lost, so it isn't reported."""
        state: RMAppState = self.state
        return self._state_before_end if state is S.KILLING or state is S.FINAL_SAVING else state

    @property
    def final_status(self) -> FinalApplicationStatus:
        """The status reported by its master on unregistering, or else by its final state. UNDEFINED until it ends."""
        undefined = FinalApplicationStatus.UNDEFINED
        by_its_end = _FINAL_STATUS.get(self.reported_state, undefined)
        attempt = self.current_attempt
        if by_its_end is undefined or attempt is None or attempt.final_status is undefined:
            return by_its_end
        return attempt.final_status

    def record(self) -> ApplicationStateData:
        """Return the record to store. FINISHING is stored as FINISHED: only the end of the attempt is missing."""
        state: RMAppState = self.state if self.pending is None else self.pending.target
        if state is S.FINISHING:
            state = S.FINISHED
        has_ended = state in FINAL_STATES
        return ApplicationStateData(
            self.entity,
            self.submission.without_secrets() if has_ended else self.submission,
            self.submit_ms,
            self.start_ms,
            state.name if has_ended else None,
            "; ".join(self.diagnostics),
            self.finish_ms,
            self.launch_ms,
        )

    # -- what the hooks do --------------------------------------------------------------------------------------------

    def store(
        self,
        type: RMStateStoreEventType,
        *,
        notify: bool = True,
        on_stored: Callable[[], None] | None = None,
    ) -> None:
        """Send the application to the state store."""
        self.context.post(RMStateStoreEvent(type, self.entity, self.record(), notify, on_stored))

    def note(self, diagnostics: str) -> None:
        """Keep diagnostics once: a master that unregistered and its attempt's end bring the same ones."""
        if diagnostics and diagnostics not in self.diagnostics:
            self.diagnostics.append(diagnostics)

    def register_lifetime(self) -> None:
        """Register the application's deadline, if it has one, to kill it then."""
        lifetime_s = self.submission.lifetime_s
        if lifetime_s is not None:
            self.context.app_lifetime_monitor.register(self.entity, self.submit_ms + lifetime_s * 1000)

    def acknowledge_submission(self) -> None:
        """Answer the client that submitted it, if it still waits."""
        acknowledge, self.acknowledge = self.acknowledge, None
        if acknowledge is not None:
            acknowledge(self)

    def start_attempt(self, transfer_state: bool = False) -> None:
        """Start the next attempt. With `transfer_state` it takes over the live containers of the previous one."""
        previous = self.current_attempt
        attempt = self._make_attempt(1 if previous is None else previous.number + 1)
        if previous is not None:
            attempt.take_over(previous)
        self.context.post(RMAppStartAttemptEvent(attempt.entity, transfer_state))

    def _make_attempt(self, number: int) -> RMAppAttempt:
        attempt = RMAppAttempt(self.context, self, number)
        self.attempts.append(attempt)
        self.context.attempts[attempt.entity] = attempt
        return attempt

    def kill_attempt(self, event: RMAppEvent) -> None:
        """Kill the current attempt. A hook."""
        attempt = self.current_attempt
        assert attempt is not None  # the states from which this is called have one
        self._state_before_end = self.state
        self.context.post(RMAppAttemptEvent(RMAppAttemptEventType.KILL, attempt.entity, event.diagnostics))

    def save_final(self, target: RMAppState, event: RMAppEvent) -> None:
        """Store `target` with the event's diagnostics, then enter it, and finish unless it's FINISHING."""
        self.pending = Pending(target, None if target is S.FINISHING else lambda app, _: app.finish())
        self.note(event.diagnostics)
        if self.state is not S.KILLING:  # a kill has set it already
            self._state_before_end = self.state
        if self.finish_ms is None:
            self.finish_ms = self.context.now_ms()
        self.store(RMStateStoreEventType.UPDATE_APP)

    def finish(self) -> None:
        """End: clean up the nodes, remove it from the scheduler, and answer the client."""
        context = self.context
        if self.finish_ms is None:
            self.finish_ms = context.now_ms()
        self.submission = self.submission.without_secrets()
        context.app_lifetime_monitor.unregister(self.entity)  # not every end passes through FINAL_SAVING
        for node in sorted(self.nodes):
            context.post(RMNodeEvent(RMNodeEventType.CLEANUP_APP, node, self.entity))
        if self.recovered_state is None:  # otherwise the scheduler never had it
            context.post(SchedulerEvent(SchedulerEventType.APP_REMOVED, self.entity))
        context.post(RMAppManagerEvent(RMAppManagerEventType.APP_COMPLETED, self.entity))
        self.acknowledge_submission()

    # -- failures -----------------------------------------------------------------------------------------------------

    def failures(self) -> int:
        """Count the recent failed attempts through the application's fault. If only one is allowed, any counts."""
        if self.max_attempts == 1:
            return 1
        oldest_ms = self._oldest_that_counts_ms()
        return sum(
            attempt.exit_status not in _NOT_ITS_OWN_FAULT and not _is_before(attempt, oldest_ms)
            for attempt in self.attempts
        )

    def can_retry(self) -> bool:
        """Whether another attempt follows a failed one."""
        return not self.submission.unmanaged_am and self.failures() < self.max_attempts

    def drop_old_attempts(self) -> None:
        """Remove attempts that don't count from the store, while it holds more than `max_attempts`."""
        oldest_ms = self._oldest_that_counts_ms()
        if oldest_ms is None or self.max_attempts == 1:
            return
        for attempt in self.attempts:
            if attempt.number < self._first_stored_attempt:
                continue
            stored = self.attempts[-1].number - attempt.number + 1
            if stored <= self.max_attempts or not _is_before(attempt, oldest_ms):
                return
            self.attempts[-1].take_usage(attempt)
            self.context.post(RMStateStoreEvent(RMStateStoreEventType.REMOVE_APP_ATTEMPT, attempt.entity, notify=False))
            self._first_stored_attempt = attempt.number + 1

    def _oldest_that_counts_ms(self) -> int | None:
        interval_ms = self.submission.attempt_failures_validity_interval_ms
        return None if interval_ms is None else self.context.now_ms() - interval_ms

    # -- recovery -----------------------------------------------------------------------------------------------------

    def recover(self, event: RMAppRecoverEvent) -> RMAppState:
        """Restore the application and its attempts from the store's record. A hook."""
        recovered, data = event.state, event.state.data
        self.start_ms, self.finish_ms, self.launch_ms = data.start_ms, data.finish_ms, data.launch_ms
        self.note(data.diagnostics)
        for id in recovered.attempts:
            self._make_attempt(int(id.rpartition("_")[2]))
        if data.state is not None:
            self.recovered_state = RMAppState[data.state]
            self._recover_attempts(recovered)
            self.finish()
            return self.recovered_state
        self.register_lifetime()
        # By direct call, so that the scheduler has the application before nodes and masters register again. Without
        # an attempt it counts as new, and the scheduler's answer starts the first one.
        scheduler = self.context.scheduler
        scheduler.handle(AppAddedSchedulerEvent(self.entity, is_recovering=bool(self.attempts)))
        if not self.attempts:
            return S.SUBMITTED
        self._recover_attempts(recovered)
        return S.ACCEPTED

    def _recover_attempts(self, recovered: RecoveredApplication) -> None:
        for attempt in self.attempts:
            record = recovered.attempts[attempt.entity]
            if record.state is None and attempt is not self.current_attempt:
                record = record._replace(state=S.FAILED.name)  # a later attempt followed it
            attempt.handle(RMAppAttemptRecoverEvent(attempt.entity, record))


def _is_before(attempt: RMAppAttempt, oldest_ms: int | None) -> bool:
    return oldest_ms is not None and attempt.finish_ms is not None and attempt.finish_ms <= oldest_ms
