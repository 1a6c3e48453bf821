"""RMAppAttempt's hooks and its table, which is YARN's of RMAppAttemptImpl.

CONTAINER_ALLOCATED, CONTAINER_FINISHED and STATUS_UPDATE arrive by the million: unless the master's own container is
concerned, each of their hooks is a few attribute operations.
"""

from __future__ import annotations

from statemachines.declared import Hook
from statemachines.resourcemanager.events.rmapp import RMAppEventType
from statemachines.resourcemanager.events.rmappattempt import (
    QUEUE_GONE,
    RMAppAttemptEvent,
    RMAppAttemptRecoverEvent,
    RMAppAttemptRegistrationEvent,
    RMAppAttemptStatusUpdateEvent,
    RMAppAttemptUnregistrationEvent,
    RMAppStartAttemptEvent,
)
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEventType as E
from statemachines.resourcemanager.events.scheduler import AppAttemptAddedSchedulerEvent
from statemachines.resourcemanager.events.services import AMLauncherEventType, RMStateStoreEventType
from statemachines.resourcemanager.machines.entity import Pending, finish_saving
from statemachines.resourcemanager.machines.rmappattempt import SAVED_EVERY_MS, MasterSession, RMAppAttempt, Then
from statemachines.resourcemanager.machines.states import RMAppAttemptState as S
from statemachines.table import STAY, Row, from_table

_ALLOCATION_RETRY_MS = 500
_RUNNING = S.RUNNING  # a global: looking up a member of an Enum is a call


# -- the end ----------------------------------------------------------------------------------------------------------


def save(target: S, then: Then) -> Hook:
    """The hook that stores the end `target`, and leaves by `then` once it is stored."""
    return lambda attempt, event: attempt.save_final(target, then, event)


def _leave_allocated(attempt: RMAppAttempt, state: S) -> None:
    """The launcher cleans up: it may be launching the master."""
    attempt.leave(state)
    attempt.notify_launcher(AMLauncherEventType.CLEANUP)


def _leave_unregistered(attempt: RMAppAttempt, state: S) -> None:
    attempt.context.am_liveliness_monitor.unregister(attempt.entity)
    attempt.leave(state)


def _await_masters_end(attempt: RMAppAttempt, state: S) -> None:
    attempt.context.am_liveliness_monitor.unregister(attempt.entity)
    attempt.context.am_finishing_monitor.register(attempt.entity)


