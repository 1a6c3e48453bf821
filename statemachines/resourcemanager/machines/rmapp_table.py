"""RMApp's hooks and its table, which is YARN's of RMAppImpl."""

from __future__ import annotations

from dispatcher.util.figures import counted
from statemachines.declared import Hook
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppFailedAttemptEvent
from statemachines.resourcemanager.events.rmapp import RMAppEventType as E
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.scheduler import AppAddedSchedulerEvent
from statemachines.resourcemanager.events.services import RMStateStoreEventType
from statemachines.resourcemanager.machines.entity import Pending, finish_saving
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.states import FINAL_STATES
from statemachines.resourcemanager.machines.states import RMAppState as S
from statemachines.table import STAY, Row, from_table

# -- from submission to launch ----------------------------------------------------------------------------------------


def store_new(app: RMApp, event: RMAppEvent) -> None:
    """Fix the lifetime that the queue grants, and store the new application."""
    lifetime_s = app.context.scheduler.lifetime_s(app.submission)
    if lifetime_s != app.submission.lifetime_s:
        app.submission = app.submission._replace(lifetime_s=lifetime_s)
    app.register_lifetime()
    app.store(RMStateStoreEventType.STORE_APP)


def add_to_scheduler(app: RMApp, event: RMAppEvent) -> None:
    """Add the stored application to the scheduler, and acknowledge its submission."""
    app.context.post(AppAddedSchedulerEvent(app.entity))
    app.acknowledge_submission()


def start_first_attempt(app: RMApp, event: RMAppEvent) -> None:
    """Start the first attempt of an application that the scheduler accepted."""
    app.start_attempt()


def note_launch(app: RMApp, event: RMAppEvent) -> None:
    """Store when the first attempt was launched."""
    if app.launch_ms is None:
        app.launch_ms = app.context.now_ms()
        app.store(RMStateStoreEventType.UPDATE_APP, notify=False)


# -- nodes ------------------------------------------------------------------------------------------------------------


def note_node_used(app: RMApp, event: RMAppEvent) -> None:
    """Remember a node that runs the application, to clean up there at the end."""
    app.nodes.add(event.node)


def clean_up_node(app: RMApp, event: RMAppEvent) -> None:
    """Clean up a node that still runs an ended application."""
    app.context.post(RMNodeEvent(RMNodeEventType.CLEANUP_APP, event.node, app.entity))


# -- an attempt failed ------------------------------------------------------------------------------------------------


def retry_or_fail(app: RMApp, event: RMAppFailedAttemptEvent) -> S:
    """Start another attempt, or fail the application if it may not retry."""
    app.drop_old_attempts()
    if app.can_retry():
        app.start_attempt(event.keep_containers)
        return S.ACCEPTED
    return _fail(app, event)


def kill_or_fail(app: RMApp, event: RMAppFailedAttemptEvent) -> S:
    """End an application whose attempt failed during a kill: KILLED if it could have been retried, else FAILED."""
    app.drop_old_attempts()
    if not app.can_retry():
        return _fail(app, event)
    app.save_final(S.KILLED, event)
    return S.FINAL_SAVING


def _fail(app: RMApp, event: RMAppEvent) -> S:
    if app.submission.unmanaged_am:
        app.note(f"{app.entity} failed; the resource manager does not restart an unmanaged master")
    else:
        app.note(f"{app.entity} failed {counted(app.failures(), 'time')}, of {app.max_attempts} allowed")
    app.save_final(S.FAILED, event)
    return S.FINAL_SAVING


# -- the end ----------------------------------------------------------------------------------------------------------


def end(app: RMApp, event: RMAppEvent) -> None:
    """End at once: no end needs storing, or it is stored already."""
    app.note(event.diagnostics)
    app.finish()


def end_unstored(app: RMApp, event: RMAppEvent) -> None:
    """End an application that the store does not have."""
    app.is_unstored = True
    end(app, event)


def end_refused_by_store(app: RMApp, event: RMAppEvent) -> None:
    """End an application that the store could not take; its client may submit it again."""
    app.is_refused_by_store = True
    end_unstored(app, event)


def save(target: S) -> Hook:
    """The hook that stores the end `target`; FINISHING waits for the end of the attempt as well."""
    return lambda app, event: app.save_final(target, event)


def final_state_saved(app: RMApp, event: RMAppEvent) -> S:
    """Take the final state that has been stored."""
    app.context.app_lifetime_monitor.unregister(app.entity)
    state: S = finish_saving(app, event)
    return state


def finished_before_stored(app: RMApp, event: RMAppEvent) -> None:
    """Skip FINISHING: the attempt that it would wait for has ended before the store answered."""
    pending = app.pending
    assert pending is not None  # it is FINAL_SAVING
    if pending.target is S.FINISHING:
        app.pending = Pending(S.FINISHED, lambda app, _: end(app, event))


