"""RMApp's hooks and its table, row for row YARN's RMAppImpl."""

from __future__ import annotations

from statemachines.factory import StateMachineFactory
from statemachines.resourcemanager.entity import Pending, finish_saving
from statemachines.resourcemanager.events.rmapp import (
    RMAppEvent,
    RMAppFailedAttemptEvent,
    RMAppNodeUpdateEvent,
    RMAppRecoverEvent,
)
from statemachines.resourcemanager.events.rmapp import RMAppEventType as E
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.scheduler import AppAddedSchedulerEvent
from statemachines.resourcemanager.events.services import RMStateStoreEventType
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.states import RMAppState as S

# -- from submission to launch ----------------------------------------------------------------------------------------


def store_new(app: RMApp, event: RMAppEvent) -> None:
    """Fix the lifetime that the queue grants, and store the new application."""
    lifetime_s = app.context.scheduler.lifetime_s(app.submission)
    if lifetime_s != app.submission.lifetime_s:
        app.submission = app.submission._replace(lifetime_s=lifetime_s)
    app.register_lifetime()
    app.store(RMStateStoreEventType.STORE_APP)


def recover(app: RMApp, event: RMAppRecoverEvent) -> S:
    """Restore the application and its attempts from the state store."""
    return app.recover(event.state)


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


def kill_attempt(app: RMApp, event: RMAppEvent) -> None:
    """Send KILL to the current attempt."""
    app.kill_attempt(event.diagnostics)


# -- nodes ------------------------------------------------------------------------------------------------------------


def note_node_update(app: RMApp, event: RMAppNodeUpdateEvent) -> None:
    """Keep a node's change for the master's next heartbeat."""
    app.node_updates.append((event.node, event.update))


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
    save_killed(app, event)
    return S.FINAL_SAVING


def _fail(app: RMApp, event: RMAppEvent) -> S:
    if app.submission.unmanaged_am:
        app.note(f"{app.entity} failed; the resource manager does not restart an unmanaged master")
    else:
        app.note(f"{app.entity} failed {app.failures()} times, of {app.max_attempts} allowed")
    save_failed(app, event)
    return S.FINAL_SAVING


# -- the end ----------------------------------------------------------------------------------------------------------


def end(app: RMApp, event: RMAppEvent) -> None:
    """End at once: no end needs storing, or it is stored already."""
    app.note(event.diagnostics)
    app.finish()


def _finish(app: RMApp, event: RMAppEvent) -> None:
    app.finish()


def save_finished(app: RMApp, event: RMAppEvent) -> None:
    """Store FINISHED, then finish."""
    app.save_final(S.FINISHED, _finish, event)


def save_failed(app: RMApp, event: RMAppEvent) -> None:
    """Store FAILED, then finish."""
    app.save_final(S.FAILED, _finish, event)


def save_killed(app: RMApp, event: RMAppEvent) -> None:
    """Store KILLED, then finish."""
    app.save_final(S.KILLED, _finish, event)


def save_unregistered(app: RMApp, event: RMAppEvent) -> None:
    """Store the end of an application whose master unregistered, then wait in FINISHING for the attempt."""
    app.save_final(S.FINISHING, None, event)


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
        app.pending = Pending(S.FINISHED, end, event)


# -- the table --------------------------------------------------------------------------------------------------------