def finish(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    """End a FINISHING attempt whose master does not exit."""
    attempt.leave_live(S.FINISHED)


def save_registered_too_early(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    """Fail an attempt whose master registered before it was launched."""
    attempt.diagnostics.append("the master registered before it was launched")
    attempt.save_final(S.FAILED, RMAppAttempt.leave, event)


def save_crash_early(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    """Fail an attempt whose master exited before it registered."""
    attempt.take_exit_status(event)
    attempt.save_final(S.FAILED, _leave_unregistered, event)


def save_unregistered(attempt: RMAppAttempt, event: RMAppAttemptUnregistrationEvent) -> None:
    """Store the end that the master reports: FINISHED if unmanaged, else FINISHING until its container ends."""
    attempt.final_status = event.final_status
    unmanaged = attempt.app.submission.unmanaged_am
    target, then = (S.FINISHED, RMAppAttempt.leave_live) if unmanaged else (S.FINISHING, _await_masters_end)
    attempt.save_final(target, then, event, tracking_url=event.tracking_url)
    attempt.notify_app(RMAppEventType.ATTEMPT_UNREGISTERED, event.diagnostics)


def finish_instead_of_finishing(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    """Skip FINISHING: the container that it would wait for has ended before the store answered."""
    pending = attempt.pending
    assert pending is not None  # it is FINAL_SAVING
    if pending.target is S.FINISHING:
        attempt.pending = Pending(S.FINISHED, RMAppAttempt.leave_live)


# -- from start to launch ---------------------------------------------------------------------------------------------


def start(attempt: RMAppAttempt, event: RMAppStartAttemptEvent) -> None:
    """Open the master's session, and add the attempt to the scheduler."""
    context = attempt.context
    context.master_sessions[attempt.entity] = MasterSession(context.node_changes.latest)
    context.post(AppAttemptAddedSchedulerEvent(attempt.entity, event.transfer_state))


def recover(attempt: RMAppAttempt, event: RMAppAttemptRecoverEvent) -> S:
    """Restore the attempt from the state store."""
    attempt.restore(event.state)
    context, app = attempt.context, attempt.app
    added = AppAttemptAddedSchedulerEvent(attempt.entity, is_recovering=True)
    if event.state.state is not None:
        ended = S[event.state.state]
        if attempt is app.current_attempt and app.recovered_state is None:
            # The application never learned of this end; the scheduler still has to end or keep the containers.
            context.scheduler.handle(added)
            attempt.leave(ended)
        return ended
    if app.recovered_state is not None:
        return S[app.recovered_state.name]
    if context.config.work_preserving_recovery:
        context.master_sessions[attempt.entity] = MasterSession(context.node_changes.latest)
        context.scheduler.handle(added)
    launched(attempt, event)
    return S.LAUNCHED


def ask_for_master(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> S:
    """Request the master's container; store an attempt with an unmanaged master at once."""
    context, submission = attempt.context, attempt.app.submission
    if submission.unmanaged_am:
        attempt.store(RMStateStoreEventType.STORE_APP_ATTEMPT)
        return S.LAUNCHED_UNMANAGED_SAVING
    if context.scheduler.queue_of(attempt.app.entity) is None:
        # YARN returns FAILED here, which its table does not declare, and rejects an application that was accepted,
        # which RMApp's table does not allow. A FAIL event leads to the same end within both tables.
        lost = f"queue {submission.queue} of {attempt.app.entity} {QUEUE_GONE}"
        context.post(RMAppAttemptEvent(E.FAIL, attempt.entity, lost))
        return S.SCHEDULED
    hosts = sorted(attempt.blacklist)
    additions, removals = (hosts, ()) if attempt.is_blacklist_effective() else ((), hosts)
    context.scheduler.ask(attempt.entity, (attempt.master_request(),), (), additions, removals)
    return S.SCHEDULED


def fetch_master(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> S:
    """Pull the master's container from the scheduler, and store the attempt."""
    context = attempt.context
    allocated = context.scheduler.pull_newly_allocated(attempt.entity)
    if not allocated:
        context.timers.register_timer(context.now_ms() + _ALLOCATION_RETRY_MS, lambda _: _fetch_again(attempt))
        return S.SCHEDULED
    container = allocated[0]
    if container.node not in context.nodes:
        return S.SCHEDULED  # the node is lost, and CONTAINER_FINISHED follows
    attempt.master_container, attempt.master_node = container.entity, container.node
    attempt.master_http_address = context.nodes[container.node].http_address
    attempt.master_resource = container.request.resource
    if attempt.blacklist:  # it applies to the master only; the master has a blacklist of its own
        context.scheduler.ask(attempt.entity, blacklist_removals=sorted(attempt.blacklist))
    attempt.store(RMStateStoreEventType.STORE_APP_ATTEMPT)
    return S.ALLOCATED_SAVING


def _fetch_again(attempt: RMAppAttempt) -> None:
    if attempt.state is S.SCHEDULED:
        attempt.context.post(RMAppAttemptEvent(E.CONTAINER_ALLOCATED, attempt.entity))


def launch(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    """Have the launcher start the master."""
    attempt.notify_launcher(AMLauncherEventType.LAUNCH)


def launched(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    """Report the launch to the application, and watch that the master registers."""
    attempt.notify_app(RMAppEventType.ATTEMPT_LAUNCHED)
    attempt.context.am_liveliness_monitor.register(attempt.entity)


def registered(attempt: RMAppAttempt, event: RMAppAttemptRegistrationEvent) -> None:
    """Keep where the master runs, and report its registration to the application."""
    attempt.host, attempt.rpc_port, attempt.tracking_url = event.host, event.rpc_port, event.tracking_url
    attempt.notify_app(RMAppEventType.ATTEMPT_REGISTERED)


def launched_and_registered(attempt: RMAppAttempt, event: RMAppAttemptRegistrationEvent) -> None:
    """Take a master that registers before the launcher has reported its launch."""
    launched(attempt, event)
    registered(attempt, event)


# -- while the master lives -------------------------------------------------------------------------------------------


def update_status(attempt: RMAppAttempt, event: RMAppAttemptStatusUpdateEvent) -> None:
    """Keep the progress and the tracking URL of the master's heartbeat; now and then, store the attempt."""
    attempt.progress = event.progress
    url = event.tracking_url
    is_due = attempt.context.now_ms() - attempt.saved_ms >= SAVED_EVERY_MS
    if url is not None and url != attempt.tracking_url:
        attempt.tracking_url, is_due = url, True
    if is_due:
        # YARN's store answers this write with an event for which RUNNING has no row.
        attempt.store(RMStateStoreEventType.UPDATE_APP_ATTEMPT, notify=False)


def container_finished_launched(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> S:
    """Keep a finished container; if it is the master's, fail the attempt."""
    if not attempt.is_masters(event):
        attempt.note_finished_container(event)
        return S.LAUNCHED
    attempt.masters_container_done(event)
    save_crash_early(attempt, event)
    return S.FINAL_SAVING


def container_finished_running(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> S:
    """Keep a finished container; if it is the master's, fail the attempt. Inlined: it runs once for each container."""
    status = event.status
    assert status is not None  # every CONTAINER_FINISHED has one
    if status.container != attempt.master_container:
        attempt.finished_containers.append((event.node, status))
        return _RUNNING
    attempt.masters_container_done(event)
    attempt.take_exit_status(event)
    attempt.save_final(S.FAILED, RMAppAttempt.leave_live, event)
    return S.FINAL_SAVING


def container_finished_saving(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    """Keep a finished container; after the master's, the attempt skips FINISHING."""
    if not attempt.is_masters(event):
        attempt.note_finished_container(event)
        return
    attempt.masters_container_done(event)
    finish_instead_of_finishing(attempt, event)


def container_finished_finishing(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> S:
    """Keep a finished container; the master's ends the attempt."""
    if not attempt.is_masters(event):
        attempt.note_finished_container(event)
        return S.FINISHING
    attempt.leave_live(S.FINISHED)
    attempt.masters_container_done(event)
    return S.FINISHED


def note_finished_container_late(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    """Keep a finished container for the master of the application's latest attempt."""
    attempt.app.attempts[-1].note_finished_container(event)


# -- the table --------------------------------------------------------------------------------------------------------

_UNLAUNCHED = (S.NEW, S.SUBMITTED, S.SCHEDULED, S.ALLOCATED_SAVING, S.LAUNCHED_UNMANAGED_SAVING)
_ENDED = (S.FINISHED, S.FAILED, S.KILLED)
_LIVE = (S.LAUNCHED, S.RUNNING)
_ROWS: tuple[Row[S], ...] = (
    (S.NEW, S.SUBMITTED, E.START, start),
    (S.NEW, {S.FINISHED, S.KILLED, S.FAILED, S.LAUNCHED}, E.RECOVER, recover),
    (S.SUBMITTED, {S.LAUNCHED_UNMANAGED_SAVING, S.SCHEDULED}, E.ATTEMPT_ADDED, ask_for_master),
    (S.SCHEDULED, {S.ALLOCATED_SAVING, S.SCHEDULED}, E.CONTAINER_ALLOCATED, fetch_master),
    (S.ALLOCATED_SAVING, S.ALLOCATED, E.ATTEMPT_NEW_SAVED, launch),
    (S.LAUNCHED_UNMANAGED_SAVING, S.LAUNCHED, E.ATTEMPT_NEW_SAVED, launched),
    (S.ALLOCATED, S.LAUNCHED, E.LAUNCHED, launched),
    (S.ALLOCATED, S.RUNNING, E.REGISTERED, launched_and_registered),
    (S.LAUNCHED, S.RUNNING, E.REGISTERED, registered),
    ((S.NEW, S.SUBMITTED, S.LAUNCHED_UNMANAGED_SAVING), S.FINAL_SAVING, E.REGISTERED, save_registered_too_early),
    ((S.SCHEDULED, S.ALLOCATED_SAVING, S.ALLOCATED), S.FINAL_SAVING, E.CONTAINER_FINISHED, save_crash_early),
    (S.ALLOCATED, S.FINAL_SAVING, E.LAUNCH_FAILED, save(S.FAILED, RMAppAttempt.leave)),
    ((*_UNLAUNCHED, S.ALLOCATED), S.FINAL_SAVING, E.FAIL, save(S.FAILED, RMAppAttempt.leave)),
    (_UNLAUNCHED, S.FINAL_SAVING, E.KILL, save(S.KILLED, RMAppAttempt.leave)),
    (S.ALLOCATED, S.FINAL_SAVING, E.KILL, save(S.KILLED, _leave_allocated)),
    (_LIVE, S.FINAL_SAVING, E.KILL, save(S.KILLED, RMAppAttempt.leave_live)),
    # On FAIL, YARN leaves the monitors and the master's container alone. Its scheduler ends that container unless the
    # application keeps containers: a master without an attempt would then run on.
    (_LIVE, S.FINAL_SAVING, (E.EXPIRE, E.FAIL), save(S.FAILED, RMAppAttempt.leave_live)),
    (S.LAUNCHED, {S.LAUNCHED, S.FINAL_SAVING}, E.CONTAINER_FINISHED, container_finished_launched),
    (S.RUNNING, {S.RUNNING, S.FINAL_SAVING}, E.CONTAINER_FINISHED, container_finished_running),
    (S.RUNNING, STAY, E.STATUS_UPDATE, update_status),
    (S.RUNNING, STAY, (E.LAUNCHED, E.REGISTERED, E.CONTAINER_ALLOCATED)),
    (S.RUNNING, S.FINAL_SAVING, E.UNREGISTERED, save_unregistered),
    (S.FINAL_SAVING, {S.FINISHING, S.FAILED, S.KILLED, S.FINISHED}, E.ATTEMPT_UPDATE_SAVED, finish_saving),
    (S.FINAL_SAVING, STAY, E.CONTAINER_FINISHED, container_finished_saving),
    (S.FINAL_SAVING, STAY, E.EXPIRE, finish_instead_of_finishing),
    (S.FINISHING, {S.FINISHING, S.FINISHED}, E.CONTAINER_FINISHED, container_finished_finishing),
    (S.FINISHING, S.FINISHED, E.EXPIRE, finish),
    (_ENDED, STAY, E.CONTAINER_FINISHED, note_finished_container_late),
    # Ignored once the end is decided:
    ((S.FINAL_SAVING, S.FINISHING, *_ENDED), STAY, (E.LAUNCHED, E.UNREGISTERED, E.CONTAINER_ALLOCATED, E.KILL, E.FAIL)),
    ((S.FINAL_SAVING, S.FINISHING, S.FAILED, S.KILLED), STAY, E.STATUS_UPDATE),
    ((S.FINAL_SAVING, S.FAILED, S.KILLED), STAY, E.LAUNCH_FAILED),
    ((S.FINAL_SAVING, S.KILLED), STAY, E.ATTEMPT_ADDED),
    (S.FINAL_SAVING, STAY, E.ATTEMPT_NEW_SAVED),
    (_ENDED, STAY, E.EXPIRE),
    ((S.FAILED, S.KILLED), STAY, E.REGISTERED),
)
FACTORY = from_table("RMAppAttempt", S, _ROWS)
"""YARN's table."""

# An event that was on its way when a kill or an administrator changed the state. YARN logs each as an error.
_LATE: tuple[Row[S], ...] = ((S.FINAL_SAVING, STAY, E.REGISTERED), (S.FAILED, STAY, E.ATTEMPT_ADDED))
LIVE = from_table("RMAppAttempt", S, (*_ROWS, *_LATE))
"""YARN's table with rows for late events: what the machines run on."""