# -- the table --------------------------------------------------------------------------------------------------------

_ROWS: tuple[Row[S], ...] = (
    (S.NEW, S.NEW_SAVING, E.START, store_new),
    # YARN declares FINAL_SAVING as well and never enters it here.
    (S.NEW, {S.SUBMITTED, S.ACCEPTED, S.FINISHED, S.FAILED, S.KILLED, S.FINAL_SAVING}, E.RECOVER, RMApp.recover),
    (S.NEW, S.KILLED, E.KILL, end_unstored),
    (S.NEW_SAVING, S.SUBMITTED, E.APP_NEW_SAVED, add_to_scheduler),
    (S.NEW_SAVING, S.FAILED, E.APP_SAVE_FAILED, end_refused_by_store),
    (S.SUBMITTED, S.ACCEPTED, E.APP_ACCEPTED, start_first_attempt),
    ((S.NEW, S.NEW_SAVING, S.SUBMITTED), S.FINAL_SAVING, E.APP_REJECTED, save(S.FAILED)),
    ((S.NEW_SAVING, S.SUBMITTED), S.FINAL_SAVING, E.KILL, save(S.KILLED)),
    # Declared as YARN's. Here one log of node changes serves all masters, and no application is sent this.
    ((S.NEW, S.NEW_SAVING, S.SUBMITTED, S.ACCEPTED, S.RUNNING), STAY, E.NODE_UPDATE),
    (S.ACCEPTED, STAY, E.ATTEMPT_LAUNCHED, note_launch),
    (S.ACCEPTED, S.RUNNING, E.ATTEMPT_REGISTERED),
    (S.ACCEPTED, S.FINAL_SAVING, E.ATTEMPT_FINISHED, save(S.FINISHED)),
    ((S.ACCEPTED, S.RUNNING), {S.ACCEPTED, S.FINAL_SAVING}, E.ATTEMPT_FAILED, retry_or_fail),
    ((S.ACCEPTED, S.RUNNING), S.KILLING, E.KILL, RMApp.kill_attempt),
    ((S.ACCEPTED, S.KILLING), S.FINAL_SAVING, E.ATTEMPT_KILLED, save(S.KILLED)),
    ((S.RUNNING, S.KILLING), S.FINAL_SAVING, E.ATTEMPT_UNREGISTERED, save(S.FINISHING)),
    ((S.RUNNING, S.KILLING, S.FINISHING), S.FINISHED, E.ATTEMPT_FINISHED, end),
    (S.KILLING, {S.FINAL_SAVING}, E.ATTEMPT_FAILED, kill_or_fail),
    (S.KILLING, STAY, (E.NODE_UPDATE, E.ATTEMPT_REGISTERED, E.APP_UPDATE_SAVED, E.KILL)),
    (S.FINAL_SAVING, {S.FINISHING, S.FAILED, S.KILLED, S.FINISHED}, E.APP_UPDATE_SAVED, final_state_saved),
    (S.FINAL_SAVING, STAY, E.ATTEMPT_FINISHED, finished_before_stored),
    (S.FINAL_SAVING, STAY, (E.NODE_UPDATE, E.KILL, E.APP_NEW_SAVED)),
    (S.FINISHING, STAY, (E.NODE_UPDATE, E.KILL)),
    ((S.ACCEPTED, S.RUNNING, S.FINAL_SAVING, S.FINISHING, S.KILLING), STAY, E.APP_RUNNING_ON_NODE, note_node_used),
    (FINAL_STATES, STAY, E.APP_RUNNING_ON_NODE, clean_up_node),
    (FINAL_STATES, STAY, (E.NODE_UPDATE, E.KILL)),
    ((S.FINISHED, S.KILLED), STAY, E.ATTEMPT_FINISHED),
    (S.FINISHED, STAY, E.ATTEMPT_UNREGISTERED),
    (S.KILLED, STAY, (E.APP_ACCEPTED, E.APP_REJECTED, E.ATTEMPT_FAILED, E.START)),
)
FACTORY = from_table("RMApp", S, _ROWS)
"""YARN's table."""

# An event that was on its way when a kill or an administrator changed the state. YARN logs each as an error.
_LATE: tuple[Row[S], ...] = (
    ((S.KILLING, S.FINAL_SAVING), STAY, E.ATTEMPT_LAUNCHED),
    # Also a store that fails to take an application that is killed meanwhile: it is asked for the end next.
    (S.FINAL_SAVING, STAY, (E.APP_ACCEPTED, E.APP_REJECTED, E.APP_SAVE_FAILED)),
)
LIVE = from_table("RMApp", S, (*_ROWS, *_LATE))
"""YARN's table with rows for late events: what the machines run on."""