def _build() -> StateMachineFactory[S, RMApp]:
    factory: StateMachineFactory[S, RMApp] = StateMachineFactory(S.NEW, "RMApp")
    return (
        factory.add_transition(S.NEW, S.NEW, E.NODE_UPDATE, note_node_update)
        .add_transition(S.NEW, S.NEW_SAVING, E.START, store_new)
        .add_transition(
            S.NEW,
            # YARN declares FINAL_SAVING as well and never enters it here.
            {S.SUBMITTED, S.ACCEPTED, S.FINISHED, S.FAILED, S.KILLED, S.FINAL_SAVING},
            E.RECOVER,
            recover,
        )
        .add_transition(S.NEW, S.KILLED, E.KILL, end)
        .add_transition(S.NEW, S.FINAL_SAVING, E.APP_REJECTED, save_failed)
        .add_transition(S.NEW_SAVING, S.NEW_SAVING, E.NODE_UPDATE, note_node_update)
        .add_transition(S.NEW_SAVING, S.SUBMITTED, E.APP_NEW_SAVED, add_to_scheduler)
        .add_transition(S.NEW_SAVING, S.FINAL_SAVING, E.KILL, save_killed)
        .add_transition(S.NEW_SAVING, S.FINAL_SAVING, E.APP_REJECTED, save_failed)
        .add_transition(S.NEW_SAVING, S.FAILED, E.APP_SAVE_FAILED, end)
        .add_transition(S.SUBMITTED, S.SUBMITTED, E.NODE_UPDATE, note_node_update)
        .add_transition(S.SUBMITTED, S.FINAL_SAVING, E.APP_REJECTED, save_failed)
        .add_transition(S.SUBMITTED, S.ACCEPTED, E.APP_ACCEPTED, start_first_attempt)
        .add_transition(S.SUBMITTED, S.FINAL_SAVING, E.KILL, save_killed)
        .add_transition(S.ACCEPTED, S.ACCEPTED, E.NODE_UPDATE, note_node_update)
        .add_transition(S.ACCEPTED, S.RUNNING, E.ATTEMPT_REGISTERED)
        .add_transition(S.ACCEPTED, {S.ACCEPTED, S.FINAL_SAVING}, E.ATTEMPT_FAILED, retry_or_fail)
        .add_transition(S.ACCEPTED, S.FINAL_SAVING, E.ATTEMPT_FINISHED, save_finished)
        .add_transition(S.ACCEPTED, S.KILLING, E.KILL, kill_attempt)
        .add_transition(S.ACCEPTED, S.FINAL_SAVING, E.ATTEMPT_KILLED, save_killed)
        .add_transition(S.ACCEPTED, S.ACCEPTED, E.APP_RUNNING_ON_NODE, note_node_used)
        .add_transition(S.ACCEPTED, S.ACCEPTED, E.ATTEMPT_LAUNCHED, note_launch)
        .add_transition(S.RUNNING, S.RUNNING, E.NODE_UPDATE, note_node_update)
        .add_transition(S.RUNNING, S.FINAL_SAVING, E.ATTEMPT_UNREGISTERED, save_unregistered)
        .add_transition(S.RUNNING, S.FINISHED, E.ATTEMPT_FINISHED, end)
        .add_transition(S.RUNNING, S.RUNNING, E.APP_RUNNING_ON_NODE, note_node_used)
        .add_transition(S.RUNNING, {S.ACCEPTED, S.FINAL_SAVING}, E.ATTEMPT_FAILED, retry_or_fail)
        .add_transition(S.RUNNING, S.KILLING, E.KILL, kill_attempt)
        .add_transition(
            S.FINAL_SAVING, {S.FINISHING, S.FAILED, S.KILLED, S.FINISHED}, E.APP_UPDATE_SAVED, final_state_saved
        )
        .add_transition(S.FINAL_SAVING, S.FINAL_SAVING, E.ATTEMPT_FINISHED, finished_before_stored)
        .add_transition(S.FINAL_SAVING, S.FINAL_SAVING, E.APP_RUNNING_ON_NODE, note_node_used)
        .add_transition(S.FINAL_SAVING, S.FINAL_SAVING, (E.NODE_UPDATE, E.KILL, E.APP_NEW_SAVED))
        .add_transition(S.FINISHING, S.FINISHED, E.ATTEMPT_FINISHED, end)
        .add_transition(S.FINISHING, S.FINISHING, E.APP_RUNNING_ON_NODE, note_node_used)
        .add_transition(S.FINISHING, S.FINISHING, (E.NODE_UPDATE, E.KILL))
        .add_transition(S.KILLING, S.KILLING, E.APP_RUNNING_ON_NODE, note_node_used)
        .add_transition(S.KILLING, S.FINAL_SAVING, E.ATTEMPT_KILLED, save_killed)
        .add_transition(S.KILLING, S.FINAL_SAVING, E.ATTEMPT_UNREGISTERED, save_unregistered)
        .add_transition(S.KILLING, S.FINISHED, E.ATTEMPT_FINISHED, end)
        .add_transition(S.KILLING, {S.FINAL_SAVING}, E.ATTEMPT_FAILED, kill_or_fail)
        .add_transition(S.KILLING, S.KILLING, (E.NODE_UPDATE, E.ATTEMPT_REGISTERED, E.APP_UPDATE_SAVED, E.KILL))
        .add_transition(S.FINISHED, S.FINISHED, E.APP_RUNNING_ON_NODE, clean_up_node)
        .add_transition(S.FINISHED, S.FINISHED, (E.NODE_UPDATE, E.ATTEMPT_UNREGISTERED, E.ATTEMPT_FINISHED, E.KILL))
        .add_transition(S.FAILED, S.FAILED, E.APP_RUNNING_ON_NODE, clean_up_node)
        .add_transition(S.FAILED, S.FAILED, (E.KILL, E.NODE_UPDATE))
        .add_transition(S.KILLED, S.KILLED, E.APP_RUNNING_ON_NODE, clean_up_node)
        .add_transition(
            S.KILLED,
            S.KILLED,
            (E.APP_ACCEPTED, E.APP_REJECTED, E.KILL, E.ATTEMPT_FINISHED, E.ATTEMPT_FAILED, E.NODE_UPDATE, E.START),
        )
        .install_topology()
    )


FACTORY: StateMachineFactory[S, RMApp] = _build()
